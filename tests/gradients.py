"""PyTorch without gradients, for functions of the tests."""

import functools
from collections.abc import Callable
from typing import Any


def without_gradients(function: Callable[..., Any]) -> Callable[..., Any]:
    """Run `function` under `torch.no_grad()`. Imports torch when `function` is called, not when it is decorated."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        import torch

        with torch.no_grad():
            return function(*args, **kwargs)

    return run

"""Imports Gradio in half its time.

At every import Gradio writes a type stub (`.pyi`) beside each of its components, for editors: it parses its own sources to do so,
about one second on one core. The studio needs no stubs. Where Python cannot name a class's file, Gradio writes none
(`gradio/component_meta.py`, 6.31), so that is what it is told of its own classes, while it is imported.
"""

import inspect
from typing import Any


def import_gradio() -> None:
    """Imports Gradio without its stubs. A version that ignores the answer is imported as slowly as ever, with the same result."""
    getfile = inspect.getfile

    def without_components(of: Any) -> str:
        if isinstance(of, type) and of.__module__.startswith("gradio."):
            raise OSError(f"no stub is wanted for {of.__name__}")
        return getfile(of)

    inspect.getfile = without_components
    try:
        import gradio  # noqa: F401
    finally:
        inspect.getfile = getfile

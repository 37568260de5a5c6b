"""Count the floating-point operations of networks from shapes. A multiplication and an addition are two operations."""

import math
from collections.abc import Callable, Mapping

import torch
from torch.utils.flop_counter import FlopCounterMode

from backend.runtime.mesh import Shaped


def count_flops(call: Callable[[], object]) -> float:
    """Count the operations of matrix products, convolutions and attentions in `call()` on PyTorch's meta device."""
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        call()
    return float(counter.get_total_flops())


def encoder_flops(weights: Mapping[str, Shaped], num_tokens: int) -> float:
    """Count the operations of a text or image encoder: the products of its matrices with `num_tokens` tokens.

    The attention between tokens is not counted: it is 2 % of UMT5-XXL's operations at 512 tokens.
    """
    tables = ("embed_tokens", "shared", "position_embedding", "relative_attention_bias")
    matrices = [leaf for name, leaf in weights.items() if len(leaf.shape) == 2 and not any(table in name for table in tables)]
    return 2.0 * num_tokens * sum(math.prod(leaf.shape) for leaf in matrices)

"""Count the floating-point operations of networks from shapes. A multiplication and an addition are two operations."""

import math
from collections.abc import Callable, Mapping

import torch
from torch.utils.flop_counter import FlopCounterMode

from backend.runtime.mesh import Shaped


def count_flops(call: Callable[[], object]) -> float:
    """Run `call()` on PyTorch's meta device, which computes only shapes.

    Returns the number of floating-point operations in matrix products, convolutions and attentions.
    """
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        call()
    return float(counter.get_total_flops())


def encoder_flops(weights: Mapping[str, Shaped], num_tokens: int) -> float:
    """Return the number of operations of a text or image encoder: the products of its matrices with `num_tokens` tokens.

    Embedding tables need no products. The attention between tokens is not counted: it is 2 % of UMT5-XXL's operations at 512
    tokens.
    """
    tables = ("embed_tokens", "shared", "position_embedding", "relative_attention_bias")
    matrices = [leaf for name, leaf in weights.items() if len(leaf.shape) == 2 and not any(table in name for table in tables)]
    return 2.0 * num_tokens * sum(math.prod(leaf.shape) for leaf in matrices)

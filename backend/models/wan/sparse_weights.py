"""The additional weights of Wan transformers that were trained with sparse attention.

SLA (arXiv:2509.24006) applies the projection `proj_l` [head width, head width] to each head's linear attention, in float32. The
heads of a layer share the projection. VSA (arXiv:2505.13389) multiplies its coarse attention by a gate for each token and
channel. The linear layer `to_gate_compress` [width, width] computes the gate.
"""

import torch

from backend.models.spec import SparseAttention


def add_sparse_weights(model: torch.nn.Module, method: SparseAttention | None) -> None:
    """Add the weights of the sparse attention `method` to each self-attention of a `WanTransformer3DModel`.

    Only SLA and VSA have such weights. For other methods, and for None (dense attention), nothing is added.
    """
    for block in model.blocks:
        attention, width = block.attn1, model.config.attention_head_dim
        if method == "sla":
            attention.proj_l = torch.nn.Linear(width, width)
        elif method == "vsa":
            attention.to_gate_compress = torch.nn.Linear(attention.to_q.in_features, attention.to_q.out_features)

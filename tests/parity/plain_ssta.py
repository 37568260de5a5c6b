"""HunyuanVideo 1.5's published SSTA in plain PyTorch, as an attention processor of diffusers' transformer.

Each tile of the video sees a window of tiles, the best tiles, and the tiles of the context that have tokens.
"""

from __future__ import annotations

import math

import torch
from diffusers.models.embeddings import apply_rotary_emb
from torch.nn.functional import normalize, pad

TILE, WINDOW, KEPT = (2, 1, 2), (3, 3, 3), 8
SPARSE_CONFIG = {"sparse_attention": "ssta", "sparse_blocks": list(TILE), "sparse_kept": KEPT}
"""Entries of a tiny transformer's configuration. Short videos keep half as many tiles."""


class PlainSsta:
    """A processor of diffusers' HunyuanVideo 1.5 attention, for videos with these numbers of tokens along time, height and width."""

    def __init__(self, tokens: tuple[int, int, int]) -> None:
        self.tokens = tokens
        self.grid = tuple(-(-length // side) for length, side in zip(tokens, TILE, strict=True))

    def __call__(self, attn, hidden_states, encoder_hidden_states=None, attention_mask=None, image_rotary_emb=None):
        own = [project(hidden_states).unflatten(2, (attn.heads, -1)) for project in (attn.to_q, attn.to_k, attn.to_v)]
        own[:2] = [
            apply_rotary_emb(norm(one), image_rotary_emb, sequence_dim=1)
            for norm, one in zip((attn.norm_q, attn.norm_k), own, strict=False)
        ]
        projections = (attn.add_q_proj, attn.add_k_proj, attn.add_v_proj)
        context = [project(encoder_hidden_states).unflatten(2, (attn.heads, -1)) for project in projections]
        context[:2] = [norm(one) for norm, one in zip((attn.norm_added_q, attn.norm_added_k), context, strict=False)]
        length = context[0].shape[1]
        missing = -length % math.prod(TILE)
        tiled = [self._to_tiles(one).transpose(1, 2) for one in own]
        context = [torch.cat([one, one[:, -1:].expand(-1, missing, -1, -1)], 1).transpose(1, 2) for one in context]
        query, key, value = (torch.cat(pair, 2) for pair in zip(tiled, context, strict=True))
        seen = torch.stack([self._seen(*(one[row] for one in tiled[:2]), mask) for row, mask in enumerate(attention_mask)])
        seen = seen.repeat_interleave(math.prod(TILE), 2).repeat_interleave(math.prod(TILE), 3)
        scores = (query @ key.mT * query.shape[3] ** -0.5).masked_fill(~seen, -torch.inf)
        attended = (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)
        video, beside = attended.split([tiled[0].shape[2], context[0].shape[2]], 1)
        return attn.to_out[0](self._from_tiles(video)), attn.to_add_out(beside[:, :length])

    def _to_tiles(self, array: torch.Tensor) -> torch.Tensor:
        """Pad [B, S, H, D] with zeros to whole tiles, and order it by tiles."""
        volume = array.unflatten(1, self.tokens)
        missing = [-length % side for length, side in zip(self.tokens, TILE, strict=True)]
        volume = pad(volume, (0, 0, 0, 0, 0, missing[2], 0, missing[1], 0, missing[0]))
        sides = [part for pair in zip(self.grid, TILE, strict=True) for part in pair]
        return volume.reshape(len(array), *sides, *array.shape[2:]).permute(0, 1, 3, 5, 2, 4, 6, 7, 8).flatten(1, 6)

    def _from_tiles(self, array: torch.Tensor) -> torch.Tensor:
        volume = array.unflatten(1, (*self.grid, *TILE)).permute(0, 1, 4, 2, 5, 3, 6, 7)
        volume = volume.flatten(5, 6).flatten(3, 4).flatten(1, 2)
        frames, height, width = self.tokens
        return volume[:, :frames, :height, :width].flatten(1, 3)

    def _seen(self, query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return whether each tile sees each tile, [H, tiles, tiles], for one sample [H, S, D] and the mask of its context."""
        size, tiles = math.prod(TILE), math.prod(self.grid)
        query, key = (normalize(one.unflatten(1, (tiles, size)).mean(2), dim=-1) for one in (query, key))
        similarity, unique = (query @ key.mT + 1) / 2, (key @ key.mT + 1) / 2
        redundancy = (unique.sum(1, keepdim=True) - unique.diagonal(dim1=1, dim2=2)[:, None]) / (tiles - 1)
        best = (0.7 * similarity - 0.3 * redundancy).topk(KEPT // 2).indices
        seen = torch.zeros_like(similarity, dtype=torch.bool).scatter(2, best, True)
        places = torch.stack(torch.meshgrid(*map(torch.arange, self.grid), indexing="ij"), -1).flatten(0, 2)
        for tile, place in enumerate(places):
            centre = [
                min(max(int(at), side // 2), max(length - 1 - side // 2, 0))
                for at, length, side in zip(place, self.grid, WINDOW, strict=True)
            ]
            seen[:, tile] |= ((places - torch.tensor(centre)).abs() <= 1).all(1)
        num_context = -(-len(mask) // size)
        visible = max(-(-int(mask.sum()) // size), 1)
        whole = torch.eye(tiles + num_context, dtype=torch.bool).repeat(len(query), 1, 1)
        whole[:, : tiles + visible, : tiles + visible] = True
        whole[:, :tiles, :tiles] = seen
        return whole

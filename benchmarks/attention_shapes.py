"""The attention shapes of real presets on real slices, shared by the benchmarks and the tests.

The number of tokens is latent frames x (height / 16) x (width / 16). 81 frames are 21 latent frames. Therefore 1280 x 720 has
21 * 45 * 80 = 75,600 tokens and 832 x 480 has 21 * 30 * 52 = 32,760 tokens. `heads` counts the heads of one chip. In
self-attention, after the all-to-all, a chip has all tokens and some heads. In cross-attention a chip has all heads and some
queries.

HunyuanVideo 1.5 attends to video and text in one call ("joint"): 31 latent frames and 1,256 tokens of text. At 720p these are
31 * 45 * 80 + 1,256 = 112,856 keys. An image adds 729 tokens. Queries and keys are padded, so that each of four chips has a
multiple of 128 tokens.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionShape:
    """One call of attention on one chip. `width` is the number of channels of a head, which is 128 in all models of this file."""

    name: str
    length_q: int
    length_kv: int
    heads: int
    width: int = 128

    @property
    def score_tiles(self) -> float:
        """Number of 8 x 128 tiles that the scores of all heads fill, without padding."""
        return self.heads * self.length_q * self.length_kv / (8 * 128)


SHAPES = {
    shape.name: shape
    for shape in (
        AttentionShape(name="self-720p", length_q=75600, length_kv=75600, heads=10),
        AttentionShape(name="self-480p", length_q=32760, length_kv=32760, heads=10),
        AttentionShape(name="self-5b-720p", length_q=27280, length_kv=27280, heads=6),  # 31 * 22 * 40 patches of 32 pixels
        AttentionShape(name="joint-720p", length_q=113152, length_kv=113152, heads=4),
        AttentionShape(name="joint-480p", length_q=50688, length_kv=50688, heads=4),
        AttentionShape(name="joint-image-720p", length_q=113664, length_kv=113664, heads=4),
        AttentionShape(name="joint-image-480p", length_q=51712, length_kv=51712, heads=4),
        AttentionShape(name="text-720p", length_q=18900, length_kv=512, heads=40),
        AttentionShape(name="text-480p", length_q=8190, length_kv=512, heads=40),
        AttentionShape(name="image-720p", length_q=18900, length_kv=257, heads=40),
    )
}

"""Checkpoints without a preset whose licence we have not seen. Presets state their own, see `Preset.licence`."""

LICENCE_UNSEEN = (
    "We do not know the licence of {repository}, because we have not seen the page of the weights: read the licence there first."
)
UNSEEN = ("FastVideo/Wan2.1-VSA-T2V-14B-720P-Diffusers", "lightx2v/Wan2.2-NVFP4-Sparse")
"""Repositories on the Hub that docs/models.md names in commands."""

"""Recognises Wan VACE from its configurations alone: Wan's text to video with control blocks beside its layers. Reads no file.

Wan 2.1 VACE has one transformer, Wan 2.2 VACE-Fun two with a boundary between. They take the same inputs: what is shown to the
control blocks is one clip with a mask, and any number of reference pictures (`backend/media/source.py`).
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from backend.checkpoints.json_files import AGAIN
from backend.chips import StepFlops
from backend.errors import ModelError
from backend.models.common.parts import index_of, width_of
from backend.models.spec import Configs, Need, refusal
from backend.models.wan.spec import WanFamily, WanKind, check_networks, transformer_flops, vae_scales
from backend.schemas.settings import VideoSettings
from backend.schemas.windows import step_geometry
from presets import Preset

PIPELINE, TRANSFORMER = "WanVACEPipeline", "WanVACETransformer3DModel"
INPUTS: Mapping[str, Need] = {role: "may" for role in ("control", "video", "mask", "references", "keyframes")}
KINDS = (
    WanKind(name="wan2.1-vace", tasks=("t2v",), conditioning="none", takes=INPUTS),
    WanKind(name="wan2.2-vace", tasks=("t2v",), conditioning="none", num_experts=2, takes=INPUTS),
)
SUPPORTED = "Wan 2.1 VACE and Wan 2.2 VACE-Fun A14B, as diffusers lays them out"


class WanVaceFamily(WanFamily):
    """See `backend.models.spec.Family`."""

    name = "wan_vace"
    supports = SUPPORTED
    pipelines = (PIPELINE,)
    transformers = (TRANSFORMER,)
    body = "backend.models.wan_vace.model:VaceModel"

    def _kind(self, index: Mapping[str, Any], configs: Configs) -> WanKind:
        check_networks(index, configs, TRANSFORMER)
        _check_control(configs)
        kind = KINDS["transformer_2" in configs]
        return dataclasses.replace(kind, scales=vae_scales(configs), boundary=index.get("boundary_ratio"))

    def of_preset(self, preset: Preset, configs: Configs) -> WanKind | None:
        """The kind of a preset's model, without its checkpoint."""
        if configs["transformer"].get("_class_name") != TRANSFORMER:
            return None
        second = {"transformer_2": configs["transformer"]} if preset.num_experts == 2 else {}
        index = index_of({**configs, **second}, _class_name=PIPELINE, boundary_ratio=preset.boundary)
        return self._kind(index, {**configs, **second})

    def distinctive_shapes(self, configs: Configs, part: str) -> dict[str, tuple[int, ...]]:
        """Wan's, and the first tensor of the control blocks."""
        shapes = super().distinctive_shapes(configs, part)
        if not part.startswith("transformer"):
            return shapes
        config = configs["transformer"]
        patch = config.get("patch_size", (1, 2, 2))
        return shapes | {"vace_patch_embedding.weight": (width_of(config), config["vace_in_channels"], *patch)}

    def step_flops(self, configs: Configs, request: VideoSettings, branches: int) -> StepFlops:
        """As Wan's with as many layers more as there are control blocks, each with a matrix of its own after it."""
        config, tokens = configs["transformer"], step_geometry(request).num_tokens
        blocks = len(config["vace_layers"])
        all_layers = transformer_flops({**config, "num_layers": config["num_layers"] + blocks}, tokens, tokens, branches)
        added = 2 * tokens * width_of(config) ** 2 * blocks * branches
        return dataclasses.replace(all_layers, matmul=all_layers.matmul + added)


WAN_VACE = WanVaceFamily()


def _check_control(configs: Configs) -> None:
    """Raises: ModelError if the control blocks cannot be what they are in every VACE."""
    config, latents, space = configs["transformer"], configs["vae"]["z_dim"], vae_scales(configs)[0]
    for name in ("vace_layers", "vace_in_channels"):
        if name not in config:
            raise ModelError(f"transformer/config.json does not say {name}:", "a transformer of VACE needs it", AGAIN)
    layers, channels = config["vace_layers"], config["vace_in_channels"]
    if sorted(set(layers)) != list(layers) or layers[0] != 0 or layers[-1] >= config["num_layers"]:
        raise refusal(f"its control blocks stand at the layers {', '.join(map(str, layers))}", [SUPPORTED])
    if channels != 2 * latents + space**2 or config["in_channels"] != latents:
        raise refusal(f"its control blocks take {channels} channels and its VAE makes {latents}", [SUPPORTED])

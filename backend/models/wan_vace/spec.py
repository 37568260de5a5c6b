"""Recognise Wan VACE by its configurations. VACE is a text-to-video model of Wan with additional control blocks.

The control blocks read one clip with a mask, and any number of reference images (`backend/media/source.py`).
"""

import dataclasses
from collections.abc import Mapping

from backend.checkpoints.checkpoint import Checkpoint
from backend.checkpoints.json_files import AGAIN, Config
from backend.chips import StepFlops
from backend.errors import ModelError
from backend.models.common.parts import transformer_width
from backend.models.spec import Configs, Need, unsupported_checkpoint
from backend.models.wan.original import check_single_files
from backend.models.wan.spec import WanFamily, WanSpec, check_networks, transformer_flops, vae_scales
from backend.schemas.settings import VideoSettings
from backend.schemas.windows import step_geometry
from presets import Preset

PIPELINE, TRANSFORMER = "WanVACEPipeline", "WanVACETransformer3DModel"
INPUTS: Mapping[str, Need] = {role: "may" for role in ("control", "video", "mask", "references", "keyframes")}
ONE = WanSpec(name="wan2.1-vace", tasks=("t2v",), conditioning="none", inputs=INPUTS, has_control_blocks=True)
TWO = dataclasses.replace(ONE, name="wan2.2-vace", num_experts=2)
SUPPORTED = "Wan 2.1 VACE and Wan 2.2 VACE-Fun A14B, in diffusers' layout"


class WanVaceFamily(WanFamily):
    """The family of Wan VACE. See `backend.models.spec.Family`."""

    name = "wan_vace"
    supports = SUPPORTED
    pipelines = (PIPELINE,)
    body = "backend.models.wan_vace.model:VaceModel"

    def read_spec(self, index: Config, configs: Configs) -> WanSpec:
        check_networks(index, configs, TRANSFORMER)
        config, latents, space = configs["transformer"], configs["vae"]["z_dim"], vae_scales(configs)[0]
        for name in ("vace_layers", "vace_in_channels"):
            if name not in config:
                raise ModelError(f"transformer/config.json has no {name}:", "a VACE transformer needs this entry", AGAIN)
        layers, channels = config["vace_layers"], config["vace_in_channels"]
        if sorted(set(layers)) != list(layers) or layers[0] != 0 or layers[-1] >= config["num_layers"]:
            raise unsupported_checkpoint(f"its control blocks are at the layers {', '.join(map(str, layers))}", [SUPPORTED])
        if channels != 2 * latents + space**2 or config["in_channels"] != latents:
            raise unsupported_checkpoint(f"its control blocks take {channels} channels and its VAE makes {latents}", [SUPPORTED])
        spec = TWO if "transformer_2" in configs else ONE
        return dataclasses.replace(spec, scales=vae_scales(configs), boundary=index.get("boundary_ratio"))

    def complete_checkpoint(self, checkpoint: Checkpoint, preset: Preset | None) -> Checkpoint:
        check_single_files(checkpoint)
        return checkpoint

    def distinctive_shapes(self, configs: Configs, part: str) -> dict[str, tuple[int, ...]]:
        """See `Family`. Adds the patch embedding of the control blocks to Wan's tensors."""
        shapes = super().distinctive_shapes(configs, part)
        if not part.startswith("transformer"):
            return shapes
        config = configs["transformer"]
        patch = config.get("patch_size", (1, 2, 2))
        return shapes | {"vace_patch_embedding.weight": (transformer_width(config), config["vace_in_channels"], *patch)}

    def step_flops(self, configs: Configs, request: VideoSettings, branches: int) -> StepFlops:
        """See `Family`. A control block counts as a layer with one more matrix."""
        config, tokens = configs["transformer"], step_geometry(request).num_tokens
        blocks = len(config["vace_layers"])
        all_layers = transformer_flops(
            {**config, "num_layers": config["num_layers"] + blocks}, tokens, tokens, branches, request.quantize
        )
        added = 2 * tokens * transformer_width(config) ** 2 * blocks * branches
        return dataclasses.replace(all_layers, matmul=all_layers.matmul + added)


WAN_VACE = WanVaceFamily()

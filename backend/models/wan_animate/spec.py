"""Recognise Wan 2.2 Animate-2 by its configurations. This module reads no file. Source: diffusers
modular_pipelines/wan_animate_2. The model_index.json of published checkpoints names `WanAnimate2Pipeline`."""

import dataclasses

from backend.checkpoints.json_files import Config
from backend.chips import StepFlops
from backend.errors import ModelError
from backend.models.common.parts import channel_mismatch, check_classes, check_parts
from backend.models.spec import Configs
from backend.models.wan.spec import AUTOENCODER, NEEDED_ENTRIES, WanFamily, WanSpec, transformer_flops, vae_scales
from backend.models.wan_animate.names import animate_name, to_wan_config, with_wan_config
from backend.schemas.geometry import latent_frames
from backend.schemas.settings import VideoSettings
from backend.schemas.windows import step_geometry

PIPELINES = ("WanAnimate2Pipeline", "WanAnimate2ModularPipeline", "WanAnimate2DistilledModularPipeline")
TRANSFORMER = "WanAnimate2Transformer3DModel"
SEGMENT = "segment_frame_length"  # an entry of model_index.json, named like the argument of diffusers' pipelines
SEGMENT_FRAMES = 81  # pixel frames per segment if model_index.json has no entry `SEGMENT`
NEEDED = {**NEEDED_ENTRIES, "transformer": ("in_dim", "dim", "num_layers", "num_heads", "ffn_dim")}
SUPPORTED = "Wan 2.2 Animate-2, in diffusers' layout"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SegmentSpec(WanSpec):
    """The spec of an Animate model, which generates videos in segments. `chunk` is the number of latent frames per segment,
    including the latent frame of the input image. `segment_frames` is the number of pixel frames per segment, without the input
    image."""

    segment_frames: int


class WanAnimateFamily(WanFamily):
    """The family of Animate-2. See `backend.models.spec.Family`."""

    name = "wan-animate"
    supports = SUPPORTED
    pipelines = PIPELINES
    body = "backend.models.wan_animate.model:AnimateModel"

    def read_spec(self, index: Config, configs: Configs) -> SegmentSpec:
        check_parts(index, configs, NEEDED, "a whole checkpoint of Animate-2")
        check_classes(configs, {"transformer": (TRANSFORMER,), "vae": (AUTOENCODER,)}, SUPPORTED)
        transformer, (_, mask) = configs["transformer"], vae_scales(configs)
        if transformer["in_dim"] != 2 * configs["vae"]["z_dim"] + mask:
            raise channel_mismatch(with_wan_config(configs), configs["vae"]["z_dim"], SUPPORTED)
        sees_pictures = transformer.get("use_img_emb", True)
        if sees_pictures and "image_encoder" not in configs:
            raise ModelError(
                "model_index.json names no image_encoder:",
                "this transformer attends to image tokens",
                "give a whole checkpoint of Animate-2",
            )
        frames = index.get(SEGMENT, SEGMENT_FRAMES)
        return SegmentSpec(
            name="wan2.2-animate",
            tasks=("i2v",),
            inputs={"image": "must", "drive": "must"},
            conditioning="channels",
            has_image_encoder=sees_pictures,
            scales=vae_scales(configs),
            chunk=latent_frames(frames, mask) + 1,
            segment_frames=frames,
        )

    def distinctive_shapes(self, configs: Configs, part: str) -> dict[str, tuple[int, ...]]:
        """See `Family`. The tensors are the same as for Wan, with Animate-2's names."""
        if part != "transformer":
            return super().distinctive_shapes(configs, part)
        return {animate_name(name): shape for name, shape in super().distinctive_shapes(with_wan_config(configs), part).items()}

    def step_flops(self, configs: Configs, request: VideoSettings, branches: int) -> StepFlops:
        """See `Family`. The result is for one segment. The tokens of image and video attend to each other. Each video token also
        attends to one frame of the driving video."""
        geometry = step_geometry(request)
        frame = geometry.num_tokens // geometry.num_latent_frames
        tokens = geometry.num_tokens + frame
        return transformer_flops(to_wan_config(configs["transformer"]), tokens, tokens + frame, branches, request.quantize)


WAN_ANIMATE = WanAnimateFamily()

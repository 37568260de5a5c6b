"""Recognise Wan 2.2 Animate-1 by its configurations. This module reads no file. Source: diffusers
pipelines/wan/pipeline_wan_animate.py."""

from backend.checkpoints.json_files import Config
from backend.chips import StepFlops
from backend.errors import ModelError
from backend.models.common.parts import channel_mismatch, check_classes, check_parts
from backend.models.spec import Configs
from backend.models.wan.spec import AUTOENCODER, NEEDED_ENTRIES, WanFamily, transformer_flops, vae_scales
from backend.models.wan_animate.spec import SEGMENT, SegmentSpec
from backend.schemas.geometry import latent_frames
from backend.schemas.settings import VideoSettings
from backend.schemas.windows import step_geometry

PIPELINES = ("WanAnimatePipeline",)
TRANSFORMER = "WanAnimateTransformer3DModel"
SEGMENT_FRAMES = 77
FACE_SIDE, EVERY = 512, 5  # defaults of two entries of config.json: side of a face image in pixels, layers per face adapter
SUPPORTED = "Wan 2.2 Animate, in diffusers' layout"


class WanPosedFamily(WanFamily):
    """The family of Animate-1. See `backend.models.spec.Family`."""

    name = "wan-animate-poses"
    supports = SUPPORTED
    pipelines = PIPELINES
    body = "backend.models.wan_animate.posed_model:PosedModel"

    def read_spec(self, index: Config, configs: Configs) -> SegmentSpec:
        check_parts(index, configs, NEEDED_ENTRIES, "a whole checkpoint of Wan 2.2 Animate")
        check_classes(configs, {"transformer": (TRANSFORMER,), "vae": (AUTOENCODER,)}, SUPPORTED)
        transformer, (_, mask) = configs["transformer"], vae_scales(configs)
        if transformer["in_channels"] != 2 * configs["vae"]["z_dim"] + mask:
            raise channel_mismatch(configs, configs["vae"]["z_dim"], SUPPORTED)
        every = transformer.get("inject_face_latents_blocks", EVERY)
        if transformer["num_layers"] % every:
            raise ModelError(
                f"transformer/config.json says num_layers={transformer['num_layers']}:",
                f"it must be a multiple of inject_face_latents_blocks={every}",
                "give the checkpoint as its authors published it",
            )
        frames = index.get(SEGMENT, SEGMENT_FRAMES)
        return SegmentSpec(
            name="wan2.2-animate-poses",
            tasks=("i2v",),
            inputs={"image": "must", "drive": "must", "face": "must", "video": "may", "mask": "may"},
            conditioning="channels",
            has_image_encoder="image_encoder" in configs,
            scales=vae_scales(configs),
            chunk=latent_frames(frames, mask) + 1,
            segment_frames=frames,
            face_side=transformer.get("motion_encoder_size", FACE_SIDE),
        )

    def step_flops(self, configs: Configs, request: VideoSettings, branches: int) -> StepFlops:
        geometry = step_geometry(request)
        tokens = geometry.num_tokens + geometry.num_tokens // geometry.num_latent_frames
        return transformer_flops(configs["transformer"], tokens, tokens, branches, request.quantize)


WAN_POSED = WanPosedFamily()

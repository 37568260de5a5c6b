"""Recognise causal Wan checkpoints: Wan's networks, trained to generate a video block by block in a few steps. Reads no file.

The transformer's config.json can describe the training, with the names of hao-ai-lab/FastVideo's `WanVideoArchConfig`.
`num_frames_per_block` latent frames are generated together. A frame sees `local_attn_size` latent frames. The value -1 means as
many latent frames as a video of 81 pixel frames has. The video's first `sink_size` latent frames stay visible. This project
adds two entries: with `kv_recache` a new prompt recomputes the past (LongLive), and `first_block_steps` is the minimum number of
steps for the first block (Causal-Forcing++). The defaults are Self-Forcing's values.

An input image becomes the first block of the video, as a still clip. The models were trained on whole blocks, and accept input
frames only as a multiple of the block length (guandeh17/Self-Forcing pipeline/causal_inference.py).
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from backend.checkpoints.checkpoint import TRANSFORMER as PART
from backend.checkpoints.checkpoint import Checkpoint
from backend.checkpoints.single_file import file_path
from backend.checkpoints.torch_file import TorchFile
from backend.chips import StepFlops
from backend.errors import ModelError
from backend.models.common.parts import channel_mismatch
from backend.models.common.spec import FamilyBase
from backend.models.spec import Configs, unsupported_checkpoint
from backend.models.wan.original import transformer_config
from backend.models.wan.spec import WanFamily, WanKind, check_networks, transformer_flops, vae_scales
from backend.schemas.settings import VideoSettings
from presets import Preset

PIPELINES = ("WanCausalDMDPipeline",)  # the class in hao-ai-lab/FastVideo, used by wlsaidhi/SFWan2.1-T2V-1.3B-Diffusers
TRANSFORMER = "CausalWanTransformer3DModel"
TRAINED_FRAMES = 21  # the default for the longest window in training: latent frames of 81 pixel frames, as in Self-Forcing
BLOCK, WINDOW, SINK, TRAINED = "num_frames_per_block", "local_attn_size", "sink_size", "sliding_window_num_frames"
RECACHE, FIRST_STEPS = "kv_recache", "first_block_steps"
TRAINING = (BLOCK, WINDOW, SINK, TRAINED, RECACHE, FIRST_STEPS)
SUPPORTED = "causal Wan 2.1 T2V (Self-Forcing, LongLive, Causal-Forcing), in FastVideo's layout or as its authors' .pt file"


@dataclasses.dataclass(frozen=True, kw_only=True)
class CausalWanKind(WanKind):
    """The kind of a causal Wan model.

    A block has `chunk` latent frames. It sees `window` latent frames, including its own. The video's first `sink` latent frames
    always stay in the window. `trained` is the longest window in training. If `recaches` is true, a new prompt recomputes
    the keys and values of the frames in the window. The first block has at least `first_steps` steps, even if a request
    has fewer.
    """

    chunk: int
    window: int
    sink: int
    trained: int
    recaches: bool = False
    first_steps: int = 1


class CausalWanFamily(WanFamily):
    """Causal Wan. See `backend.models.spec.Family`."""

    name = "causal-wan"
    supports = SUPPORTED
    pipelines = PIPELINES
    transformers = (TRANSFORMER,)
    body = "backend.models.causal_wan.model:CausalWanModel"
    # This replaces plain Wan's method, which distinguishes several kinds. Causal Wan has only one kind.
    kind_for_preset = FamilyBase.kind_for_preset

    def _kind(self, index: Mapping[str, Any], configs: Configs) -> CausalWanKind:
        check_networks(index, configs, TRANSFORMER)
        if configs["transformer"]["in_channels"] != configs["vae"]["z_dim"]:
            raise channel_mismatch(configs, configs["vae"]["z_dim"], SUPPORTED)
        kind = _make_kind(configs)
        check_window(kind)
        return kind

    def complete_checkpoint(self, checkpoint: Checkpoint, preset: Preset | None) -> Checkpoint | None:
        """See `Family`. The tensors' shapes give the network's sizes. config.json or else the preset describes the training.

        No tensor shows whether a transformer is causal. Every .pt file counts as causal. A safetensors file counts as causal if
        the checkpoint or the preset is causal.
        """
        own_config, file = checkpoint.configs.get(PART, {}), checkpoint.transformer_files[PART]
        expected = preset.network_configs().get(PART, {}) if preset else {}
        is_causal_pipeline = checkpoint.index.get("_class_name") in PIPELINES
        if not (
            is_causal_pipeline
            or TRANSFORMER in (own_config.get("_class_name"), expected.get("_class_name"))
            or isinstance(file, TorchFile)
        ):
            return None
        sizes = transformer_config({name: place.shape for name, place in checkpoint.tensors(PART).items()})
        if sizes is None:
            raise unsupported_checkpoint(
                f"{file_path(file).name} has no transformer with Wan's original tensor names", [SUPPORTED]
            )
        training = {name: config[name] for config in (expected, own_config) for name in TRAINING if name in config}
        configs = checkpoint.configs | {PART: {"_class_name": TRANSFORMER} | sizes | training}
        index = checkpoint.index | {"_class_name": PIPELINES[0]}
        return dataclasses.replace(checkpoint, index=index, configs=configs)

    def step_flops(self, configs: Configs, request: VideoSettings, branches: int) -> StepFlops:
        """Return the number of operations of one block, whose tokens see a full window."""
        kind, geometry = _make_kind(configs), request.geometry()
        frame = geometry.num_tokens // geometry.num_latent_frames
        frames = min(kind.chunk, geometry.num_latent_frames)
        return transformer_flops(configs["transformer"], frames * frame, kind.window * frame, branches)


CAUSAL_WAN = CausalWanFamily()


def _make_kind(configs: Configs) -> CausalWanKind:
    transformer = configs["transformer"]
    trained, window = transformer.get(TRAINED, TRAINED_FRAMES), transformer.get(WINDOW, -1)
    return CausalWanKind(
        name="wan2.1-live",
        tasks=("t2v", "i2v"),
        takes={"image": "may"},
        first_only=("image",),
        conditioning="none",
        scales=vae_scales(configs),
        chunk=transformer.get(BLOCK, 3),
        window=trained if window < 0 else window,
        sink=transformer.get(SINK, 0),
        trained=trained,
        recaches=bool(transformer.get(RECACHE, False)),
        first_steps=transformer.get(FIRST_STEPS, 1),
    )


def check_window(kind: CausalWanKind) -> None:
    """Check the attention window.

    Raises: ModelError if a block does not fit into the window, or if the window is longer than in training.
    """
    if not 0 < kind.chunk <= kind.window - kind.sink <= kind.window <= kind.trained:
        raise ModelError(
            f"transformer/config.json says {BLOCK}={kind.chunk}, {WINDOW}={kind.window}, {SINK}={kind.sink},"
            f" {TRAINED}={kind.trained}:",
            f"must satisfy 0 < {BLOCK} <= {WINDOW} - {SINK} and {WINDOW} <= {TRAINED}",
            "give a checkpoint whose transformer/config.json describes its training",
        )

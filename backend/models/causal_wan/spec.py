"""Recognises causal Wan checkpoints: Wan's networks, trained to make a video block by block in a few steps. Reads no file.

Their transformer's config.json may say how they were trained, with the names of hao-ai-lab/FastVideo's `WanVideoArchConfig`:
`num_frames_per_block` latent frames are made at once, each sees `local_attn_size` of them (-1: all of a video of 81 frames), of
which the first `sink_size` always stay. Two entries are our own: `kv_recache` says that a new prompt makes the past anew
(LongLive), `first_block_steps` that the first block is made in at least so many steps (Causal-Forcing++). What it does not say is
Self-Forcing's.

A picture begins a video as its first block: a still clip of that block's frames, the only picture that a model sees which was
trained on whole blocks (guandeh17/Self-Forcing pipeline/causal_inference.py: given frames are a multiple of the block's).
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from backend.checkpoints.checkpoint import TRANSFORMER as PART
from backend.checkpoints.checkpoint import Checkpoint
from backend.checkpoints.single_file import path_of
from backend.checkpoints.torch_file import TorchFile
from backend.chips import StepFlops
from backend.errors import ModelError
from backend.models.common.parts import channels_refusal
from backend.models.common.spec import Face
from backend.models.spec import Configs, refusal
from backend.models.wan.original import transformer_config
from backend.models.wan.spec import WanFamily, WanKind, check_networks, transformer_flops, vae_scales
from backend.schemas.settings import VideoSettings
from presets import Preset

PIPELINES = ("WanCausalDMDPipeline",)  # hao-ai-lab/FastVideo's, in wlsaidhi/SFWan2.1-T2V-1.3B-Diffusers
TRANSFORMER = "CausalWanTransformer3DModel"
TRAINED_FRAMES = 21  # latent frames of a video of 81, Self-Forcing's whole cache
BLOCK, WINDOW, SINK, TRAINED = "num_frames_per_block", "local_attn_size", "sink_size", "sliding_window_num_frames"
RECACHE, FIRST_STEPS = "kv_recache", "first_block_steps"
TRAINING = (BLOCK, WINDOW, SINK, TRAINED, RECACHE, FIRST_STEPS)
SUPPORTED = "causal Wan 2.1 T2V (Self-Forcing, LongLive, Causal-Forcing), as FastVideo lays it out or as its makers' .pt file"


@dataclasses.dataclass(frozen=True, kw_only=True)
class CausalWanKind(WanKind):
    """`chunk` latent frames are made at once; each sees `window` of them, of which the video's first `sink` always stay; in
    training no two frames were further apart than `trained`. If it `recaches`, a new prompt makes the past anew: the frames that
    are still in the window are run once more with it. The first block has `first_steps` steps or more, whatever is asked for."""

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
    of_preset = Face.of_preset  # another than plain Wan's, which has presets of several kinds

    def _kind(self, index: Mapping[str, Any], configs: Configs) -> CausalWanKind:
        check_networks(index, configs, TRANSFORMER)
        if configs["transformer"]["in_channels"] != configs["vae"]["z_dim"]:
            raise channels_refusal(configs, configs["vae"]["z_dim"], SUPPORTED)
        kind = _make_kind(configs)
        check_window(kind)
        return kind

    def completed(self, checkpoint: Checkpoint, preset: Preset | None) -> Checkpoint | None:
        """See `Family`. No tensor says whether a transformer is causal: a .pt file is, a safetensors file if the checkpoint's or
        the preset's is. Its sizes follow from its tensors, how it was trained from its config.json if it has one, else from the
        preset's."""
        own, file = checkpoint.configs.get(PART, {}), checkpoint.own_files[PART]
        expected = preset.network_configs().get(PART, {}) if preset else {}
        is_marked = checkpoint.index.get("_class_name") in PIPELINES
        if not (is_marked or TRANSFORMER in (own.get("_class_name"), expected.get("_class_name")) or isinstance(file, TorchFile)):
            return None
        sizes = transformer_config({name: place.shape for name, place in checkpoint.tensors(PART).items()})
        if sizes is None:
            raise refusal(f"{path_of(file).name} holds no transformer by Wan's own names", [SUPPORTED])
        training = {name: config[name] for config in (expected, own) for name in TRAINING if name in config}
        configs = checkpoint.configs | {PART: {"_class_name": TRANSFORMER} | sizes | training}
        index = checkpoint.index | {"_class_name": PIPELINES[0]}
        return dataclasses.replace(checkpoint, index=index, configs=configs)

    def step_flops(self, configs: Configs, request: VideoSettings, branches: int) -> StepFlops:
        """Of one block, whose tokens see all of a full window."""
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
    """Raises: ModelError if a block finds no room in the window, or the window is longer than in training."""
    if not 0 < kind.chunk <= kind.window - kind.sink <= kind.window <= kind.trained:
        raise ModelError(
            f"transformer/config.json says {BLOCK}={kind.chunk}, {WINDOW}={kind.window}, {SINK}={kind.sink},"
            f" {TRAINED}={kind.trained}:",
            "a block must find room in the window beside the sink, and the window must be no longer than in training",
            "give a checkpoint whose transformer/config.json says what it was trained with",
        )

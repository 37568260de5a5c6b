"""Recognise causal Wan checkpoints: Wan's networks, trained to generate a video block by block in a few steps.

The transformer's config.json can describe the training. The names `num_frames_per_block`, `local_attn_size` (-1 means the longest
window in training), `sink_size` and `sliding_window_num_frames` (this longest window) are from hao-ai-lab/FastVideo's
`WanVideoArchConfig`. This project adds two entries. If `kv_recache` is true, a new prompt recomputes the keys and values of
earlier blocks (LongLive). `first_block_steps` is the minimum number of steps for the first block (Causal-Forcing++). The defaults
are Self-Forcing's values.

An input image becomes the first block of the video, as a still clip, because the models were trained on whole blocks
(guandeh17/Self-Forcing pipeline/causal_inference.py).
"""

import dataclasses

from backend.checkpoints.checkpoint import TRANSFORMER as PART
from backend.checkpoints.checkpoint import Checkpoint
from backend.checkpoints.json_files import Config
from backend.checkpoints.single_file import file_path
from backend.checkpoints.torch_file import TorchFile
from backend.chips import StepFlops
from backend.errors import ModelError
from backend.models.common.parts import channel_mismatch
from backend.models.spec import Configs, unsupported_checkpoint
from backend.models.wan.original import find_sparse_attention, transformer_config
from backend.models.wan.spec import WanFamily, WanSpec, check_networks, transformer_flops, vae_scales
from backend.schemas.settings import VideoSettings
from presets import Preset

PIPELINES = ("WanCausalDMDPipeline",)  # the class in hao-ai-lab/FastVideo, used by wlsaidhi/SFWan2.1-T2V-1.3B-Diffusers
TRANSFORMER = "CausalWanTransformer3DModel"
TRAINED_FRAMES = 21  # default length of the longest window in training, in latent frames: 81 pixel frames, as in Self-Forcing
BLOCK, WINDOW, SINK, TRAINED = "num_frames_per_block", "local_attn_size", "sink_size", "sliding_window_num_frames"
RECACHE, FIRST_STEPS = "kv_recache", "first_block_steps"
TRAINING = (BLOCK, WINDOW, SINK, TRAINED, RECACHE, FIRST_STEPS)
SUPPORTED = "causal Wan 2.1 T2V (Self-Forcing, LongLive, Causal-Forcing), in FastVideo's layout or as its authors' .pt file"


@dataclasses.dataclass(frozen=True, kw_only=True)
class CausalWanSpec(WanSpec):
    """The spec of a causal Wan model.

    Attributes:
        chunk: the number of latent frames in a block.
        window: the number of latent frames that a block sees, including the block's own latent frames.
        sink: the number of the video's first latent frames that always stay in the window.
        trained: the longest window in training, in latent frames.
        recaches: true if a new prompt recomputes the keys and values of the latent frames in the window.
        first_steps: the minimum number of steps of the first block, also for requests with fewer steps.
    """

    chunk: int
    live: bool = True
    window: int
    sink: int
    trained: int
    recaches: bool = False
    first_steps: int = 1


class CausalWanFamily(WanFamily):
    """The family of causal Wan. See `backend.models.spec.Family`."""

    name = "causal-wan"
    supports = SUPPORTED
    pipelines = PIPELINES
    body = "backend.models.causal_wan.model:CausalWanModel"

    def read_spec(self, index: Config, configs: Configs) -> CausalWanSpec:
        check_networks(index, configs, TRANSFORMER)
        if configs["transformer"]["in_channels"] != configs["vae"]["z_dim"]:
            raise channel_mismatch(configs, configs["vae"]["z_dim"], SUPPORTED)
        spec = _make_spec(configs)
        check_window(spec)
        return spec

    def complete_checkpoint(self, checkpoint: Checkpoint, preset: Preset | None) -> Checkpoint:
        """See `Family`. The sizes in the transformer's configuration follow from the shapes of the tensors.

        An entry about training (`TRAINING`) that config.json lacks is from the preset.
        """
        own_config = checkpoint.configs.get(PART, {})
        expected = preset.network_configs().get(PART, {}) if preset else {}
        tensors, name = checkpoint.tensors(PART), file_path(checkpoint.transformer_files[PART]).name
        if find_sparse_attention(tensors) is not None:
            raise ModelError(
                f"{name} was trained with sparse attention,",
                "and live models attend to all tokens in their window",
                "choose the preset of this file's own model, or the file of a live model",
            )
        sizes = transformer_config({name: place.shape for name, place in tensors.items()})
        if sizes is None:
            raise unsupported_checkpoint(f"{name} has no transformer with Wan's original tensor names", [SUPPORTED])
        training = {name: config[name] for config in (expected, own_config) for name in TRAINING if name in config}
        configs = checkpoint.configs | {PART: {"_class_name": TRANSFORMER} | sizes | training}
        index = checkpoint.index | {"_class_name": PIPELINES[0]}
        return dataclasses.replace(checkpoint, index=index, configs=configs)

    def step_flops(self, configs: Configs, request: VideoSettings, branches: int) -> StepFlops:
        """See `Family`. The result is for one block whose tokens attend to a full attention window."""
        spec, geometry = _make_spec(configs), request.geometry()
        frame = geometry.num_tokens // geometry.num_latent_frames
        frames = min(spec.chunk, geometry.num_latent_frames)
        return transformer_flops(configs["transformer"], frames * frame, spec.window * frame, branches, request.quantize)


CAUSAL_WAN = CausalWanFamily()


def is_causal(checkpoint: Checkpoint, preset: Preset | None) -> bool:
    """Return whether a Wan checkpoint's single-file transformer is causal. The names and shapes of the tensors do not show it.

    A file counts as causal if config.json or the preset names the class of the causal transformer. A PyTorch file counts as
    causal without this name too, unless it has tensors of sparse attention. The authors of causal Wan publish PyTorch files.
    """
    configs = checkpoint.configs, preset.network_configs() if preset else {}
    named = [config.get(PART, {}).get("_class_name") for config in configs]
    if TRANSFORMER in named or not isinstance(checkpoint.transformer_files[PART], TorchFile):
        return TRANSFORMER in named
    return find_sparse_attention(checkpoint.tensors(PART)) is None


def _make_spec(configs: Configs) -> CausalWanSpec:
    transformer = configs["transformer"]
    trained, window = transformer.get(TRAINED, TRAINED_FRAMES), transformer.get(WINDOW, -1)
    return CausalWanSpec(
        name="wan2.1-live",
        tasks=("t2v", "i2v"),
        inputs={"image": "may"},
        first_only=("image",),
        conditioning="none",
        scales=vae_scales(configs),
        chunk=transformer.get(BLOCK, 3),
        actions=tuple(transformer.get("actions", ())),
        window=trained if window < 0 else window,
        sink=transformer.get(SINK, 0),
        trained=trained,
        recaches=bool(transformer.get(RECACHE, False)),
        first_steps=transformer.get(FIRST_STEPS, 1),
    )


def check_window(spec: CausalWanSpec) -> None:
    """Check the attention window. Raises: ModelError if a block does not fit, or if it is longer than in training."""
    if not 0 < spec.chunk <= spec.window - spec.sink <= spec.window <= spec.trained:
        raise ModelError(
            f"transformer/config.json says {BLOCK}={spec.chunk}, {WINDOW}={spec.window}, {SINK}={spec.sink},"
            f" {TRAINED}={spec.trained}:",
            f"must satisfy 0 < {BLOCK} <= {WINDOW} - {SINK} and {WINDOW} <= {TRAINED}",
            "give a checkpoint whose transformer/config.json describes its training",
        )

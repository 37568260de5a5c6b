"""The part of a model family that imports jax: its networks, and the work from a request to pixels.

The pipeline uses every family through the protocol `Model`. A model yields all device work as effects (see
`backend.runtime.work`), so running, compiling ahead and `check-tpu` share one description of this work.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import jax
import jax.numpy as jnp
import numpy as np

from backend.models.spec import Configs, ModelSpec
from backend.runtime.context import RuntimeContext
from backend.runtime.mesh import Layout
from backend.runtime.program import Compiler
from backend.runtime.work import Effects, Work
from backend.sampling.solvers import SamplerState, StepInputs
from backend.schemas.request import GenerationRequest
from backend.schemas.step_plan import StepPlan
from backend.weights.stacked import StackedWeights
from presets.loader import Quantize

Stage = Literal["encode", "denoise", "decode"]
STAGES: tuple[Stage, ...] = get_args(Stage)

Weights = Mapping[str, Any]
"""The weights of each network by the name of its folder: arrays, or their shapes and shardings (`jax.ShapeDtypeStruct`)."""

Conditions = Mapping[str, np.ndarray]
"""All inputs of the denoiser besides noise, for one prompt at one size, as host arrays by name."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PromptConditions:
    """The conditions of one prompt. In steps at half size, conditions in `half` replace conditions of the same name."""

    full: Conditions
    half: Conditions = dataclasses.field(default_factory=dict)

    def select_size(self, is_full: bool) -> Conditions:
        """Return the conditions for steps at full size if `is_full`, else for steps at half size."""
        return self.full if is_full else {**self.full, **self.half}


Inputs = Mapping[str, Sequence[Any]]
"""The opened inputs of the request by role.

Images are cropped to the video's size. Videos are uint8 [F, H, W, 3]; a driving video is read segment by segment. Audio is
float32 [2, N] with 16,000 samples a second. The role "sound" also has the audio of a clip that the video extends.
"""

VIDEO, SOUND = "video", "sound"
"""The names of a model's streams. Every model has a video stream. Models whose `ModelSpec` has a `sound_rate` also have an audio
stream."""

Latents = Mapping[str, Any]
"""The latents of each stream by name, float32 [B, C, T, ...]. Axis 2 is time. Video latents are [B, C, F, H, W]."""

States = Mapping[str, SamplerState]
"""The sampler state of each stream by name."""

StepState = Any
"""Arrays that one step passes to the next besides the sampler states, such as a cache. Each family defines its own type."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Network:
    """The facts about a network that the loader needs.

    Attributes:
        part: the name of the network's folder in the checkpoint.
        described: shapes, dtypes and shardings of the weights as the checkpoint has them.
        arrange: function that converts the weights to the form that programs use, None if both forms are equal.
        arranged: shapes, dtypes and shardings of the result of `arrange`.
        renamed: function that converts a tensor's name in a file to its name in the installed transformers or diffusers library.
        tied: names of weights that are all the same tensor. A checkpoint can have any of these names.
        expert: index of a transformer that LoRAs may change, None for other networks.
    """

    part: str
    stages: frozenset[Stage]
    described: StackedWeights | dict[str, jax.Array]
    arranged: Any = None
    arrange: Callable[[Any], Any] | None = None
    renamed: Callable[[str], str] = str
    tied: tuple[str, ...] = ()
    expert: int | None = None

    @property
    def program_weights(self) -> object:
        return self.described if self.arranged is None else self.arranged


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelPlan:
    """The arguments of a `Model`.

    Attributes:
        folder: the folder of the checkpoint, None if no checkpoint is read.
        mesh: fixed sizes of the mesh axes by name, None for an axis whose size `plans.plan_layouts` chooses.
        stages: the stages whose networks are loaded.
        quantize: number format of the transformers' large matrices, "off" for `dtype`.
        num_copies: number of matrices of a layer of which every chip has a copy. If None, `plans.plan_layouts` chooses it.
    """

    spec: ModelSpec
    configs: Configs
    folder: Path | None
    devices: Sequence[jax.Device]
    mesh: Mapping[str, int | None]
    stages: frozenset[Stage]
    dtype: jnp.dtype
    compiler: Compiler
    quantize: Quantize = "off"
    num_copies: int | None = None
    runtime: RuntimeContext = dataclasses.field(default_factory=RuntimeContext)


class StepContext(Protocol):
    """The data that all steps of one expert share, with or without guidance. The programs run on `layout`."""

    expert: int
    is_guided: bool
    layout: Layout


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionLengths:
    """The sizes of one chip's attention in a step.

    In self-attention, `queries` tokens attend to `keys` tokens in `heads` heads. In cross-attention, `text_queries` tokens attend
    to `text` tokens of the prompt in `text_heads` heads. In some models the tokens of each frame also attend to the same frame of
    a driving video. There, `beside` has two numbers: the tokens of a frame, and the product of the numbers of heads, frames and
    samples.
    """

    heads: int
    head_width: int
    queries: int
    keys: int
    text_heads: int
    text_queries: int
    text: int
    batch: int
    beside: tuple[int, int] | None = None


class Model(Protocol):
    """The networks of a checkpoint and their programs, without weights. Methods take the weights as an argument.

    Methods that return a generator describe work. `runtime.work.run` runs the work. `runtime.work.describe` computes only the
    shapes of the results.
    """

    spec: ModelSpec
    dtype: jnp.dtype
    networks: tuple[Network, ...]

    def __init__(self, plan: ModelPlan) -> None:
        """Create the networks. Raises: ModelError for a broken tokenizer, RequestError for an illegal mesh."""

    def layout(self, is_guided: bool) -> Layout:
        """Return the layout of guided or unguided steps. Weights have the same shardings in both layouts."""

    def latent_shapes(self, request: GenerationRequest) -> dict[str, tuple[int, ...]]:
        """Return the shape of the latents of each stream by name, video first. Noise is drawn in this order."""

    def notes(self, request: GenerationRequest) -> list[str]:
        """Return sentences for the user about how the model reads the request, such as prompts that are cut."""

    def prompts_for_all_programs(self, example: str) -> list[str]:
        """Return prompts, built from `example`: one for each length of text that has its own compiled programs."""

    def encode(self, weights: Weights, request: GenerationRequest, inputs: Inputs) -> Effects[PromptConditions]:
        """Encode the prompts and `inputs` to the conditions: the denoiser's inputs besides noise. Yields work."""

    def make_step_context(
        self, weights: Weights, request: GenerationRequest, conditions: Conditions, step_plan: StepPlan, step_state: StepState
    ) -> Effects[tuple[StepContext, StepState]]:
        """Return the step context for `step_plan`, and the step state for the first step in this context. Yields work.

        The argument `step_state` is the step state after the last step in the previous context, None for the first context.
        """

    def encode_flops(self, request: GenerationRequest) -> float:
        """Return the floating-point operations of `encode`."""

    def decode_flops(self, request: GenerationRequest) -> float:
        """Return the floating-point operations for decoding the whole video."""

    def start(self, request: GenerationRequest, conditions: Conditions, noise: Latents) -> States:
        """Return the sampler states before the first step of a chunk: `noise`, or the latents of a clip to restyle with noise.

        This method is pure, because jax also traces it.
        """

    def step(
        self,
        weights: Weights,
        request: GenerationRequest,
        step_context: StepContext,
        states: States,
        step_inputs: StepInputs,
        step_state: StepState,
        index: int,
    ) -> Effects[tuple[States, StepState]]:
        """Take step `index` (0 is the first) of the solver for all streams (video, audio). Yields work.

        The positions of context windows, the steps that CFG-Zero* skips, and the fresh noise depend on `index`.
        """

    def commit_chunk(
        self, weights: Weights, request: GenerationRequest, step_context: StepContext, clean: Latents, step_state: StepState
    ) -> Effects[StepState]:
        """Add the clean latents of a finished chunk to the step state. Yields work."""

    def skipped_steps(self, step_state: StepState) -> int:
        """Return how many steps reused an earlier step's output, as counted in the step state."""

    def finish(self, conditions: Conditions, latents: Latents) -> Effects[Latents]:
        """Return the latents to decode, with the latents of inputs, and without latent frames that are not part of the video.

        Yields work.
        """

    def enlarge(self, weights: Weights, request: GenerationRequest, latents: jax.Array) -> Work:
        """Enlarge the video's clean latents to twice the width and height. Yields work. Only for specs with `refines`."""

    def decode(self, weights: Weights, request: GenerationRequest, latents: jax.Array, step_state: StepState) -> Work:
        """Decode `latents`, the video's next `decode_stride` latent frames. Yields work.

        `step_state` is the decoder's state from the previous call, None for the first call. Returns: pixels [1, 3, F, height,
        width] in [-1, 1], and the decoder's new state.
        """

    decode_stride: int

    segment: int | None
    """Number of latent frames per segment, None without segments.

    Segments are decoded separately. Each later segment drops its first pixel frame, which repeats the previous segment's last
    frame.
    """

    def preview(self, weights: Weights, request: GenerationRequest, latents: jax.Array) -> Work:
        """Decode `latents`, the first `preview_stride` latent frames, to pixels [1, 3, F, height, width] in [-1, 1]. Yields work.

        The first pixel frame is the preview.
        """

    preview_stride: int

    def decode_sound(self, weights: Weights, request: GenerationRequest, latents: jax.Array) -> Work:
        """Decode all audio latents to audio [channels, samples] in [-1, 1] at the spec's `sound_rate`. Yields work."""

    def attention_lengths(self, request: GenerationRequest) -> AttentionLengths | None:
        """Return the sizes of one chip's attention in a step, or None if the model does not use the attention kernel."""

"""The heavy half of a model family: its networks, and the work from a request to pixels. Imports jax.

The pipeline drives every family through `Model` and knows none of them. A model yields as work whatever it does on its devices
(see `backend.runtime.work`), so that loading, running, compiling ahead, `precompile` and `check-tpu` share one description.
"""

import dataclasses
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import jax
import jax.numpy as jnp
import numpy as np

from backend.models.spec import Configs, Kind
from backend.runtime.mesh import Layout
from backend.runtime.program import Compiler
from backend.runtime.work import Effect
from backend.sampling.plan import StepPlan
from backend.sampling.solvers import SamplerState, StepInputs
from backend.schemas.request import GenerationRequest
from backend.weights.stacked import StackedWeights

Stage = Literal["encode", "denoise", "decode"]
STAGES: tuple[Stage, ...] = get_args(Stage)

Weights = Mapping[str, Any]
"""A network's weights by the checkpoint's part: arrays, or their shapes with places (`jax.ShapeDtypeStruct`)."""

Conditions = Mapping[str, np.ndarray]
"""All inputs of the denoiser besides noise, as host arrays by name. The stage files store them unchanged."""

Inputs = Mapping[str, Sequence[Any]]
"""The request's opened inputs by role: pictures cropped to the video's size, videos as uint8 [F, H, W, 3], one that drives
segment by segment, sounds as float32 [2, N] with 16,000 samples a second. Of the role "sound" is also what is heard of a clip
after which the video goes on."""

VIDEO, SOUND = "video", "sound"
"""The names of a model's streams: every model makes the one, and those whose `Kind` has a `sound_rate` the other too."""

Latents = Mapping[str, Any]
"""The latents of each stream by its name, float32 [B, C, T, ...]: axis 2 is time, and the video's are [B, C, F, H, W]."""

States = Mapping[str, SamplerState]
"""The sampler's state of each stream by its name."""

StepState = Any
"""What one step passes to the next besides the sampler's states, such as a cache; each family defines its own."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Network:
    """One folder of the checkpoint that holds weights, as the loader needs to know it.

    `described` are the shapes, dtypes and places of the weights as the checkpoint has them; `arrange` turns them into what
    programs take, and `arranged` describes the result. `renamed` turns a name in the file into the installed libraries' name;
    `tied` are names of one tensor. `expert` is the number of a transformer that LoRAs may change, None for other networks.
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
    def at_rest(self) -> Any:
        """The shapes and places of the weights as programs take them."""
        return self.described if self.arranged is None else self.arranged


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelPlan:
    """Everything that a model is built from. `folder` is its checkpoint, None if it is only described; `mesh` are the sizes of
    the mesh's axes that are fixed, by name; `stages` are those whose networks are loaded; `num_copies` is of how many of a
    layer's matrices every chip keeps a copy, None to let the table of plans or the rule say it."""

    kind: Kind
    configs: Configs
    folder: Path | None
    devices: Sequence[jax.Device]
    mesh: Mapping[str, int | None]
    stages: frozenset[Stage]
    dtype: jnp.dtype
    compiler: Compiler
    num_copies: int | None = None


class StepContext(Protocol):
    """Everything that the steps of one expert, guided or not, share. Its programs run on `layout`."""

    expert: int
    is_guided: bool
    layout: Layout


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionLengths:
    """One chip's attention in a step: self-attention of `heads` over `queries` x `keys`, cross-attention to `text` keys. Where
    the tokens see a clip beside the video, frame by frame, `beside` are the queries and as many keys of a frame, and the heads
    of all frames together."""

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
    """One checkpoint's networks without weights, and their programs. Weights are passed to every method that needs them.

    Methods that return a generator are work: run it with `runtime.work.run`, or describe it from shapes alone.
    """

    kind: Kind
    dtype: jnp.dtype
    networks: tuple[Network, ...]

    def __init__(self, plan: ModelPlan) -> None:
        """Raises: ModelError for a broken tokenizer, RequestError for a mesh that the devices or the model do not allow."""

    def layout(self, is_guided: bool) -> Layout:
        """The mesh of a step with both guidance branches, or with one. Weights lie in the same places on both."""

    def latent_shapes(self, request: GenerationRequest) -> dict[str, tuple[int, ...]]:
        """The shape of each stream's latents by its name, the video's first; noise is drawn in this order."""

    def notes(self, request: GenerationRequest) -> list[str]:
        """What the user should know about how the request is read, a sentence each."""

    def prompts_for_all_programs(self, example: str) -> list[str]:
        """Prompts made from this one, each of which needs other programs; a single one if one program serves all lengths."""

    def encode(self, weights: Weights, request: GenerationRequest, inputs: Inputs) -> Generator[Effect, Any, Conditions]:
        """Work: encodes text and inputs for the denoiser."""

    def make_step_context(
        self, weights: Weights, request: GenerationRequest, conditions: Conditions, step_plan: StepPlan, step_state: StepState
    ) -> Generator[Effect, Any, tuple[StepContext, StepState]]:
        """Work: what the steps of one expert share, made before the first of them, and their carry. The `step_state` given is the
        last lane's, None at the beginning of a video."""

    def encode_flops(self, request: GenerationRequest) -> float:
        """The floating-point operations of `encode`, for the rate at which the devices work."""

    def decode_flops(self, request: GenerationRequest) -> float:
        """Those of decoding the whole video."""

    def start(self, request: GenerationRequest, conditions: Conditions, noise: Latents) -> States:
        """The sampler's states before the first step of a chunk, from that chunk's noise and a clip's latents, if there are any.
        Pure: it is also traced."""

    def step(
        self,
        weights: Weights,
        request: GenerationRequest,
        step_context: StepContext,
        states: States,
        step_inputs: StepInputs,
        step_state: StepState,
        index: int,
    ) -> Generator[Effect, Any, tuple[States, StepState]]:
        """Work: one step of the solver for all streams; `index` is its number, 0 or more, in which only the places of context
        windows follow."""

    def commit_chunk(
        self, weights: Weights, request: GenerationRequest, step_context: StepContext, clean: Latents, step_state: StepState
    ) -> Generator[Effect, Any, StepState]:
        """Work: after a chunk, add its clean latents to the carry. If a video is one chunk, the carry does not change."""

    def skipped_steps(self, step_state: StepState) -> int:
        """How many steps reused an earlier one's work, as counted in this carry."""

    def finish(self, conditions: Conditions, latents: Latents) -> Generator[Effect, Any, Latents]:
        """Work: clean latents, with the latents of given frames put back in their places."""

    def enlarge(self, weights: Weights, request: GenerationRequest, latents: Any) -> Generator[Effect, Any, Any]:
        """Work: the video's clean latents at twice their size on both sides. Asked for only where the kind `enlarges`."""

    def decode(
        self, weights: Weights, request: GenerationRequest, latents: Any, step_state: StepState
    ) -> Generator[Effect, Any, Any]:
        """Work: the next piece's pixels [1, 3, F, H, W] in [-1, 1] and the carry for the piece after it; `latents` are the next
        `decode_stride` latent frames of the video, `step_state` is None for the first piece."""

    decode_stride: int

    segment: int | None
    """How many latent frames of the video are decoded by themselves, as those after them are; the first pixel frame of each such
    segment but the first is left out, because the one before ended with it. None for a video that is decoded in one go."""

    def preview(self, weights: Weights, request: GenerationRequest, latents: Any) -> Generator[Effect, Any, Any]:
        """Work: pixels [1, 3, F, H, W] in [-1, 1] of the first `preview_stride` latent frames, whose first picture is shown while
        the next step runs."""

    preview_stride: int

    def decode_sound(self, weights: Weights, request: GenerationRequest, latents: Any) -> Generator[Effect, Any, Any]:
        """Work: the whole sound [channels, samples] in [-1, 1] at the kind's `sound_rate`, from the sound's latents. Asked for
        only where the kind has such a rate."""

    def attention_lengths(self, request: GenerationRequest) -> AttentionLengths | None:
        """What one chip attends to in a step, for predictions; None for a model that does not use our attention kernel."""

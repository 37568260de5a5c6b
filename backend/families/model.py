"""What a model family's body is: its networks, and the work from a request to pixels. Heavy: brings jax.

The pipeline drives every family through `Model` and knows none of them. What a model does on its devices it yields as work (see
`backend.runtime.work`), so that loading, running, compiling ahead, `precompile` and `check-tpu` share one description.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image

from backend.contract.request import GenerationRequest
from backend.families.family import Configs, Kind
from backend.runtime.mesh import Layout
from backend.runtime.program import Compiler
from backend.runtime.work import Effect
from backend.sampling.plan import PlannedStep
from backend.sampling.solvers import SamplerState, StepInputs
from backend.weights.stacked import StackedWeights

Stage = Literal["encode", "denoise", "decode"]
STAGES: tuple[Stage, ...] = get_args(Stage)

Weights = Mapping[str, Any]
"""A network's weights by the checkpoint's part: arrays, or their shapes with places (`jax.ShapeDtypeStruct`)."""

Conditions = Mapping[str, np.ndarray]
"""All that the denoiser is given besides noise, as host arrays by name. The stage files keep them as they are."""

Inputs = Mapping[str, Sequence[Image.Image | np.ndarray]]
"""What the request starts from, by role: pictures cropped to the video's size, videos as uint8 [F, H, W, 3]."""

Carry = Any
"""What one step hands to the next besides the sampler's state, such as a cache; its meaning is the family's own."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Network:
    """One folder of the checkpoint that holds weights, as the loader needs to know it.

    `described` are the shapes, dtypes and places of the weights as the checkpoint has them; `arrange` makes of them what programs
    take, and `arranged` describes that. `renamed` gives a tensor's name in the installed libraries from the one in the file;
    `tied` are names of one tensor. `expert` is the number of a transformer that LoRAs may change, None for other networks.
    """

    part: str
    stages: frozenset[Stage]
    described: StackedWeights | dict[str, jax.ShapeDtypeStruct]
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
    """Everything that a model is built from. `folder` is its checkpoint, None where it is only described; `mesh` are the sizes of
    the mesh's axes that are fixed, by name; `stages` those whose networks are loaded."""

    kind: Kind
    configs: Configs
    folder: Path | None
    devices: Sequence[jax.Device]
    mesh: Mapping[str, int | None]
    stages: frozenset[Stage]
    dtype: jnp.dtype
    compiler: Compiler


class Lane(Protocol):
    """All that the steps of one expert, guided or not, have in common. Where its programs run is `layout`."""

    expert: int
    is_guided: bool
    layout: Layout


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionLengths:
    """One chip's attention in a step: self-attention of `heads` over `queries` x `keys`, cross-attention to `text` keys."""

    heads: int
    head_width: int
    queries: int
    keys: int
    text_heads: int
    text_queries: int
    text: int
    batch: int


class Model(Protocol):
    """One checkpoint's networks without weights, and their programs. Weights are handed to every method that needs them.

    Methods that return a generator are work: run it with `runtime.work.run`, or describe it from shapes alone.
    """

    kind: Kind
    dtype: jnp.dtype
    networks: tuple[Network, ...]

    def __init__(self, plan: ModelPlan) -> None:
        """Raises: ModelError for a broken tokenizer, RequestError for a mesh that the devices or the model do not allow."""

    def layout(self, is_guided: bool) -> Layout:
        """The mesh of a step with both guidance branches, or with one. Weights lie alike on both."""

    def latent_shape(self, request: GenerationRequest) -> tuple[int, int, int, int, int]:
        """The latents' shape, B C F H W."""

    def notes(self, request: GenerationRequest) -> list[str]:
        """What one should know of how the request will be read, a sentence each."""

    def prompts_for_all_programs(self, example: str) -> list[str]:
        """Prompts made of this one, for each of which other programs are compiled: one where one program serves all lengths."""

    def encode(self, weights: Weights, request: GenerationRequest, inputs: Inputs) -> Generator[Effect, Any, Conditions]:
        """Work: text and inputs to what the denoiser needs."""

    def lane(
        self, weights: Weights, request: GenerationRequest, conditions: Conditions, planned: PlannedStep, carry: Carry
    ) -> Generator[Effect, Any, tuple[Lane, Carry]]:
        """Work: what the steps of one expert share, from the first of them on, and the carry for them. `carry` is the last
        lane's, None at the beginning of a video."""

    def start(self, request: GenerationRequest, conditions: Conditions, noise: np.ndarray) -> SamplerState:
        """The sampler's state before the first step of a chunk, from that chunk's noise."""

    def step(
        self, weights: Weights, request: GenerationRequest, lane: Lane, state: SamplerState, row: StepInputs, carry: Carry
    ) -> Generator[Effect, Any, tuple[SamplerState, Carry]]:
        """Work: one step of the solver."""

    def settle(
        self, weights: Weights, request: GenerationRequest, lane: Lane, clean: Any, carry: Carry
    ) -> Generator[Effect, Any, Carry]:
        """Work: after a chunk, take its clean latents into the carry. Where a video is one chunk the carry stays as it is."""

    def spared_steps(self, carry: Carry) -> int:
        """How many steps reused an earlier one's work, as far as this carry knows."""

    def finish(self, conditions: Conditions, latents: Any) -> Generator[Effect, Any, Any]:
        """Work: clean latents with given frames put back in their places."""

    def decode(self, weights: Weights, request: GenerationRequest, latents: Any, carry: Carry) -> Generator[Effect, Any, Any]:
        """Work: the next piece's pixels [1, 3, F, H, W] in [-1, 1] and the carry for the piece after it; `latents` are the next
        `decode_stride` latent frames, `carry` is None for the first piece."""

    decode_stride: int

    def attention_lengths(self, request: GenerationRequest) -> AttentionLengths | None:
        """What one chip attends to in a step, for predictions; None for a model that does not use our attention kernel."""

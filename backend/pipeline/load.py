"""A checkpoint in diffusers' layout -> networks with their weights on the device and their programs."""

from __future__ import annotations

import dataclasses
import functools
import gc
import importlib.metadata
import platform
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from transformers import AutoTokenizer, CLIPImageProcessorPil, PreTrainedTokenizerBase

from backend.checkpoints.checkpoint import AGAIN, Checkpoint
from backend.checkpoints.tensors import check_shapes
from backend.chips import memory_bytes
from backend.contract.events import Event
from backend.errors import ModelError
from backend.families.wan.attention import Positions
from backend.families.wan.family import IMAGE_ENCODER, Architecture, Family
from backend.families.wan.image_encoder import ImageEncoder
from backend.families.wan.text_encoder import LENGTHS, MAX_SEQUENCE_LENGTH, TextEncoder
from backend.families.wan.transformer import Condition, Denoiser, StepCache, TextContext
from backend.families.wan.vae import VideoAutoencoder
from backend.pipeline.model_files import lora_file, open_model
from backend.runtime.executables import ExecutableFolders
from backend.runtime.mesh import Layout, plan_copies, plan_mesh
from backend.runtime.program import Compiler, Program, compile_now
from backend.sampling.solvers import SamplerState, StepInputs, advance, guide
from backend.settings import from_environment
from backend.weights.expert import Expert
from backend.weights.lora import ScaledLora, read_lora
from backend.weights.parking import device_bytes, parked, should_park
from backend.weights.read import Part, Progress, check_flat, checkpoint_shapes, load_flat
from backend.weights.stacked import DenoiserWeights
from presets import LoraChoice, Preset

EXPERT_NAMES = ("high", "low")  # of two experts, in their order
Stage = Literal["encode", "denoise", "decode"]
STAGES: tuple[Stage, ...] = get_args(Stage)
LIBRARIES = ("jax", "jaxlib", "torch", "torchax", "diffusers", "transformers")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Programs:
    """One mesh, the networks laid out on it, and everything that the compiler sees there, in the order of a run."""

    layout: Layout
    denoiser: Denoiser
    vae: VideoAutoencoder
    embed_text: Program
    embed_image: Program | None
    prepare_text: Program
    encode_image: Program
    encode_first: Program
    encode_next: Program
    step: Program
    cached_step: Program
    decode_first: Program
    decode_next: Program


@dataclasses.dataclass(frozen=True, kw_only=True)
class Components:
    """One loaded model. `experts` are its transformers, the high-noise one first; below `boundary` (a share of the noise) the
    second one works. Other weights are dictionaries by checkpoint name.

    `guided` are the programs of a run with both guidance branches, `unguided` those of a run with the prompt's alone; both
    use all devices and the same weights.
    """

    family: Family
    text_encoder: TextEncoder
    text_weights: dict[str, jax.Array]
    image_encoder: ImageEncoder | None
    image_weights: dict[str, jax.Array]
    experts: tuple[Expert, ...]
    boundary: float | None
    vae_weights: dict[str, jax.Array]
    guided: Programs
    unguided: Programs
    dtype: jnp.dtype
    versions: dict[str, str]

    def programs(self, is_guided: bool) -> Programs:
        """Those for a run, or a step, with both branches or with one."""
        return self.guided if is_guided else self.unguided

    def describe_weights(self) -> DenoiserWeights:
        """Any expert's shapes and places."""
        return self.guided.denoiser.describe_weights(self.dtype)


def load(
    preset: Preset,
    model: str | None,
    on_event: Callable[[Event], None],
    mesh: Mapping[str, int | None] | None = None,
    executables: Path | None = None,
    stages: Collection[Stage] = STAGES,
) -> Components:
    """Load the preset's model, or the checkpoint `model` (a folder or a Hub id) in its place, telling how many bytes are read.

    `mesh` fixes axes of the mesh by name; `executables` is a folder of precompiled programs. Networks that none of the `stages`
    uses stay on the disk; the autoencoder serves all three. Raises: ModelError where the checkpoint is missing, incomplete or
    of another kind; RequestError where the devices or the model do not allow the mesh; whatever `on_event` raises.
    """
    _use_compilation_cache()
    gc.collect()  # whatever model was here before leaves the devices first
    checkpoint, family = open_model(preset, model, on_event)
    architecture, dtype = checkpoint.architecture, jnp.dtype(preset.dtype)
    text_encoder = TextEncoder(architecture.text_encoder, _tokenizer(checkpoint), _text_lengths())
    image_encoder = _image_encoder(checkpoint)
    compiler = ExecutableFolders([folder for folder in (executables, from_environment().executables_dir) if folder])
    guided, unguided = (
        make_programs(architecture, text_encoder, layout, image_encoder, compiler=compiler)
        for layout in plan_layouts(architecture, jax.devices(), mesh, num_experts=family.num_experts, dtype=dtype)
    )
    num_experts = family.num_experts if "denoise" in stages else 0
    described_text = describe_text_weights(text_encoder, guided, dtype, num_experts)
    weights = _load_weights(checkpoint, described_text, image_encoder, guided, preset, on_event, stages)
    return Components(
        family=family,
        text_encoder=text_encoder,
        image_encoder=image_encoder,
        guided=guided,
        unguided=unguided,
        dtype=dtype,
        boundary=_boundary(checkpoint, preset),
        **weights,
        versions={"python": platform.python_version()} | {name: importlib.metadata.version(name) for name in LIBRARIES},
    )


def _load_weights(
    checkpoint: Checkpoint,
    described_text: dict[str, jax.ShapeDtypeStruct],
    image_encoder: ImageEncoder | None,
    programs: Programs,
    preset: Preset,
    on_event: Callable[[Event], None],
    stages: Collection[Stage],
) -> dict[str, Any]:
    """The stages' weights, part by part, the preset's own LoRAs merged; every file is known to fit before the first is read."""
    layout, dtype = programs.layout, jnp.dtype(preset.dtype)
    transformers = checkpoint.transformers if "denoise" in stages else ()
    flat = {"vae": programs.vae.describe_weights(dtype)}
    if "encode" in stages:
        flat["text_encoder"] = described_text
        if image_encoder is not None:
            flat[IMAGE_ENCODER] = image_encoder.describe_weights(dtype, layout)
    parts = {name: Part(checkpoint.folder, name) for name in (*transformers, *flat)}
    progress = Progress(sum(part.num_bytes for part in parts.values()), on_event)
    described = programs.denoiser.describe_weights(dtype)
    shapes = checkpoint_shapes(described)
    for name in transformers:
        check_shapes(name, parts[name].places, shapes)
    for name, leaves in flat.items():
        check_flat(parts[name], leaves)
    text, image = (
        load_flat(parts[name], flat[name], progress) if name in flat else {} for name in ("text_encoder", IMAGE_ENCODER)
    )
    experts = tuple(
        Expert(parts[name], described, progress, _loras_of(index, preset.loras, shapes, on_event))
        for index, name in enumerate(transformers)
    )
    vae = programs.vae.arrange(load_flat(parts["vae"], flat["vae"], progress))
    return {"text_weights": text, "image_weights": image, "experts": experts, "vae_weights": vae}


def describe_text_weights(
    text_encoder: TextEncoder, programs: Programs, dtype: jnp.dtype, num_experts: int
) -> dict[str, jax.ShapeDtypeStruct]:
    """The text encoder's weights where they rest: on the host if the devices have too little room for them beside the others."""
    described = text_encoder.describe_weights(dtype, programs.layout)
    others = num_experts * device_bytes(programs.denoiser.describe_weights(dtype))
    others += device_bytes(programs.vae.describe_arranged(dtype))
    memory = memory_bytes(programs.layout.mesh.devices.flat[0].device_kind)
    return parked(described) if should_park(device_bytes(described) + others, memory) else described


def _boundary(checkpoint: Checkpoint, preset: Preset) -> float | None:
    """The checkpoint's own boundary between its experts, or the preset's where it says none."""
    own = checkpoint.index.get("boundary_ratio")
    return own if own is not None else preset.boundary


def _tokenizer(checkpoint: Checkpoint) -> PreTrainedTokenizerBase:
    try:
        return AutoTokenizer.from_pretrained(checkpoint.folder / "tokenizer")
    except (OSError, ValueError, KeyError) as error:
        raise ModelError("The checkpoint's tokenizer folder cannot be read", f"({type(error).__name__})", AGAIN) from error


def _image_encoder(checkpoint: Checkpoint) -> ImageEncoder | None:
    config = checkpoint.architecture.image_encoder
    if config is None:
        return None
    try:
        return ImageEncoder(config, CLIPImageProcessorPil.from_pretrained(checkpoint.folder / "image_processor"))
    except (OSError, ValueError) as error:
        raise ModelError("The checkpoint's image_processor folder cannot be read", f"({type(error).__name__})", AGAIN) from error


def merge_loras(components: Components, choices: Sequence[LoraChoice], on_event: Callable[[Event], None]) -> list[str]:
    """Merge these LoRAs into the experts, and no others; what was used of each, a sentence each.

    Reads and writes nothing where they are merged already. Raises: ModelError, RequestError; whatever `on_event` raises.
    """
    notes = []
    for index, expert in enumerate(components.experts):
        loras = _loras_of(index, choices, expert.shapes, on_event)
        which = f" (the {EXPERT_NAMES[index]}-noise expert)" if len(components.experts) > 1 else ""
        notes += [lora.file.report() + which for lora in loras]
        expert.merge(loras, on_event)
    return notes


def _loras_of(
    index: int, choices: Sequence[LoraChoice], shapes: Mapping[str, tuple[int, ...]], on_event: Callable[[Event], None]
) -> tuple[ScaledLora, ...]:
    """What these choices change in one expert."""
    chosen = [choice for choice in choices if choice.expert in ("both", EXPERT_NAMES[index]) and choice.scale]
    return tuple(ScaledLora(file=read_lora(lora_file(choice, on_event), shapes, index), scale=choice.scale) for choice in chosen)


def _text_lengths() -> tuple[int, ...]:
    """On a TPU the full length only: its attention kernel takes no bias for shortened padding."""
    return (MAX_SEQUENCE_LENGTH,) if jax.default_backend() == "tpu" else LENGTHS


def plan_layouts(
    architecture: Architecture,
    devices: Sequence[jax.Device],
    mesh: Mapping[str, int | None] | None = None,
    *,
    num_experts: int,
    dtype: jnp.dtype,
) -> tuple[Layout, Layout]:
    """All the devices for a guided run, and for an unguided one, in the same order; weights lie alike in both.

    Raises: RequestError.
    """
    sizes, memory = architecture.block_matrix_bytes(dtype.itemsize), memory_bytes(devices[0].device_kind)
    plans = []
    for is_guided in (True, False):
        asked = {axis: size for axis, size in (mesh or {}).items() if is_guided or axis == "tp"}
        plans.append(plan_mesh(len(devices), heads=architecture.heads, is_guided=is_guided, asked=asked))
    copied = plan_copies(sizes, architecture.num_layers, plans[0], memory, num_experts)
    return tuple(Layout.over(plan, devices, copied) for plan in plans)


def make_programs(
    architecture: Architecture,
    text_encoder: TextEncoder,
    layout: Layout,
    image_encoder: ImageEncoder | None = None,
    *,
    compiler: Compiler = compile_now,
) -> Programs:
    """The networks without weights, and their programs, on one mesh."""
    denoiser, vae = Denoiser(architecture.transformer, layout), VideoAutoencoder(architecture.vae, layout)
    program = functools.partial(Program, layout=layout, compiler=compiler)
    used_up = (2,) if vae.uses_up_caches else ()
    return Programs(
        layout=layout,
        denoiser=denoiser,
        vae=vae,
        embed_text=program("the text encoder", text_encoder.embed),
        embed_image=None if image_encoder is None else program("what the picture shows", image_encoder.embed),
        prepare_text=program("the prompt's keys", denoiser.prepare_text, places=denoiser.place_text),
        encode_image=program("the image encoder", vae.encode_image),
        encode_first=program("the image encoder's first frame", vae.encode_first, places=vae.place_encoded),
        encode_next=program("the image encoder's next frames", vae.encode_next, donated=used_up, places=vae.place_encoded),
        step=program("the denoising step", _step_function(denoiser), donated=(1,)),
        cached_step=program(
            "the denoising step with its cache", _cached_step_function(denoiser), donated=(1, 6), places=denoiser.place_cached
        ),
        decode_first=program("the decoder's first frame", vae.decode_first, places=vae.place_decoded),
        decode_next=program("the decoder", vae.decode_next, donated=used_up, places=vae.place_decoded),
    )


def _step_function(denoiser: Denoiser) -> Callable:
    def step(
        weights: DenoiserWeights,
        state: SamplerState,
        inputs: StepInputs,
        text: TextContext,
        positions: Positions,
        condition: Condition,
    ) -> SamplerState:
        """One guided solver step; latents [1, C, F, H, W] float32."""
        velocity = denoiser.velocity(weights, state.sample, inputs.timestep, text, positions, condition)
        return advance(state, guide(velocity, inputs.guidance), inputs.sigma, inputs.corrector, inputs.predictor)

    return step


def _cached_step_function(denoiser: Denoiser) -> Callable:
    def step(
        weights: DenoiserWeights,
        state: SamplerState,
        inputs: StepInputs,
        text: TextContext,
        positions: Positions,
        condition: Condition,
        cache: StepCache,
        threshold: jax.Array,
    ) -> tuple[SamplerState, StepCache]:
        """The same, reusing the last full step's work where the first layer says that little has changed."""
        sample = state.sample
        velocity, cache = denoiser.cached_velocity(weights, sample, inputs.timestep, text, positions, condition, cache, threshold)
        return advance(state, guide(velocity, inputs.guidance), inputs.sigma, inputs.corrector, inputs.predictor), cache

    return step


def _use_compilation_cache() -> None:
    """Keep compiled programs on disk, so that a second start compiles nothing."""
    folder = from_environment().cache_dir / "jax"
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)

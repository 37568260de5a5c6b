"""A checkpoint folder in diffusers' layout -> networks with their weights on the device and their programs."""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import json
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import torch
from safetensors import safe_open
from transformers import AutoTokenizer

from backend.architecture import PARTS, Architecture
from backend.attention_processor import Positions
from backend.denoiser import Denoiser, DenoiserWeights, FirstFrame, TextContext, guide, split_weights, spread_weights
from backend.errors import ModelError
from backend.events import Event, Loading
from backend.executables import ExecutableFolders
from backend.program import Compiler, Program, compile_now
from backend.sampler import SamplerState, advance
from backend.settings import from_environment
from backend.sharding import Layout, plan_mesh
from backend.text_encoder import LENGTHS, MAX_SEQUENCE_LENGTH, TextEncoder
from backend.vae import VideoAutoencoder
from presets import Preset

LIBRARIES = ("jax", "jaxlib", "torch", "torchax", "diffusers", "transformers")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Programs:
    """One mesh, the networks laid out on it, and everything that the compiler sees there, in the order of a run."""

    layout: Layout
    denoiser: Denoiser
    vae: VideoAutoencoder
    embed_text: Program
    prepare_text: Program
    encode_image: Program
    step: Program
    decode_first: Program
    decode_next: Program


@dataclasses.dataclass(frozen=True, kw_only=True)
class Components:
    """One loaded model. Weights are dictionaries by checkpoint name; `expands_timesteps` as in Wan 2.2 TI2V.

    `guided` are the programs of a run with both guidance branches, `unguided` those of a run with the prompt's alone; both
    use all devices and the same weights.
    """

    text_encoder: TextEncoder
    text_weights: dict[str, jax.Array]
    denoiser_weights: DenoiserWeights
    vae_weights: dict[str, jax.Array]
    guided: Programs
    unguided: Programs
    dtype: jnp.dtype
    expands_timesteps: bool
    versions: dict[str, str]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class StepInputs:
    """One step's row of the schedule, as arrays, so that all steps share one program."""

    timestep: jax.Array
    sigma: jax.Array
    corrector: jax.Array
    predictor: jax.Array
    guidance: jax.Array


def load(
    preset: Preset,
    model: str | None,
    on_event: Callable[[Event], None],
    mesh: Mapping[str, int | None] | None = None,
    executables: Path | None = None,
) -> Components:
    """Load the preset's model, or the checkpoint folder `model` in its place, telling how many bytes are read.

    `mesh` fixes axes of the mesh by name; `executables` is a folder of precompiled programs. Raises: ModelError where the
    checkpoint is missing, incomplete or of another kind; RequestError where the devices or the model do not allow the mesh.
    """
    _use_compilation_cache()
    folder = _checkpoint_folder(model or preset.model_source)
    index = _read_json(folder / "model_index.json")
    dtype = jnp.dtype(preset.dtype)
    reader = _Reader(folder, dtype, on_event)
    architecture = Architecture(**{name: _read_json(folder / name / "config.json") for name in PARTS})
    text_encoder = TextEncoder(architecture.text_encoder, AutoTokenizer.from_pretrained(folder / "tokenizer"), _text_lengths())
    compiler = ExecutableFolders([folder for folder in (executables, from_environment().executables_dir) if folder])
    guided, unguided = (
        make_programs(architecture, text_encoder, plan_layout(architecture, jax.devices(), is_guided, mesh), compiler)
        for is_guided in (True, False)
    )
    layout = guided.layout
    return Components(
        text_encoder=text_encoder,
        text_weights=layout.spread(_with_tied_embedding(reader.read("text_encoder")), layout.text_weight),
        denoiser_weights=spread_weights(split_weights(reader.read("transformer"), architecture.num_layers), layout),
        vae_weights=layout.spread(reader.read("vae"), layout.vae_weight),
        guided=guided,
        unguided=unguided,
        dtype=dtype,
        expands_timesteps=bool(index.get("expand_timesteps", False)),
        versions={"python": platform.python_version()} | {name: importlib.metadata.version(name) for name in LIBRARIES},
    )


def _text_lengths() -> tuple[int, ...]:
    """On a TPU the full length only: its attention kernel takes no bias for shortened padding."""
    return (MAX_SEQUENCE_LENGTH,) if jax.default_backend() == "tpu" else LENGTHS


def plan_layout(
    architecture: Architecture, devices: Sequence[jax.Device], is_guided: bool, mesh: Mapping[str, int | None] | None = None
) -> Layout:
    """All the devices for one run, in the same order whether it is guided or not. Raises: RequestError."""
    asked = {axis: size for axis, size in (mesh or {}).items() if is_guided or axis == "tp"}
    plan = plan_mesh(len(devices), heads=architecture.heads, is_guided=is_guided, asked=asked)
    return Layout.over(plan, devices)


def make_programs(
    architecture: Architecture, text_encoder: TextEncoder, layout: Layout, compiler: Compiler = compile_now
) -> Programs:
    """The networks without weights, and their programs, on one mesh."""
    denoiser, vae = Denoiser(architecture.transformer, layout), VideoAutoencoder(architecture.vae, layout)
    program = functools.partial(Program, layout=layout, compiler=compiler)
    return Programs(
        layout=layout,
        denoiser=denoiser,
        vae=vae,
        embed_text=program("the text encoder", text_encoder.embed),
        prepare_text=program("the prompt's keys", denoiser.prepare_text, places=denoiser.place_text),
        encode_image=program("the image encoder", vae.encode_image),
        step=program("the denoising step", _step_function(denoiser), donated=(1,)),
        decode_first=program("the decoder's first frame", vae.decode_first, places=vae.place_decoded),
        decode_next=program("the decoder", vae.decode_next, donated=(2,), places=vae.place_decoded),
    )


def _step_function(denoiser: Denoiser) -> Callable:
    def step(
        weights: DenoiserWeights,
        state: SamplerState,
        inputs: StepInputs,
        text: TextContext,
        positions: Positions,
        first_frame: FirstFrame | None,
    ) -> SamplerState:
        """One guided solver step; latents [1, C, F, H, W] float32."""
        velocity = denoiser.velocity(weights, state.sample, inputs.timestep, text, positions, first_frame)
        return advance(state, guide(velocity, inputs.guidance), inputs.sigma, inputs.corrector, inputs.predictor)

    return step


def _use_compilation_cache() -> None:
    """Keep compiled programs on disk, so that a second start compiles nothing."""
    folder = from_environment().cache_dir / "jax"
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)


def _checkpoint_folder(source: str) -> Path:
    folder = Path(source).expanduser()
    if (folder / "model_index.json").is_file():
        return folder
    if folder.is_dir():
        raise ModelError(f"{source}", "must hold model_index.json, as diffusers writes it", "give a diffusers checkpoint folder")
    raise ModelError(f"The model {source}", "is not on this machine",
                     "give its folder with --model, or take the preset wan-tiny, which runs anywhere")  # fmt: skip


def _read_json(path: Path) -> dict:
    try:
        return json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{_shown(path)} is missing:", "a checkpoint needs it", "copy the checkpoint again, whole") from None
    except json.JSONDecodeError as error:
        raise ModelError(_shown(path), f"must be JSON ({error})", "copy the checkpoint again") from None


def _shown(path: Path) -> str:
    """A file's place within its checkpoint: visitors of a shared studio see these messages, and no folder of the server."""
    return "/".join(path.parts[-3:])


def _with_tied_embedding(weights: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """UMT5 has its token embedding under two names, of which a checkpoint may hold either."""
    names = ("shared.weight", "encoder.embed_tokens.weight")
    embedding = next(weights[name] for name in names if name in weights)
    return weights | dict.fromkeys(names, embedding)


class _Reader:
    """Reads safetensors part by part and tells how far it is."""

    def __init__(self, folder: Path, dtype: jnp.dtype, on_event: Callable[[Event], None]) -> None:
        self._folder, self._dtype, self._on_event = folder, dtype, on_event
        self._total = sum(path.stat().st_size for path in folder.glob("*/*.safetensors"))
        self._done = 0

    def read(self, part: str) -> dict[str, jax.Array]:
        """All tensors of one part, floating-point ones in the model's dtype. Raises: ModelError."""
        paths = sorted((self._folder / part).glob("*.safetensors"))
        if not paths:
            raise ModelError(f"{_shown(self._folder / part)} holds no .safetensors file:", "a checkpoint needs its weights",
                             "copy the checkpoint again, whole")  # fmt: skip
        return {name: value for path in paths for name, value in self._read_file(path, part)}

    def _read_file(self, path: Path, part: str) -> Iterator[tuple[str, jax.Array]]:
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():
                    yield name, self._as_array(file.get_tensor(name))
        except ModelError:
            raise
        except Exception as error:
            raise ModelError(f"{_shown(path)} cannot be read ({error}):", "it must be a whole safetensors file",
                             "copy the checkpoint again") from error  # fmt: skip
        self._done += path.stat().st_size
        self._on_event(Loading(self._done, self._total, part.replace("_", " ")))

    def _as_array(self, tensor: torch.Tensor) -> jax.Array:
        if not tensor.is_floating_point():
            return jnp.asarray(tensor.numpy())
        return jnp.asarray(np.asarray(tensor.float().numpy()), self._dtype)

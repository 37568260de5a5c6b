"""Write the files that each stage of a video leaves in its folder, and read them in another process.

- `stage1_embeddings.safetensors` contains the denoiser's inputs. The model family defines the names of the arrays. The names have
  prefixes for later prompts and for steps at half size, as in `later_1.half.first_frame`. Embeddings of prompts have the format
  of diffusers' pipelines.
- `stage2_state.safetensors` and `stage2_latents.safetensors` contain an unfinished and a finished denoising.
- `stage3_frames.safetensors` contains an unfinished decoding, `stage3_sound.wav` the audio before AAC encoding.

Each safetensors file also contains the request that it was written for, the model's source, and the seconds of work so far. Names
of arrays of other streams than the video start with the stream, as in `sound.latents`. Files are replaced atomically. With
several hosts, only the first host writes safetensors files.
"""

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from backend.files import replace_file
from backend.models.model import VIDEO, Latents, PromptConditions
from backend.pipeline.prompt_schedule import VideoConditions
from backend.pipeline.run import Denoised, Run
from backend.runtime.hosts import put
from backend.sampling.solvers import SamplerState
from backend.schemas.progressive import HALF, request_at_first_size
from backend.schemas.request import GenerationRequest
from backend.schemas.settings import INPUTS

CONFIG = "generation_config.json"
EMBEDDINGS, STATE, LATENTS = "stage1_embeddings.safetensors", "stage2_state.safetensors", "stage2_latents.safetensors"
FRAMES = "stage3_frames.safetensors"
_LATER = "later_"  # prefix of array names of all texts except the first, followed by the text's index, as in "later_1."
ENCODED_BY = (
    *("preset", "task", "prompt", "negative_prompt", "width", "height", "num_frames"),
    *(one.name for one in INPUTS),
    *("image_focus", "action", "cues", "trim", "control_kind", "control_downscale", "margins", "extend", "overlap"),
    *("keyframe_at", "sound_start", "keeps_sound", "image_crf", "make"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decoded:
    """An unfinished decoding. `pixels` are uint8 [F, H, W, 3], `decoder_state` is a tree of arrays."""

    latent_frames: int
    pixels: np.ndarray
    decoder_state: Any


def write_conditions(run: Run, conditions: VideoConditions) -> None:
    """Write the denoiser's inputs, and the main settings as `generation_config.json`."""
    request, arrays = run.request, {}
    for index, own in conditions.by_text.items():
        for size, named in (("", own.full), (HALF, own.half)):
            prefix = (f"{_LATER}{index}." if index else "") + size
            arrays |= {prefix + name: np.asarray(value, np.float32) for name, value in named.items()}
    _save_arrays(EMBEDDINGS, arrays, run)
    config = {
        "prompt": request.prompt,
        "negative_prompt": request.negative_prompt,
        "width": request.width,
        "height": request.height,
        "frames": request.num_frames,
        "fps": request.fps,
        "num_inference_steps": request.steps,
        "guidance_scale": request.guidance[0],
        "flow_shift": request.flow_shift,
        "seed": request.seed,
        "model_id": request.preset,
    }
    if run.place.is_first:
        (run.folder / CONFIG).write_text(json.dumps(config, indent=2, ensure_ascii=False), "utf-8")


def read_conditions(folder: Path, request: GenerationRequest) -> VideoConditions | None:
    """Read the file of `write_conditions`. None if the file is missing, was written for another prompt, input or size, or lacks
    the negative prompt that the request needs."""
    arrays, written_for = _load_arrays(folder / EMBEDDINGS)
    if written_for is None or (request.reads_negative_prompt and not written_for.reads_negative_prompt):
        return None
    wanted, written = request.for_sharing(), written_for.for_sharing()
    # A clip is converted to `fps` before it is encoded, so the conditions of a request with a clip depend on `fps`.
    names = [*ENCODED_BY, "fps"] if request.reads_clip else ENCODED_BY
    if any(written.get(name) != wanted.get(name) for name in names):
        return None
    # Images are also encoded at the size of the first steps, so the two requests must have the same size in the first steps.
    sizes = {request_at_first_size(one).geometry() for one in (request, written_for)}
    if len(sizes) > 1 and request.inputs():
        return None
    by_text: dict[int, tuple[dict[str, np.ndarray], dict[str, np.ndarray]]] = {}
    for name, array in arrays.items():
        index, _, rest = name.removeprefix(_LATER).partition(".") if name.startswith(_LATER) else ("0", "", name)
        by_text.setdefault(int(index), ({}, {}))[rest.startswith(HALF)][rest.removeprefix(HALF)] = array
    return VideoConditions(by_text={index: PromptConditions(full=full, half=half) for index, (full, half) in by_text.items()})


def write_state(run: Run, denoised: Denoised) -> None:
    arrays = {}
    for stream, state in denoised.states.items():
        for field in dataclasses.fields(state):
            arrays[_array_name(stream, field.name)] = np.asarray(getattr(state, field.name))
    for index, chunk in enumerate(denoised.chunks):
        arrays |= {_array_name(stream, f"chunk_{index}"): array for stream, array in chunk.items()}
    if any(denoised.block_counts):  # videos without Sol-Attn have the arrays that older versions can read
        arrays["block_counts"] = np.array(denoised.block_counts, np.float32)
    counts = {"steps_done": denoised.steps_done, "spared_steps": denoised.skipped_steps}
    _save_arrays(STATE, arrays | {name: np.int32(count).reshape(1) for name, count in counts.items()}, run)


def read_state(folder: Path, request: GenerationRequest) -> Denoised | None:
    """Read the file of `write_state`. None if the file is missing or was written for another video."""
    arrays, written_for = _load_arrays(folder / STATE)
    if not _is_same_video(written_for, request):
        return None
    steps_done = int(arrays.pop("steps_done")[0])
    skipped_steps = int(arrays.pop("spared_steps", np.zeros(1))[0])
    blocks = tuple(arrays.pop("block_counts", np.zeros(2)).tolist())
    states, chunks = {}, {}
    for stream, own in _group_by_stream(arrays).items():
        chunks[stream] = [own.pop(f"chunk_{index}") for index in range(sum(name.startswith("chunk_") for name in own))]
        states[stream] = SamplerState(**{name: jnp.asarray(value) for name, value in own.items()})
    finished = tuple(dict(zip(chunks, arrays, strict=True)) for arrays in zip(*chunks.values(), strict=True))
    return Denoised(states=states, steps_done=steps_done, chunks=finished, skipped_steps=skipped_steps, block_counts=blocks)


def write_latents(run: Run, latents: Latents) -> None:
    """Write the denoised latents, float32, and delete the file of `write_state`, which is no longer needed."""
    _save_arrays(LATENTS, {_array_name(stream, "latents"): np.asarray(array) for stream, array in latents.items()}, run)
    (run.folder / STATE).unlink(missing_ok=True)


def read_latents(folder: Path, request: GenerationRequest) -> Latents | None:
    """Read the file of `write_latents`. None if the file is missing or was written for another video."""
    arrays, written_for = _load_arrays(folder / LATENTS)
    if not _is_same_video(written_for, request):
        return None
    return {stream: own["latents"] for stream, own in _group_by_stream(arrays).items()}


def _array_name(stream: str, name: str) -> str:
    return name if stream == VIDEO else f"{stream}.{name}"


def _group_by_stream(arrays: Mapping[str, np.ndarray]) -> dict[str, dict[str, np.ndarray]]:
    """Group arrays by stream, the video first, under names without the stream's prefix."""
    groups: dict[str, dict[str, np.ndarray]] = {VIDEO: {}}
    for name, array in arrays.items():
        stream, _, own = name.rpartition(".")
        groups.setdefault(stream or VIDEO, {})[own] = array
    return groups


def write_frames(run: Run, decoded: Decoded) -> None:
    """The decoder's state is stored as plain bytes."""
    leaves = jax.tree.leaves(decoded.decoder_state)
    arrays = {f"carry_{index}": np.ascontiguousarray(leaf).reshape(-1).view(np.uint8) for index, leaf in enumerate(leaves)}
    arrays |= {"pixels": decoded.pixels, "latent_frames": np.int32(decoded.latent_frames).reshape(1)}
    _save_arrays(FRAMES, arrays, run)


def read_frames_so_far(folder: Path, request: GenerationRequest, describe_state: Callable[[], object]) -> Decoded | None:
    """Read the file of `write_frames`. None if it is missing or was written for another video. `describe_state` returns the
    shapes, dtypes and shardings of the decoder's state."""
    arrays, written_for = _load_arrays(folder / FRAMES)
    if not _is_same_video(written_for, request):
        return None
    leaves, structure = jax.tree.flatten(describe_state())
    stored = [arrays[name] for index in range(len(leaves)) if (name := f"carry_{index}") in arrays]
    pairs = list(zip(stored, leaves, strict=False))
    if len(stored) < len(leaves) or any(one.nbytes != math.prod(leaf.shape) * leaf.dtype.itemsize for one, leaf in pairs):
        return None
    placed = [put(one.view(leaf.dtype).reshape(leaf.shape), leaf.sharding) for one, leaf in pairs]
    decoder_state = jax.tree.unflatten(structure, placed)
    return Decoded(latent_frames=int(arrays["latent_frames"][0]), pixels=arrays["pixels"], decoder_state=decoder_state)


def remove_unfinished(folder: Path) -> None:
    for name in (STATE, FRAMES):
        (folder / name).unlink(missing_ok=True)


def adopt_files(folder: Path, source: str) -> dict[str, float]:
    """Delete all stage files of another model than `source`. Return the seconds of work by stage from the newest stage file."""

    def read_metadata(name: str) -> dict[str, str]:
        try:
            with safe_open(folder / name, "np") as file:
                return file.metadata() or {}
        except (OSError, SafetensorError):
            return {}

    if read_metadata(EMBEDDINGS).get("model", source) != source:
        for name in (EMBEDDINGS, STATE, LATENTS, FRAMES):
            (folder / name).unlink(missing_ok=True)
    known = (read_metadata(name).get("seconds") for name in (FRAMES, LATENTS, STATE))
    return next((json.loads(seconds) for seconds in known if seconds), {})


def _is_same_video(one: GenerationRequest | None, other: GenerationRequest) -> bool:
    """Return whether two requests lead to the same latents. Input files are compared by their names, because a folder may be
    moved. `fps` matters only with a clip, which is converted to it."""
    if one is None:
        return False
    rate = {} if one.reads_clip else {"fps": 0}
    return one.for_sharing() | rate == other.for_sharing() | rate


def _save_arrays(name: str, arrays: Mapping[str, np.ndarray], run: Run) -> None:
    if not run.place.is_first:
        return
    metadata = {
        "request": json.dumps(run.request.to_json(), ensure_ascii=False),
        "model": run.loaded.source,
        "seconds": json.dumps(run.clock.total_seconds()),
    }
    with replace_file(run.folder / name, is_durable=True) as part:
        save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, part, metadata=metadata)


def _load_arrays(path: Path) -> tuple[dict[str, np.ndarray], GenerationRequest | None]:
    """Read the file's arrays, and the request for which it was written. ({}, None) if it cannot be read."""
    try:
        with safe_open(path, "np") as file:
            request = GenerationRequest.from_stored(json.loads((file.metadata() or {})["request"]))
            return {name: file.get_tensor(name) for name in file.keys()}, request
    except (OSError, SafetensorError, KeyError, ValueError):
        return {}, None

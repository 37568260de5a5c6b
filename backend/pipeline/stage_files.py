"""Writes the files that each stage of a video leaves in its folder, and reads them in another process.

`stage1_embeddings.safetensors` holds the denoiser's inputs under the names of the model's family (prompts'
embeddings as diffusers' pipelines hold them); `stage2_state.safetensors` a denoising that was stopped;
`stage2_latents.safetensors` its result. Each carries the request that it was written for. Files appear whole or not at all.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from backend.contract.request import INPUTS, GenerationRequest
from backend.families.model import Conditions
from backend.files import replacing
from backend.pipeline.run import Denoised
from backend.sampling.solvers import SamplerState

CONFIG = "generation_config.json"
EMBEDDINGS, STATE, LATENTS = "stage1_embeddings.safetensors", "stage2_state.safetensors", "stage2_latents.safetensors"
ENCODED_BY = (
    *("preset", "task", "prompt", "negative_prompt", "width", "height", "num_frames"),
    *(one.role for one in INPUTS),
    "image_focus",
)


def write_conditions(folder: Path, request: GenerationRequest, conditions: Conditions) -> None:
    """Write the denoiser's inputs, and `generation_config.json`."""
    _save(folder / EMBEDDINGS, {name: np.asarray(value, np.float32) for name, value in conditions.items()}, request)
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
    (folder / CONFIG).write_text(json.dumps(config, indent=2, ensure_ascii=False), "utf-8")


def read_conditions(folder: Path, request: GenerationRequest) -> Conditions | None:
    """What `write_conditions` wrote; None if it is missing, or was written for another prompt, input or size, or without the
    negative prompt that is needed now."""
    arrays, written_for = _load(folder / EMBEDDINGS)
    if written_for is None or (request.is_guided and not written_for.is_guided):
        return None
    ours, theirs = request.for_sharing(), written_for.for_sharing()
    return arrays if all(theirs.get(name) == ours.get(name) for name in ENCODED_BY) else None


def write_state(folder: Path, request: GenerationRequest, denoised: Denoised) -> None:
    """Write the state of a denoising that was stopped."""
    arrays = {field.name: np.asarray(getattr(denoised.state, field.name)) for field in dataclasses.fields(denoised.state)}
    arrays |= {f"chunk_{index}": chunk for index, chunk in enumerate(denoised.chunks)}
    _save(folder / STATE, arrays | {"steps_done": np.int32(denoised.steps_done).reshape(1)}, request)


def read_state(folder: Path, request: GenerationRequest) -> Denoised | None:
    """What `write_state` wrote; None if there is no state of exactly this video."""
    arrays, written_for = _load(folder / STATE)
    if written_for is None or not _is_same_video(written_for, request):
        return None
    steps_done = int(arrays.pop("steps_done")[0])
    chunks = tuple(arrays.pop(f"chunk_{index}") for index in range(sum(name.startswith("chunk_") for name in arrays)))
    state = SamplerState(**{name: jnp.asarray(value) for name, value in arrays.items()})
    return Denoised(state=state, steps_done=steps_done, chunks=chunks)


def write_latents(folder: Path, request: GenerationRequest, latents: jax.Array) -> None:
    """Write the denoised latents [1, C, F, H, W] float32, and delete the state, which is no longer needed."""
    _save(folder / LATENTS, {"latents": np.asarray(latents)}, request)
    (folder / STATE).unlink(missing_ok=True)


def read_latents(folder: Path, request: GenerationRequest) -> np.ndarray | None:
    """The latents of exactly this video, or None."""
    arrays, written_for = _load(folder / LATENTS)
    return arrays["latents"] if written_for is not None and _is_same_video(written_for, request) else None


def _is_same_video(one: GenerationRequest, other: GenerationRequest) -> bool:
    """Whether two requests have the same latents. Pictures count by their names, as a folder may be moved; fps does not count."""
    return one.for_sharing() | {"fps": 0} == other.for_sharing() | {"fps": 0}


def _save(path: Path, arrays: Mapping[str, np.ndarray], request: GenerationRequest) -> None:
    with replacing(path) as part:
        save_file(dict(arrays), part, metadata={"request": json.dumps(request.to_json(), ensure_ascii=False)})


def _load(path: Path) -> tuple[dict[str, np.ndarray], GenerationRequest | None]:
    """The file's arrays and the request that it was written for; nothing if it cannot be read."""
    try:
        with safe_open(path, "np") as file:
            request = GenerationRequest.from_stored(json.loads((file.metadata() or {})["request"]))
            return {name: file.get_tensor(name) for name in file.keys()}, request
    except (OSError, SafetensorError, KeyError, ValueError):
        return {}, None

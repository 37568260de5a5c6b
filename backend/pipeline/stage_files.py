"""What each stage of a video leaves in its folder, and reading that back in another process.

`stage1_embeddings.safetensors` holds the prompt's embeddings as diffusers' pipelines hold them, and whatever else the denoiser is
told; `stage2_state.safetensors` a denoising that was stopped; `stage2_latents.safetensors` its result. Each of them carries
the request that it was made for. Files appear whole or not at all.
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

from backend.contract.request import GenerationRequest
from backend.families.wan.conditions import Conditions
from backend.families.wan.text_encoder import padded_embeddings
from backend.families.wan.transformer import Condition, FirstFrame, ImageChannels
from backend.files import replacing
from backend.sampling.solvers import SamplerState

CONFIG = "generation_config.json"
EMBEDDINGS, STATE, LATENTS = "stage1_embeddings.safetensors", "stage2_state.safetensors", "stage2_latents.safetensors"
ENCODED_BY = (
    *("preset", "task", "prompt", "negative_prompt", "width", "height", "num_frames"),
    *("image", "last_image", "image_focus"),
)


def write_conditions(folder: Path, request: GenerationRequest, conditions: Conditions) -> None:
    """What the denoiser is told, and `generation_config.json`."""
    names = ("prompt_embeds", "negative_prompt_embeds")
    padded = padded_embeddings(conditions.embeddings)
    arrays = {name: value[None] for name, value in zip(names, padded, strict=False)}
    optional = {"text_bias": conditions.bias, "image_seen": conditions.seen} | _of_condition(conditions.condition)
    arrays |= {name: np.asarray(value, np.float32) for name, value in optional.items() if value is not None}
    _save(folder / EMBEDDINGS, arrays, request, {"dtype": str(conditions.embeddings.dtype)})
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
    """What `write_conditions` wrote; None where it is not there or was made for another prompt, picture or size, or without the
    negative prompt that is needed now."""
    arrays, made_for, notes = _load(folder / EMBEDDINGS)
    if made_for is None or any(made_for.for_sharing()[name] != request.for_sharing()[name] for name in ENCODED_BY):
        return None
    names = ("prompt_embeds", "negative_prompt_embeds")[: 2 if request.is_guided else 1]
    if any(name not in arrays for name in names):
        return None
    bias = arrays.get("text_bias")
    padded = np.concatenate([arrays[name] for name in names])
    length = padded.shape[1] if bias is None else bias.shape[-1]
    return Conditions(
        embeddings=np.asarray(jnp.asarray(padded[:, :length], notes["dtype"])),
        bias=None if bias is None else bias[: len(names)],
        seen=arrays.get("image_seen"),
        condition=_to_condition(arrays),
    )


def _of_condition(condition: Condition) -> dict[str, np.ndarray]:
    if isinstance(condition, FirstFrame):
        return {"first_frame": condition.latents}
    return {"image_channels": condition.values} if isinstance(condition, ImageChannels) else {}


def _to_condition(arrays: Mapping[str, np.ndarray]) -> Condition:
    if "first_frame" in arrays:
        return FirstFrame(latents=arrays["first_frame"])
    return ImageChannels(values=arrays["image_channels"]) if "image_channels" in arrays else None


def write_state(folder: Path, request: GenerationRequest, state: SamplerState, steps_done: int) -> None:
    """A denoising that was stopped after so many steps."""
    arrays = {field.name: np.asarray(getattr(state, field.name)) for field in dataclasses.fields(state)}
    _save(folder / STATE, arrays | {"steps_done": np.int32(steps_done).reshape(1)}, request)


def read_state(folder: Path, request: GenerationRequest) -> tuple[SamplerState, int] | None:
    """The state and the steps that made it; None where there is none for exactly this video."""
    arrays, made_for, _ = _load(folder / STATE)
    if made_for is None or not _is_same_video(made_for, request):
        return None
    steps_done = int(arrays.pop("steps_done")[0])
    return SamplerState(**{name: jnp.asarray(value) for name, value in arrays.items()}), steps_done


def write_latents(folder: Path, request: GenerationRequest, latents: jax.Array) -> None:
    """The denoised latents [1, C, F, H, W] float32. What was stopped on the way is not needed any more."""
    _save(folder / LATENTS, {"latents": np.asarray(latents)}, request)
    (folder / STATE).unlink(missing_ok=True)


def read_latents(folder: Path, request: GenerationRequest) -> np.ndarray | None:
    """The latents of exactly this video, or None."""
    arrays, made_for, _ = _load(folder / LATENTS)
    return arrays["latents"] if made_for is not None and _is_same_video(made_for, request) else None


def _is_same_video(one: GenerationRequest, other: GenerationRequest) -> bool:
    """Pictures count by their names: a folder may be moved. The frames' speed is no matter of the latents."""
    return one.for_sharing() | {"fps": 0} == other.for_sharing() | {"fps": 0}


def _save(path: Path, arrays: dict[str, np.ndarray], request: GenerationRequest, notes: Mapping[str, str] | None = None) -> None:
    with replacing(path) as part:
        save_file(arrays, part, metadata={"request": json.dumps(request.to_json(), ensure_ascii=False), **(notes or {})})


def _load(path: Path) -> tuple[dict[str, np.ndarray], GenerationRequest | None, dict[str, str]]:
    """The file's arrays, the request that it was made for and its notes; nothing where it cannot be read."""
    try:
        with safe_open(path, "np") as file:
            notes = file.metadata() or {}
            request = GenerationRequest.from_stored(json.loads(notes["request"]))
            return {name: file.get_tensor(name) for name in file.keys()}, request, notes
    except (OSError, SafetensorError, KeyError, ValueError):
        return {}, None, {}

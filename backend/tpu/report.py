"""Compile a preset's real programs for a described TPU slice and report memory, compile time and predicted seconds.

Runs in a process of its own (`python -m backend.tpu.report`), because libtpu reads its settings before jax is imported. Writes
JSON lines to standard output: {"progress": TEXT} and last {"report": OBJECT}.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import re
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import topologies

from backend.architecture import Architecture
from backend.components import Programs, make_programs, plan_layout
from backend.denoiser import TextContext
from backend.pipeline import step_arguments
from backend.program import Program
from backend.request import GenerationRequest, find_preset
from backend.text_encoder import MAX_SEQUENCE_LENGTH, TextEncoder
from backend.tpu.chips import Chip, chip_of
from backend.tpu.flops import step_flops
from backend.tpu.hlo_cost import predict
from backend.tpu.kernels_cost import AttentionLengths, KernelCost
from backend.tpu.published import published_step

_OUT_OF_MEMORY = re.compile(r"Used ([\d.]+)([GM]) of ([\d.]+)([GM]) hbm")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Slice:
    """What a report is about: the request with its networks, laid out on a described slice."""

    request: GenerationRequest
    architecture: Architecture
    programs: Programs
    text_encoder: TextEncoder
    chip: Chip
    num_devices: int
    dtype: jnp.dtype

    @property
    def branches(self) -> int:
        return 2 if self.request.is_guided else 1

    @property
    def latent_shape(self) -> tuple[int, ...]:
        return self.request.geometry().latent_shape(self.programs.vae.latent_channels)


def describe_slice(preset_name: str, topology: str, mesh: dict[str, int | None]) -> Slice:
    """The preset's own request on the slice. Raises: RequestError for a mesh that is not legal."""
    preset = find_preset(preset_name)
    request = GenerationRequest.from_preset(preset, prompt=preset.examples[0], seed=0)
    architecture = Architecture(**preset.network_configs())
    devices = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices
    layout = plan_layout(architecture, devices, request.is_guided, mesh)
    text_encoder = TextEncoder(architecture.text_encoder, None, (MAX_SEQUENCE_LENGTH,))
    return Slice(
        request=request, architecture=architecture, programs=make_programs(architecture, text_encoder, layout),
        text_encoder=text_encoder, chip=chip_of(topology), num_devices=len(devices), dtype=jnp.dtype(preset.dtype),
    )  # fmt: skip


def report(slice_: Slice, tell: Callable[[str], None], only: str | None = None) -> dict[str, Any]:
    """Everything `check-tpu` says about one preset on one slice; of one program where `only` names it."""
    components, resident = {}, _weight_bytes(slice_)
    for name, program, arguments, repeats in _stages(slice_):
        if only not in (None, name):
            continue
        tell(f"compiling {name} for {slice_.num_devices} x {slice_.chip.name} ({slice_.programs.layout.plan_text})")
        components[name] = _component(slice_, program, arguments) | {"repeats": repeats}
    return _summary(slice_, components, resident)


def _stages(slice_: Slice):
    """Name, program, described arguments and how often a video runs it; the decoder's caches come from its first frame."""
    programs, dtype, layout = slice_.programs, slice_.dtype, slice_.programs.layout
    text = slice_.text_encoder.describe_weights(dtype, layout)
    tokens = jax.ShapeDtypeStruct((slice_.branches, MAX_SEQUENCE_LENGTH), jnp.int32)
    yield "text_encode", programs.embed_text, (text, tokens, tokens), 1
    weights = programs.denoiser.describe_weights(dtype)
    positions = programs.denoiser.describe_positions(slice_.latent_shape)
    context = _text_context(slice_, weights)
    latents = jax.ShapeDtypeStruct(slice_.latent_shape, jnp.float32)
    step = step_arguments(slice_.request, weights, latents, context, positions, None)
    yield "denoise_step", programs.step, step, slice_.request.steps
    vae = programs.vae.describe_weights(dtype)
    frame = jax.ShapeDtypeStruct((*slice_.latent_shape[:2], 1, *slice_.latent_shape[3:]), dtype)
    yield "vae_decode_first", programs.decode_first, (vae, frame), 1
    if slice_.latent_shape[2] > 1:
        _, caches = jax.eval_shape(programs.vae.decode_first, vae, frame)
        caches = layout.describe_spread(caches)
        yield "vae_decode_next", programs.decode_next, (vae, frame, caches), slice_.latent_shape[2] - 1


def _text_context(slice_: Slice, weights) -> TextContext:
    layout, width = slice_.programs.layout, slice_.architecture.text_encoder["d_model"]
    embedded = jax.ShapeDtypeStruct((slice_.branches, MAX_SEQUENCE_LENGTH, width), slice_.dtype)
    shapes = jax.eval_shape(slice_.programs.denoiser.prepare_text, weights, embedded, None)
    sharding = layout.sharding(layout.stacked_text_heads)
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), shapes)


def _component(slice_: Slice, program: Program, arguments: tuple) -> dict[str, Any]:
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        try:  # through a file, because `as_text` fails for programs with asynchronous copies such as the decoder
            compiled = program.compile(*arguments, options={"xla_dump_to": folder, "xla_dump_hlo_as_text": True})
        except jax.errors.JaxRuntimeError as error:
            return _refused(error, slice_, time.monotonic() - started)
        seconds = time.monotonic() - started
        hlo = next(Path(folder).glob("*.after_codegen.txt")).read_text("utf-8")
    memory = compiled.memory_analysis()
    cost = predict(hlo, slice_.chip, KernelCost(chip=slice_.chip, lengths=_lengths(slice_)))
    needed = memory.argument_size_in_bytes + memory.temp_size_in_bytes + memory.output_size_in_bytes
    needed += memory.generated_code_size_in_bytes - memory.alias_size_in_bytes
    return {
        "fits": needed <= slice_.chip.hbm_bytes,
        "hbm_bytes_per_device": needed,
        "argument_bytes": memory.argument_size_in_bytes,
        "temporary_bytes": memory.temp_size_in_bytes,
        "compile_seconds": round(seconds, 1),
        "predicted_seconds": cost.total,
        "breakdown": cost.seconds | {"hidden collectives": cost.hidden},
    }


def _refused(error: Exception, slice_: Slice, seconds: float) -> dict[str, Any]:
    """A program that the compiler says does not fit. Raises: the error itself where it says something else."""
    found = _OUT_OF_MEMORY.search(str(error))
    if found is None:
        raise error
    needed = float(found.group(1)) * (2**30 if found.group(2) == "G" else 2**20)
    return {
        "fits": False, "hbm_bytes_per_device": int(needed), "argument_bytes": None, "temporary_bytes": None,
        "compile_seconds": round(seconds, 1), "predicted_seconds": None, "breakdown": None,
    }  # fmt: skip


def _lengths(slice_: Slice) -> AttentionLengths:
    """What one chip attends to, as `backend.sharding` spreads it."""
    layout, heads = slice_.programs.layout, slice_.architecture.heads // slice_.programs.layout.size("tp")
    sp, tokens = layout.size("sp"), slice_.programs.denoiser.describe_positions(slice_.latent_shape)
    padded, group = tokens.cosine.shape[1], math.gcd(heads, sp)
    return AttentionLengths(
        heads=heads // group, queries=padded * group // sp, keys=tokens.num_tokens, text_heads=heads,
        text_queries=padded // sp, text=MAX_SEQUENCE_LENGTH, batch=max(1, slice_.branches // layout.size("dp")),
    )  # fmt: skip


def _weight_bytes(slice_: Slice) -> dict[str, int]:
    """Bytes at rest on each device, by network."""
    programs, dtype = slice_.programs, slice_.dtype
    described = {
        "text encoder": slice_.text_encoder.describe_weights(dtype, programs.layout),
        "transformer": programs.denoiser.describe_weights(dtype),
        "vae": programs.vae.describe_weights(dtype),
    }
    return {name: sum(_bytes_on_device(leaf) for leaf in jax.tree.leaves(tree)) for name, tree in described.items()}


def _bytes_on_device(leaf: jax.ShapeDtypeStruct) -> int:
    return math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize


def _summary(slice_: Slice, components: dict[str, dict], resident: dict[str, int]) -> dict[str, Any]:
    chip, request = slice_.chip, slice_.request
    weights_of = {"text_encode": "text encoder", "denoise_step": "transformer"}
    peak = max(
        part["hbm_bytes_per_device"] + sum(resident.values()) - resident[weights_of.get(name, "vae")]
        for name, part in components.items()
    )
    is_known = all(part["predicted_seconds"] is not None for part in components.values())
    total = sum(part["predicted_seconds"] * part["repeats"] for part in components.values()) if is_known else None
    num_tokens = slice_.programs.denoiser.describe_positions(slice_.latent_shape).num_tokens
    flops = step_flops(slice_.architecture, num_tokens, slice_.branches)
    step = components.get("denoise_step", {}).get("predicted_seconds")
    roofline = flops.roofline_seconds(chip, slice_.num_devices)
    return {
        "preset": request.preset,
        "mesh": {axis: slice_.programs.layout.size(axis) for axis in ("dp", "sp", "tp")},
        "fits": all(part["fits"] for part in components.values()) and peak <= chip.hbm_bytes,
        "hbm_bytes_per_device": peak,
        "hbm_capacity_bytes": chip.hbm_bytes,
        "weight_bytes_per_device": resident,
        "components": components,
        "predicted_total_seconds": total,
        "roofline_seconds": roofline,
        "floor_seconds": flops.floor_seconds(chip, slice_.num_devices, slice_.architecture.transformer["attention_head_dim"]),
        "mfu": roofline / step if step else None,
        "published": published_step(request.preset, chip.name, slice_.num_devices),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="backend.tpu.report", description="Started by `app.py check-tpu`, not by hand.")
    parser.add_argument("--preset", required=True)
    parser.add_argument("--topology", required=True)
    for axis in ("dp", "sp", "tp"):
        parser.add_argument(f"--{axis}", type=int)
    parser.add_argument("--only", metavar="PROGRAM", help="text_encode, denoise_step, vae_decode_first or vae_decode_next")
    arguments = parser.parse_args()
    mesh = {axis: getattr(arguments, axis) for axis in ("dp", "sp", "tp")}
    slice_ = describe_slice(arguments.preset, arguments.topology, mesh)
    found = report(slice_, lambda text: _say({"progress": text}), arguments.only)
    _say({"report": found | {"topology": arguments.topology}})


def _say(message: dict) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

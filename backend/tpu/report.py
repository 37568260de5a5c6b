"""Compile a preset's real programs for a described TPU slice and report memory, compile time and predicted seconds.

Runs in a process of its own (`python -m backend.tpu.report`), because libtpu reads its settings before jax is imported. Writes
JSON lines to standard output: {"progress": TEXT} and last {"report": OBJECT}.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from backend.chips import Chip, StepFlops, chip_of
from backend.commands.apart import AXES, say
from backend.contract.request import GenerationRequest, example_request, find_preset
from backend.families.wan.family import Architecture, step_flops
from backend.families.wan.text_encoder import MAX_SEQUENCE_LENGTH
from backend.pipeline.describe import describe_components
from backend.pipeline.generate import warm_up
from backend.pipeline.load import Components, Programs
from backend.runtime.devices import described_devices
from backend.runtime.mesh import Layout
from backend.runtime.program import Compiler, Made
from backend.tpu.hlo_cost import predict
from backend.tpu.kernels_cost import AttentionLengths, KernelCost
from backend.tpu.published import published_step
from backend.tpu.remedy import Remedy, Shortage, find_remedies
from backend.weights.parking import device_bytes

COMPONENTS = {
    "the text encoder": "text_encode",
    "the prompt's keys": "prompt_keys",
    "the image encoder": "image_encode",
    "what the picture shows": "image_embed",
    "the image encoder's first frame": "vae_encode_first",
    "the image encoder's next frames": "vae_encode_next",
    "the denoising step": "denoise_step",
    "the denoising step with its cache": "denoise_step_cached",
    "the decoder's first frame": "vae_decode_first",
    "the decoder": "vae_decode_next",
}
WEIGHTS_OF = {"text_encode": "text encoder", "image_embed": "image encoder"} | dict.fromkeys(
    ("prompt_keys", "denoise_step", "denoise_step_cached"), "transformer"
)  # what a program holds of the weights at rest; the other programs are the VAE's
_OUT_OF_MEMORY = re.compile(r"Used ([\d.]+)([GM]) of [\d.]+[GM] hbm|HLO temporaries \(([\d.]+)([GM])\) exceeds available HBM")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Slice:
    """What a report is about: the request, and its networks without weights on a described slice."""

    request: GenerationRequest
    architecture: Architecture
    components: Components
    chip: Chip
    num_devices: int

    @property
    def programs(self) -> Programs:
        return self.components.guided if self.request.is_guided else self.components.unguided

    @property
    def branches(self) -> int:
        return 2 if self.request.is_guided else 1

    @property
    def latent_shape(self) -> tuple[int, ...]:
        return self.request.geometry().latent_shape(self.programs.vae.latent_channels)


def describe_slice(request: GenerationRequest, topology: str, mesh: dict[str, int | None], compiler: Compiler) -> Slice:
    """The request on the slice. Raises: RequestError for a mesh that is not legal."""
    preset = find_preset(request.preset)
    devices = described_devices(topology)
    return Slice(
        request=request,
        architecture=Architecture(**preset.network_configs()),
        components=describe_components(preset, devices, compiler, mesh),
        chip=chip_of(topology),
        num_devices=len(devices),
    )


class Inspector:
    """A `Compiler` that keeps what the TPU's compiler says of each program: bytes, seconds of compiling, predicted seconds.

    With `only`, other programs are described but not compiled.
    """

    def __init__(self, tell: Callable[[str], None], only: str | None = None) -> None:
        self.found: dict[str, dict[str, Any]] = {}
        self.slice: Slice | None = None  # known once the programs are made, before any is compiled
        self._tell, self._only = tell, only

    def __call__(self, name: str, lowered: jax.stages.Lowered, layout: Layout) -> Made:
        key = COMPONENTS.get(name, name)
        if self._only not in (None, key):
            return Made(None)
        self._tell(f"compiling {name} for {self.slice.num_devices} x {self.slice.chip.name} ({layout.plan_text})")
        started = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            try:  # through a file, because `as_text` fails for programs with asynchronous copies such as the decoder
                options = {**layout.compiler_options, "xla_dump_to": folder, "xla_dump_hlo_as_text": True}
                compiled = lowered.compile(compiler_options=options)
            except jax.errors.JaxRuntimeError as error:
                self.found[key] = _refused(error, time.monotonic() - started)
                return Made(None)
            seconds = time.monotonic() - started
            hlo = next(Path(folder).glob("*.after_codegen.txt")).read_text("utf-8")
        self.found[key] = _component(self.slice, key, compiled, hlo, seconds)
        return Made(compiled)


def report(slice_: Slice, inspector: Inspector) -> dict[str, Any]:
    """Everything `check-tpu` says about one preset on one slice."""
    inspector.slice = slice_
    for _ in warm_up(slice_.components, slice_.request):
        pass
    later = slice_.latent_shape[2] - 1
    experts = len(slice_.components.experts)
    runs = {
        "denoise_step": slice_.request.steps,
        "denoise_step_cached": slice_.request.steps,
        "prompt_keys": experts,
        "vae_encode_next": later,
        "vae_decode_next": later,
    }
    components = {name: part | {"repeats": runs.get(name, 1)} for name, part in inspector.found.items()}
    return _summary(slice_, components, _weight_bytes(slice_))


def _component(slice_: Slice, key: str, compiled: jax.stages.Compiled, hlo: str, seconds: float) -> dict[str, Any]:
    memory = compiled.memory_analysis()
    cost = predict(hlo, slice_.chip, KernelCost(chip=slice_.chip, lengths=_lengths(slice_)))
    if key == "denoise_step":  # libtpu's estimates for v5e lie below the published peak: never predict what no chip can do
        least = _step_flops(slice_).matmul / slice_.chip.peak_flops / slice_.num_devices
        cost.seconds["matmul"] = max(cost.seconds["matmul"], least)
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


def _refused(error: Exception, seconds: float) -> dict[str, Any]:
    """A program that the compiler says does not fit. Raises: the error itself where it says something else."""
    found = _OUT_OF_MEMORY.search(str(error))
    if found is None:
        raise error
    size, unit = (group for group in found.groups() if group is not None)
    needed = float(size) * (2**30 if unit == "G" else 2**20)
    return {
        "fits": False,
        "hbm_bytes_per_device": int(needed),
        "argument_bytes": None,
        "temporary_bytes": None,
        "compile_seconds": round(seconds, 1),
        "predicted_seconds": None,
        "breakdown": None,
    }


def _lengths(slice_: Slice) -> AttentionLengths:
    """What one chip attends to, as `backend.runtime.mesh` spreads it."""
    layout, heads = slice_.programs.layout, slice_.architecture.heads // slice_.programs.layout.size("tp")
    sp, tokens = layout.size("sp"), slice_.programs.denoiser.describe_positions(slice_.latent_shape)
    padded, group = tokens.cosine.shape[1], math.gcd(heads, sp)
    return AttentionLengths(
        heads=heads // group,
        head_width=slice_.architecture.transformer["attention_head_dim"],
        queries=padded * group // sp,
        keys=tokens.num_tokens,
        text_heads=heads,
        text_queries=padded // sp,
        text=MAX_SEQUENCE_LENGTH,
        batch=max(1, slice_.branches // layout.size("dp")),
    )


def _weight_bytes(slice_: Slice) -> dict[str, int]:
    """Bytes at rest on each device, by network; none of one that is parked on the host."""
    components = slice_.components
    described = {"text encoder": components.text_weights, "image encoder": components.image_weights}
    described |= {_expert_name(index): expert.weights for index, expert in enumerate(components.experts)}
    described |= {"vae": components.vae_weights}
    described = {name: tree for name, tree in described.items() if tree}
    return {name: device_bytes(tree) for name, tree in described.items()}


def _step_flops(slice_: Slice) -> StepFlops:
    num_tokens = slice_.programs.denoiser.describe_positions(slice_.latent_shape).num_tokens
    return step_flops(slice_.architecture, num_tokens, slice_.branches)


def _expert_name(index: int) -> str:
    return "transformer" if index == 0 else f"transformer {index + 1}"


def _summary(slice_: Slice, components: dict[str, dict], resident: dict[str, int]) -> dict[str, Any]:
    chip, request = slice_.chip, slice_.request
    peak = max(_peak_with(name, part, resident) for name, part in components.items())
    is_known = all(part["predicted_seconds"] is not None for part in components.values())
    total = sum(part["predicted_seconds"] * part["repeats"] for part in components.values()) if is_known else None
    flops = _step_flops(slice_)
    step = components.get("denoise_step", {}).get("predicted_seconds")
    roofline = flops.roofline_seconds(chip, slice_.num_devices)
    return {
        "preset": request.preset,
        "mesh": {axis: slice_.programs.layout.size(axis) for axis in AXES},
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


def remedies(found: dict[str, Any], request: GenerationRequest, topology: str, mesh: dict[str, int | None], tell) -> list[Remedy]:
    """What would fit instead of the request that `found` reports on, judged by the program that needs most."""
    resident = found["weight_bytes_per_device"]
    largest = max(found["components"], key=lambda name: _peak_with(name, found["components"][name], resident))

    def compiled(other: str, changed: GenerationRequest) -> int | None:
        inspector = Inspector(tell, largest)
        result = report(describe_slice(changed, other, mesh if other == topology else dict.fromkeys(AXES), inspector), inspector)
        return result["hbm_bytes_per_device"] if result["fits"] else None

    shortage = Shortage(
        request=request,
        topology=topology,
        num_devices=math.prod(found["mesh"].values()),
        weights=sum(resident.values()),
        needed=found["hbm_bytes_per_device"],
        capacity=found["hbm_capacity_bytes"],
    )
    return find_remedies(shortage, compiled)


def _peak_with(name: str, part: dict[str, Any], resident: dict[str, int]) -> int:
    """Bytes on a device while this program runs: its own, and the weights at rest of all networks that it does not use."""
    return part["hbm_bytes_per_device"] + sum(resident.values()) - resident[WEIGHTS_OF.get(name, "vae")]


def main() -> None:
    parser = argparse.ArgumentParser(prog="backend.tpu.report", description="Started by `app.py check-tpu`, not by hand.")
    parser.add_argument("--preset", required=True)
    parser.add_argument("--topology", required=True)
    for axis in AXES:
        parser.add_argument(f"--{axis}", type=int)
    parser.add_argument("--only", choices=sorted(COMPONENTS.values()), help="compile this program alone")
    arguments = parser.parse_args()
    mesh, request = {axis: getattr(arguments, axis) for axis in AXES}, example_request(find_preset(arguments.preset))

    def tell(text: str) -> None:
        say({"progress": text})

    inspector = Inspector(tell, arguments.only)
    found = report(describe_slice(request, arguments.topology, mesh, inspector), inspector)
    if not found["fits"]:
        found["would_fit"] = [dataclasses.asdict(one) for one in remedies(found, request, arguments.topology, mesh, tell)]
    say({"report": found | {"topology": arguments.topology}})


if __name__ == "__main__":
    main()

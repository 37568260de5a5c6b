"""Compare our engine with diffusers on one GPU: a denoising step of Wan 14B with guidance and random weights.

    python -m benchmarks.step_on_gpu [--presets wan2.1-t2v-14b-480p wan2.1-t2v-14b-720p] [--repeats 3] [--json FILE]

This needs jax and torch builds that support the GPU. Our side is the engine's own program, with both guidance branches as one
batch. The other side is `WanTransformer3DModel` in bfloat16, with compiled blocks (`compile_repeated_blocks`). It has one call
for each branch, as `WanPipeline` does. It is timed with each available attention backend, and the fastest counts. Each side runs
in a separate process, because both need the whole memory. MFU is the share of the dense bfloat16 peak, --peak-tflops (an H100 or
H200 SXM: 989). The option --tiny runs the same code on a small model and any device, to test it. Its times mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from backend.child_process import write_message
from backend.schemas.request import GenerationRequest
from backend.schemas.settings import find_preset
from backend.settings import PROJECT_FOLDER
from presets import Preset

PRESETS = ("wan2.1-t2v-14b-480p", "wan2.1-t2v-14b-720p")
PEAK_TFLOPS = 989.0  # published: NVIDIA H100 and H200 SXM data sheets, dense bfloat16
BACKENDS = ("_native_cudnn", "flash", "_flash_3", "sage", "native")  # diffusers' names; missing backends are skipped
TEXT_LENGTH = 512


def ours(preset: Preset, repeats: int) -> dict[str, Any]:
    """Return the seconds of a step of the engine's program, without compilation."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from backend.models.model import VIDEO
    from backend.pipeline.denoising_loop import draw_initial_noise
    from backend.pipeline.load import describe_model
    from backend.runtime.program import compile_now
    from backend.runtime.work import run
    from backend.sampling.solvers import make_schedule, make_step_inputs
    from backend.schemas.step_plan import StepPlan

    jax.config.update("jax_default_prng_impl", "rbg")
    request = _request(preset)
    model, keys = describe_model(preset, jax.devices()[:1], compile_now), iter(jax.random.split(jax.random.key(0), 10_000))

    def drawn(leaf: jax.ShapeDtypeStruct) -> jax.Array:
        return (jax.random.normal(next(keys), leaf.shape, jnp.float32) * 0.02).astype(leaf.dtype)

    [network] = [network for network in model.networks if network.expert == 0]
    weights = {network.part: jax.tree.map(drawn, network.program_weights)}
    shape = (1, TEXT_LENGTH, preset.network_configs()["transformer"]["text_dim"])
    texts = {name: np.asarray(jax.random.normal(next(keys), shape)) for name in ("prompt_embeds", "negative_prompt_embeds")}
    step_plan = StepPlan(sigma=1.0, timestep=1000.0, expert=0, guidance=request.guidance[0], is_guided=True)
    step_context, step_state = run(model.make_step_context(weights, request, texts, step_plan, None))
    schedule = make_schedule(request.solver, repeats + 1, request.flow_shift)
    states = model.start(request, texts, draw_initial_noise(request, model))
    seconds = []
    for index in range(repeats + 1):
        began = time.perf_counter()
        row = make_step_inputs(schedule, index, request.guidance[0])
        states, step_state = run(model.step(weights, request, step_context, states, row, step_state, index))
        jax.block_until_ready(states)
        seconds.append(time.perf_counter() - began)
    if not bool(jnp.isfinite(states[VIDEO].sample).all()):
        raise SystemExit("our step made values that are not finite; nothing was timed")
    return {
        "side": "ours",
        "seconds": statistics.median(seconds[1:]),
        "first": seconds[0],
        "device": jax.devices()[0].device_kind,
        "version": f"jax {jax.__version__}",
    }


def diffusers(preset: Preset, repeats: int) -> dict[str, Any]:
    """Return the seconds of the two branches in diffusers, compiled, with its fastest attention backend."""
    import torch
    from diffusers import WanTransformer3DModel

    request, device = _request(preset), "cuda" if torch.cuda.is_available() else "cpu"
    config = preset.network_configs()["transformer"]
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model = WanTransformer3DModel.from_config(config).eval()
        latents = torch.randn(request.geometry().latent_shape(config["in_channels"]))
        text = torch.randn(1, TEXT_LENGTH, config["text_dim"])
        timestep = torch.tensor([500.0])
    timings = {}
    for backend in BACKENDS:
        timing = _timed_backend(torch, model, (latents, timestep, text), backend, repeats, device)
        if timing is not None:
            timings[backend] = timing
    if not timings:
        raise SystemExit("none of diffusers' attention backends works here")
    best = min(timings, key=lambda name: timings[name][0])
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    return {
        "side": "diffusers",
        "seconds": timings[best][0],
        "first": timings[best][1],
        "device": name,
        "backend": best,
        "others": {key: value[0] for key, value in timings.items()},
        "version": f"torch {torch.__version__}",
    }


def _timed_backend(torch, model, arguments: tuple, backend: str, repeats: int, device: str) -> tuple[float, float] | None:
    """Return the median seconds of both branches, and the seconds of the first call. None if the backend is not available."""
    try:
        model.set_attention_backend(backend)
        torch.compiler.reset()
        model.compile_repeated_blocks(dynamic=False)

        @torch.inference_mode()
        def both() -> None:
            for _ in range(2):
                model(*arguments, return_dict=False)
            if device == "cuda":
                torch.cuda.synchronize()

        first, *seconds = [_seconds(both) for _ in range(repeats + 1)]
    except (RuntimeError, ValueError, ImportError, NotImplementedError) as error:
        write_message({"progress": f"diffusers' {backend} is not available: {str(error).splitlines()[0][:120]}"})
        return None
    return statistics.median(seconds), first


def _seconds(function: Callable[[], None]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def _request(preset: Preset) -> GenerationRequest:
    return GenerationRequest.from_preset(preset, prompt=preset.examples[0], seed=0)


SIDES = {"ours": ours, "diffusers": diffusers}


def compare(preset: str, repeats: int, peak_tflops: float) -> dict[str, Any]:
    """Measure both sides of a preset, each in a separate process."""
    sides = {side: _apart(side, preset, repeats) for side in SIDES}
    flops = _flops(find_preset(preset))
    for report in sides.values():
        report["mfu"] = flops / report["seconds"] / (peak_tflops * 1e12)
    return {"preset": preset, **sides, "ratio": sides["diffusers"]["seconds"] / sides["ours"]["seconds"]}


def _apart(side: str, preset: str, repeats: int) -> dict[str, Any]:
    words = [sys.executable, "-m", "benchmarks.step_on_gpu", "--side", side, "--presets", preset, "--repeats", str(repeats)]
    environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}  # jax leaves the rest of the memory to PyTorch
    process = subprocess.run(words, cwd=PROJECT_FOLDER, env=environment, stdout=subprocess.PIPE, text=True)
    messages = [json.loads(line) for line in process.stdout.splitlines() if line.startswith("{")]
    for message in messages:
        sys.stderr.write(f"{side}: {message['progress']}\n" if "progress" in message else "")
    report = next((message["report"] for message in messages if "report" in message), None)
    if process.returncode or report is None:
        raise SystemExit(f"{side} stopped with exit code {process.returncode}; its reason is shown above")
    return report


def _flops(preset: Preset) -> float:
    """Return the floating-point operations of one step with guidance."""
    from backend.models import find_family

    family, _ = find_family(preset)
    return family.step_flops(preset.network_configs(), _request(preset), branches=2).total


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as text."""
    lines = [f"{'preset':26} {'ours s':>8} {'MFU':>5} {'diffusers s':>12} {'MFU':>5} {'ratio':>6}  backend, device, versions"]
    for row in rows:
        own, other = row["ours"], row["diffusers"]
        lines.append(
            f"{row['preset']:26} {own['seconds']:8.3f} {own['mfu']:5.0%} {other['seconds']:12.3f} {other['mfu']:5.0%} "
            f"{row['ratio']:6.2f}  {other['backend']}, {own['device']}, {own['version']}, {other['version']}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--presets", nargs="+", default=list(PRESETS), help="text-to-video presets (both 14B sizes)")
    parser.add_argument("--repeats", type=int, default=3, help="timed steps for each side (%(default)s)")
    parser.add_argument("--peak-tflops", type=float, default=PEAK_TFLOPS, help="dense bfloat16 peak, for MFU (%(default)s)")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    parser.add_argument("--tiny", action="store_true", help="run the demo model's shape, to test the script here")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        write_message({"report": SIDES[arguments.side](find_preset(arguments.presets[0]), arguments.repeats)})
        return
    presets = ["wan-tiny"] if arguments.tiny else arguments.presets
    rows = [compare(preset, arguments.repeats, arguments.peak_tflops) for preset in presets]
    sys.stdout.write(table(rows) + "\n")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()

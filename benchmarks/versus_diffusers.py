"""Compare our engine with diffusers in PyTorch on this machine's CPU, with the same work.

The computations are in float32, unless the name of the row has another dtype.

    python -m benchmarks.versus_diffusers [--json FILE] [--repeats 3]
                                          [--only demo sounding blocks-4680 blocks-17160 blocks-4680-bfloat16 cold second]

`demo` generates the same video with both, `sounding` a video with audio. The `blocks` rows run two transformer blocks of Wan 2.1
1.3B's shape with random weights, at the token counts of 832 x 480 with 9 and 41 frames. Ratios are diffusers' time divided by
ours, in alternating runs. `cold` is the whole command with empty caches, `second` the second request in a running engine.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
import torch
from diffusers import LTX2Pipeline, WanPipeline, WanTransformer3DModel
from safetensors.numpy import load_file

from backend.engine.engine import Engine
from backend.models.ltx.spec import LtxSpec
from backend.models.wan.transformer import BLOCKS, Context, Denoiser, weight_dtype
from backend.pipeline import generate as pipeline_module
from backend.pipeline import load as load_module
from backend.runtime.mesh import Layout, MeshPlan
from backend.runtime.work import run
from backend.schemas.request import GenerationRequest
from backend.weights.stacked import StackedWeights, stack_weights
from presets import load_preset

PROMPT = "a red circle moving right on a black background"
WAN_1_3B = dict(
    num_attention_heads=12,
    attention_head_dim=128,
    in_channels=16,
    out_channels=16,
    text_dim=4096,
    freq_dim=256,
    ffn_dim=8960,
    num_layers=2,
    cross_attn_norm=True,
)
LATENT_FRAMES = {"blocks-4680": 3, "blocks-17160": 11, "blocks-4680-bfloat16": 3}  # latent frames of 1560 tokens each
BARS = {"demo": 1.2, "sounding": 1.2, "blocks-4680": 1.2, "blocks-17160": 1.0}
MOST_SECONDS = {"cold": 60.0, "second": 8.0}
TOLERANCES = {torch.float32: 1e-3, torch.bfloat16: 0.05}  # for velocities up to 3, whose last bit in bfloat16 is 0.016


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One row of the table. Seconds are medians, and `error` is the largest difference of the two results."""

    name: str
    ours_seconds: float
    diffusers_seconds: float | None = None
    ratio: float | None = None
    compile_seconds: float | None = None
    error: float | None = None
    bar: str = ""


def compare(
    name: str, ours: Callable[[], np.ndarray], reference: Callable[[], np.ndarray], repeats: int, tolerance: float
) -> Row:
    """Run both sides once and check that the results agree. Then time both sides alternately."""
    started = time.perf_counter()
    result = ours()
    compile_seconds = time.perf_counter() - started
    error = float(np.abs(result - reference()).max())
    if error > tolerance:
        raise SystemExit(f"{name}: the two results differ by {error:.2g}, more than {tolerance:.2g}; nothing was timed")
    pairs = [(_seconds(ours), _seconds(reference)) for _ in range(repeats)]
    own, other = (statistics.median(times) for times in zip(*pairs, strict=True))
    ratio = statistics.median(second / first for first, second in pairs)
    return Row(
        name=name,
        ours_seconds=own,
        diffusers_seconds=other,
        ratio=ratio,
        compile_seconds=max(0.0, compile_seconds - own),
        error=error,
        bar=f">= {BARS[name]}" if name in BARS else "",
    )


def _seconds(function: Callable[[], object]) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def demo(repeats: int) -> Row:
    """Time the demo model from prompt to pixels on both sides, and compare the latents. Ours also writes previews and the mp4."""
    preset = load_preset("wan-tiny")
    request = GenerationRequest.from_preset(preset, prompt=PROMPT, seed=1)
    loaded = load_module.load(preset, None, lambda event: None)
    pipeline = WanPipeline.from_pretrained(preset.model_source)
    pipeline.set_progress_bar_config(disable=True)
    pipeline.scheduler = type(pipeline.scheduler).from_config(pipeline.scheduler.config, flow_shift=request.flow_shift)

    def ours() -> np.ndarray:
        with tempfile.TemporaryDirectory() as folder:
            list(pipeline_module.generate(request, loaded, Path(folder), lambda: False))
            return load_file(f"{folder}/stage2_latents.safetensors")["latents"]

    def reference() -> np.ndarray:
        latents = []
        pipeline(
            request.prompt,
            negative_prompt=request.negative_prompt,
            width=request.width,
            height=request.height,
            num_frames=request.num_frames,
            num_inference_steps=request.steps,
            guidance_scale=request.guidance[0],
            generator=torch.Generator().manual_seed(request.seed),
            callback_on_step_end=lambda pipe, step, timestep, values: latents.append(values["latents"]) or {},
        )
        return latents[-1].numpy()

    return compare("demo", ours, reference, repeats, tolerance=1e-3)


def sounding(repeats: int) -> Row:
    """Time a video with audio from prompt to pixels and audio samples on both sides, and compare the video latents.

    Our side also writes previews and the mp4.
    """
    preset = load_preset("ltx-tiny")
    request = GenerationRequest.from_preset(preset, prompt=PROMPT, seed=1)
    loaded = load_module.load(preset, None, lambda event: None)
    pipeline = LTX2Pipeline.from_pretrained(preset.model_source, torch_dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)

    def ours() -> np.ndarray:
        with tempfile.TemporaryDirectory() as folder:
            list(pipeline_module.generate(request, loaded, Path(folder), lambda: False))
            return _packed(load_file(f"{folder}/stage2_latents.safetensors")["latents"])

    def reference() -> np.ndarray:
        latents = []
        pipeline(
            request.prompt,
            negative_prompt=request.negative_prompt,
            width=request.width,
            height=request.height,
            num_frames=request.num_frames,
            frame_rate=float(request.fps),
            num_inference_steps=request.steps,
            guidance_scale=request.guidance[0],
            audio_guidance_scale=request.sound_guidance,
            **dict.fromkeys(("stg_scale", "audio_stg_scale", "guidance_rescale", "audio_guidance_rescale"), 0.0),
            **dict.fromkeys(("modality_scale", "audio_modality_scale"), 1.0),
            max_sequence_length=pipeline.tokenizer.model_max_length,
            use_cross_timestep=cast(LtxSpec, loaded.model.spec).crosses_timesteps,
            generator=torch.Generator().manual_seed(request.seed),
            callback_on_step_end=lambda pipe, step, timestep, values: latents.append(values["latents"]) or {},
        )
        return latents[-1].numpy()

    return compare("sounding", ours, reference, repeats, tolerance=1e-3)


def _packed(latents: np.ndarray) -> np.ndarray:
    """Pack latents [1, C, F, H, W] to [1, F * H * W, C], the form of LTX-2's pipelines."""
    return np.moveaxis(latents.reshape(*latents.shape[:2], -1), 1, 2)


def blocks(name: str, repeats: int) -> Row:
    """Time two blocks of Wan 2.1 1.3B's shape on both sides, and compare the velocities.

    The inputs are random latents and 512 text positions, for one guidance branch.
    """
    torch.manual_seed(0)
    dtype = torch.bfloat16 if name.endswith("bfloat16") else torch.float32
    model = WanTransformer3DModel(**WAN_1_3B).eval()
    for key, value in model.named_parameters():
        value.data = value.data.to(torch.float32 if weight_dtype(key, jnp.bfloat16) == jnp.float32 else dtype)
    latents = torch.randn(1, 16, LATENT_FRAMES[name], 60, 104)
    text = torch.randn(1, 512, WAN_1_3B["text_dim"]) * 0.1
    tensors = model.state_dict().items()
    state = {key: jnp.asarray(value.float().numpy(), str(value.dtype).removeprefix("torch.")) for key, value in tensors}
    layout = Layout.create(MeshPlan(), jax.devices()[:1])
    denoiser, weights = Denoiser(model.config, layout), stack_weights(state, [BLOCKS])
    keys = jax.jit(denoiser.prepare_text)(weights, jnp.asarray(text.numpy()), None)
    context = Context(text=keys, positions=run(denoiser.positions(tuple(latents.shape))), condition=None)

    @jax.jit
    def velocity(weights: StackedWeights, noisy: jax.Array, context: Context) -> jax.Array:
        return denoiser.velocity(weights, noisy, (jnp.float32(500.0),), context)

    ours_latents, timestep = jnp.asarray(latents.numpy()), torch.tensor([500.0])
    latents, text = latents.to(dtype), text.to(dtype)

    @torch.inference_mode()
    def reference() -> np.ndarray:
        return model(latents, timestep, text, return_dict=False)[0].float().numpy()

    return compare(name, lambda: np.asarray(velocity(weights, ours_latents, context)), reference, repeats, TOLERANCES[dtype])


def cold(_: int) -> Row:
    """Time `app.py generate` as a new process with empty caches."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "app.py",
            "generate",
            "--preset",
            "wan-tiny",
            "--prompt",
            PROMPT,
            "--output",
            f"{folder}/out.mp4",
            "--data-dir",
            f"{folder}/data",
            "--json",
        ]
        seconds = _seconds(lambda: subprocess.run(command, check=True, capture_output=True))
    return Row(name="cold", ours_seconds=seconds, bar=f"<= {MOST_SECONDS['cold']:g} s")


def second(_: int) -> Row:
    """Time the second request of a running engine."""
    with tempfile.TemporaryDirectory() as folder:
        engine = Engine(Path(folder))
        try:
            times = [_seconds(lambda seed=seed: _run_job(engine, seed)) for seed in (1, 2)]
        finally:
            engine.close()
    return Row(name="second", ours_seconds=times[1], bar=f"<= {MOST_SECONDS['second']:g} s")


def _run_job(engine: Engine, seed: int) -> None:
    request = GenerationRequest.from_preset(load_preset("wan-tiny"), prompt=PROMPT, seed=seed)
    *_, (_, final) = engine.event_log.follow(engine.submit(request).id)
    if final.kind != "finished":
        raise SystemExit(f"the job did not finish: {final}")


def table(rows: list[Row]) -> str:
    """The rows as text."""
    heads = ("work", "ours s", "diffusers s", "ratio", "bar", "compile s", "difference")
    cells = [heads] + [
        (
            row.name,
            _cell(row.ours_seconds, ".2f"),
            _cell(row.diffusers_seconds, ".2f"),
            _cell(row.ratio, ".2f"),
            row.bar,
            _cell(row.compile_seconds, ".1f"),
            _cell(row.error, ".1e"),
        )
        for row in rows
    ]
    widths = [max(len(line[column]) for line in cells) for column in range(len(heads))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in cells)


def _cell(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    pairs = {name: functools.partial(blocks, name) for name in LATENT_FRAMES}
    measure = {"demo": demo, "sounding": sounding} | pairs | {"cold": cold, "second": second}
    parser.add_argument("--only", nargs="+", choices=measure, default=list(measure))
    arguments = parser.parse_args()
    rows = [measure[name](arguments.repeats) for name in arguments.only]
    sys.stdout.write(table(rows) + "\n")
    if arguments.json:
        arguments.json.write_text(json.dumps([dataclasses.asdict(row) for row in rows], indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()

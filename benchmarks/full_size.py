"""A checkpoint of Wan 2.1 T2V 1.3B's true shapes with random weights, built, loaded and run for one step at a tiny size.

    python -m benchmarks.full_size [--json FILE] [--folder build/full-size] [--layers 30] [--disk bfloat16|float32]
                                   [--text-layers 2] [--vocabulary 32768] [--shard-bytes 1000000000] [--only load]

The transformer and the VAE have the real shapes. Reduced are the text encoder's layers (2 of 24) and vocabulary (32,768 of
256,384); its widths are the real ones. The whole UMT5-XXL, `--text-layers 24 --vocabulary 256384 --only load`, needs 15.4 GB of
memory to load, and 33 GB to run on a CPU, where XLA keeps a float32 copy of every bfloat16 matrix. The tokenizer is the demo
model's. On a CPU the device's arrays lie in the host's memory too, so loading itself needs the peak minus those arrays.
The numerics are those of tests/parity: random weights make no picture, and the result is only checked to be finite.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file

from presets import load_preset

PRESET = "wan2.1-t2v-1.3b-480p"
SIZE = {"width": 256, "height": 256, "num_frames": 5, "steps": 1}
GIGABYTE = 1e9
BUILT = "built.json"  # the options that the folder was built with; written last


def build(folder: Path, arguments: argparse.Namespace) -> None:
    """Writes the checkpoint's folder, unless it is there already."""
    options = {name: getattr(arguments, name) for name in ("layers", "disk", "text_layers", "vocabulary", "shard_bytes")}
    if (folder / BUILT).is_file() and json.loads((folder / BUILT).read_text()) == options:
        return
    shutil.rmtree(folder, ignore_errors=True)
    configs = load_preset(PRESET).network_configs()
    configs["transformer"] |= {"num_layers": arguments.layers, "_class_name": "WanTransformer3DModel"}
    configs["text_encoder"] |= {"num_layers": arguments.text_layers, "vocab_size": arguments.vocabulary}
    shutil.copytree(Path(load_preset("wan-tiny").model_source) / "tokenizer", folder / "tokenizer")
    dtype = getattr(torch, arguments.disk)
    for part, shapes in _shapes(configs).items():
        (folder / part).mkdir()
        (folder / part / "config.json").write_text(json.dumps(configs[part]))
        _write(folder / part, shapes, dtype, arguments.shard_bytes)
    index = {part: ["diffusers", "a network"] for part in (*configs, "tokenizer")}
    (folder / "model_index.json").write_text(json.dumps(index | {"_class_name": "WanPipeline", "transformer_2": [None, None]}))
    (folder / BUILT).write_text(json.dumps(options))


def _shapes(configs: dict[str, dict]) -> dict[str, dict[str, torch.Size]]:
    """Every tensor's shape, by part, from the real classes without their weights."""
    from diffusers import AutoencoderKLWan, WanTransformer3DModel
    from transformers import UMT5Config, UMT5EncoderModel

    text = UMT5Config(**{name: value for name, value in configs["text_encoder"].items() if name != "architectures"})
    with torch.device("meta"):
        models = {
            "transformer": WanTransformer3DModel.from_config(configs["transformer"]),
            "vae": AutoencoderKLWan.from_config(configs["vae"]),
            "text_encoder": UMT5EncoderModel(text),
        }
    tied = "encoder.embed_tokens.weight"
    return {
        part: {name: value.shape for name, value in model.state_dict().items() if name != tied} for part, model in models.items()
    }


def _write(folder: Path, shapes: dict[str, torch.Size], dtype: torch.dtype, shard_bytes: int) -> None:
    """Shards with an index, as diffusers writes them, with one shard in memory at a time."""
    torch.manual_seed(0)
    shards = list(_shards(shapes, dtype.itemsize, shard_bytes))
    where = {}
    for number, names in enumerate(shards, 1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        save_file({name: _random(name, shapes[name], dtype) for name in names}, folder / file)
        where |= dict.fromkeys(names, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))


def _shards(shapes: dict[str, torch.Size], item_bytes: int, shard_bytes: int) -> Iterator[list[str]]:
    names, size = [], 0
    for name, shape in shapes.items():
        if names and size + shape.numel() * item_bytes > shard_bytes:
            yield names
            names, size = [], 0
        names.append(name)
        size += shape.numel() * item_bytes
    yield names


def _random(name: str, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    value = torch.randn(shape, dtype=dtype).mul_(0.02)
    return value.add_(1) if "norm" in name and name.endswith(("weight", "gamma")) else value


def measure(folder: Path, only_load: bool) -> dict:
    """Load and run in this process: seconds and bytes."""
    import jax
    import numpy as np

    from backend.contract.request import GenerationRequest
    from backend.pipeline import generate as pipeline
    from backend.pipeline import load as load_module

    preset = load_preset(PRESET)
    jax.devices()
    before, began = resident_bytes("VmRSS"), time.monotonic()
    loaded = load_module.load(preset, str(folder), lambda event: None)
    jax.block_until_ready([expert.weights for expert in loaded.experts])
    seconds = time.monotonic() - began
    on_device, peak = sum(array.nbytes for array in jax.live_arrays()), resident_bytes("VmHWM")
    figures = {
        "load_seconds": seconds,
        "checkpoint_bytes": sum(path.stat().st_size for path in folder.glob("*/*.safetensors")),
        "largest_shard_bytes": max(path.stat().st_size for path in folder.glob("*/*.safetensors")),
        "device_bytes": on_device,
        "process_bytes_before": before,
        "load_peak_bytes": peak,
        "load_overhead_bytes": peak - on_device - before,
    }
    if only_load:
        return figures
    request = GenerationRequest.from_preset(preset, prompt="a red circle", seed=0, **SIZE)
    with tempfile.TemporaryDirectory() as place:
        for name in ("first", "second"):  # the first run compiles
            last = list(pipeline.generate(request, loaded, Path(place), lambda: False))[-1]
            figures[f"{name}_run_seconds"] = last.result.seconds
        from safetensors.numpy import load_file

        assert np.isfinite(load_file(Path(place) / "stage2_latents.safetensors")["latents"]).all()
    return figures | {"run_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


def resident_bytes(kind: str) -> int:
    """This process's memory as Linux counts it: VmRSS now, VmHWM at most."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(kind))


def table(figures: dict) -> str:
    """The figures as text."""
    lines = [
        f"{name.removesuffix('_bytes').replace('_', ' '):24} {figures[name] / GIGABYTE:8.2f} GB"
        for name in figures
        if name.endswith(("_bytes", "_before"))
    ]
    lines.append(f"{'load':24} {figures['load_seconds']:8.1f} s")
    for name in ("first_run_seconds", "second_run_seconds"):
        if name in figures:
            stages = ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in figures[name].items())
            lines.append(f"{name.removesuffix('_seconds').replace('_', ' '):24} {stages} s")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--folder", type=Path, default=Path("build/full-size"))
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--disk", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--text-layers", type=int, default=2)
    parser.add_argument("--vocabulary", type=int, default=32768)
    parser.add_argument("--shard-bytes", type=int, default=1_000_000_000)
    parser.add_argument("--only", choices=("build", "load"))
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:  # in a process of its own, so that building leaves no trace in the peak
        sys.stdout.write(json.dumps(measure(arguments.folder, arguments.only == "load")) + "\n")
        return
    build(arguments.folder, arguments)
    if arguments.only == "build":
        return
    words = [sys.executable, "-m", "benchmarks.full_size", "--measure", "--folder", str(arguments.folder)]
    words += ["--only", "load"] if arguments.only else []
    figures = json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1])
    sys.stdout.write(table(figures) + "\n")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()

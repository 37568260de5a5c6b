"""Build a checkpoint with a preset's real shapes and random weights, load it and run one step at a tiny size.

    python -m benchmarks.full_size [--preset wan2.1-t2v-1.3b-480p] [--json FILE] [--folder build/full-size] [--layers N]
                                   [--disk bfloat16|float32] [--text-layers 2] [--vocabulary 32768]
                                   [--shard-bytes 1000000000] [--only load]

`SOURCES` lists the presets. The transformer and the VAE have the real shapes. The large text encoder has the real widths, but
fewer layers (2) and a smaller vocabulary (32,768). The whole UMT5-XXL, `--text-layers 24 --vocabulary 256384 --only load`, needs
15.4 GB of memory to load. It would need 33 GB to run on a CPU, where XLA keeps a float32 copy of every bfloat16 matrix. For the
same reason HunyuanVideo 1.5 (21 GB of arrays) can be loaded here, but not run. The tokenizer comes from the demo model. On a CPU
the device's arrays are in host memory too, so loading itself needs the peak minus these arrays. Random weights generate no
image, so the result is only checked to be finite; tests/parity checks the numerics.
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
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file

from backend.schemas.events import Finished
from backend.weights.place import allocate_host_memory
from presets import load_preset


@dataclass(frozen=True, kw_only=True)
class Source:
    """The parts of a preset's checkpoint: diffusers' pipeline, each network's class (of diffusers or transformers), and the demo
    model whose tokenizers are used."""

    pipeline: str
    classes: dict[str, str]
    demo: str


SOURCES = {
    "wan2.1-t2v-1.3b-480p": Source(
        pipeline="WanPipeline",
        classes={"transformer": "WanTransformer3DModel", "vae": "AutoencoderKLWan", "text_encoder": "UMT5EncoderModel"},
        demo="wan-tiny",
    ),
    "hunyuanvideo-1.5-t2v-720p": Source(
        pipeline="HunyuanVideo15Pipeline",
        classes={
            "transformer": "HunyuanVideo15Transformer3DModel",
            "vae": "AutoencoderKLHunyuanVideo15",
            "text_encoder": "Qwen2_5_VLTextModel",
            "text_encoder_2": "T5EncoderModel",
        },
        demo="hunyuan-tiny",
    ),
}
OPTIONS = ("preset", "layers", "disk", "text_layers", "vocabulary", "shard_bytes")
SIZE = {"width": 256, "height": 256, "num_frames": 5, "steps": 1}
GIGABYTE = 1e9
BUILT = "built.json"  # the options of the build; written last


def build(folder: Path, arguments: argparse.Namespace) -> None:
    """Write the checkpoint's folder, unless it was built with the same options."""
    options = {name: getattr(arguments, name) for name in OPTIONS}
    if (folder / BUILT).is_file() and json.loads((folder / BUILT).read_text()) == options:
        return
    shutil.rmtree(folder, ignore_errors=True)
    source = SOURCES[arguments.preset]
    configs = load_preset(arguments.preset).network_configs()
    if arguments.layers:
        configs["transformer"]["num_layers"] = arguments.layers
    text = configs["text_encoder"]
    text["num_hidden_layers" if "num_hidden_layers" in text else "num_layers"] = arguments.text_layers
    text["vocab_size"] = arguments.vocabulary
    tokenizers = [path for path in Path(load_preset(source.demo).model_source).iterdir() if path.name.startswith("tokenizer")]
    for tokenizer in tokenizers:
        shutil.copytree(tokenizer, folder / tokenizer.name)
    dtype = getattr(torch, arguments.disk)
    for part, class_name in source.classes.items():
        (folder / part).mkdir()
        (folder / part / "config.json").write_text(json.dumps(configs[part] | {"_class_name": class_name}))
        _write(folder / part, _shapes(class_name, configs[part]), dtype, arguments.shard_bytes)
    index = {part: ["diffusers", "a network"] for part in (*source.classes, *(path.name for path in tokenizers))}
    (folder / "model_index.json").write_text(json.dumps(index | {"_class_name": source.pipeline, "transformer_2": [None, None]}))
    (folder / BUILT).write_text(json.dumps(options))


def _shapes(class_name: str, config: dict) -> dict[str, torch.Size]:
    """Return every tensor's shape, from the real class without weights."""
    import diffusers
    import transformers

    with torch.device("meta"):
        if hasattr(diffusers, class_name):
            model = getattr(diffusers, class_name).from_config(config)
        else:
            network = getattr(transformers, class_name)
            settings = {name: value for name, value in config.items() if name not in ("architectures", "model_type")}
            model = network(network.config_class(**settings))
    tied = "encoder.embed_tokens.weight"
    return {name: value.shape for name, value in model.state_dict().items() if name != tied}


def _write(folder: Path, shapes: dict[str, torch.Size], dtype: torch.dtype, shard_bytes: int) -> None:
    """Write shards with an index, as diffusers does, with one shard in memory at a time."""
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


def measure(name: str, folder: Path, only_load: bool) -> dict:
    """Load and run in this process. Return seconds and bytes."""
    import jax
    import numpy as np

    from backend.models import find_family
    from backend.pipeline import generate as pipeline
    from backend.pipeline import load as load_module
    from backend.schemas.request import GenerationRequest

    preset = load_preset(name)
    jax.devices()
    find_family(preset)[0].model()  # import the networks' libraries before timing: the import takes seconds
    before, began = resident_bytes("VmRSS"), time.monotonic()
    loaded = load_module.load(preset, str(folder), lambda event: None)
    jax.block_until_ready([expert.weights for expert in loaded.experts])
    seconds = time.monotonic() - began
    copy_to_devices, peak = (
        sum({id(leaf): leaf.nbytes for leaf in jax.tree.leaves(loaded.weights)}.values()),
        resident_bytes("VmHWM"),
    )
    figures = {
        "load_seconds": seconds,
        "checkpoint_bytes": sum(path.stat().st_size for path in folder.glob("*/*.safetensors")),
        "largest_shard_bytes": max(path.stat().st_size for path in folder.glob("*/*.safetensors")),
        "device_bytes": copy_to_devices,
        "process_bytes_before": before,
        "load_peak_bytes": peak,
        "load_overhead_bytes": peak - copy_to_devices - before,
    }
    if only_load:
        return figures
    request = GenerationRequest.from_preset(preset, prompt="a red circle", seed=0, **SIZE)
    with tempfile.TemporaryDirectory() as place:
        for name in ("first", "second"):  # the first run compiles
            last = list(pipeline.generate(request, loaded, Path(place), lambda: False))[-1]
            assert isinstance(last, Finished), last
            figures[f"{name}_run_seconds"] = last.result.seconds
        from safetensors.numpy import load_file

        assert np.isfinite(load_file(Path(place) / "stage2_latents.safetensors")["latents"]).all()
    return figures | {"run_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


def fresh_memory_rate() -> float:
    """Measure the rate of first writes to new memory in huge pages, in bytes per second.

    No array can be loaded faster. A virtual machine may have to request each page from its host.
    """
    count = 4_000_000_000
    memory, began = allocate_host_memory(count), time.monotonic()
    memory[::4096] = 1
    return count / (time.monotonic() - began)


def resident_bytes(kind: str) -> int:
    """Return this process's memory as Linux counts it: VmRSS is the current value, VmHWM the peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(kind))


def table(figures: dict) -> str:
    """The figures as text."""
    lines = [
        f"{name.removesuffix('_bytes').replace('_', ' '):24} {figures[name] / GIGABYTE:8.2f} GB"
        for name in figures
        if name.endswith(("_bytes", "_before"))
    ]
    read = figures["checkpoint_bytes"] / figures["load_seconds"]
    lines.append(f"{'load':24} {figures['load_seconds']:8.1f} s, {read / GIGABYTE:.2f} GB/s")
    lines.append(f"{'fresh memory':24} {figures['fresh_memory_bytes_per_second'] / GIGABYTE:8.2f} GB/s")
    for name in ("first_run_seconds", "second_run_seconds"):
        if name in figures:
            stages = ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in figures[name].items())
            lines.append(f"{name.removesuffix('_seconds').replace('_', ' '):24} {stages} s")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", choices=SOURCES, default=next(iter(SOURCES)))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--folder", type=Path, default=Path("build/full-size"))
    parser.add_argument("--layers", type=int, help="layers of the transformer (as in the preset)")
    parser.add_argument("--disk", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--text-layers", type=int, default=2)
    parser.add_argument("--vocabulary", type=int, default=32768)
    parser.add_argument("--shard-bytes", type=int, default=1_000_000_000)
    parser.add_argument("--only", choices=("build", "load"))
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:  # in a separate process, so that building does not count in the peak
        sys.stdout.write(json.dumps(measure(arguments.preset, arguments.folder, arguments.only == "load")) + "\n")
        return
    build(arguments.folder, arguments)
    if arguments.only == "build":
        return
    words = [sys.executable, "-m", "benchmarks.full_size", "--measure", "--preset", arguments.preset, "--folder"]
    words += [str(arguments.folder)]
    words += ["--only", "load"] if arguments.only else []
    rate = fresh_memory_rate()
    figures = json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1])
    figures["fresh_memory_bytes_per_second"] = rate
    sys.stdout.write(table(figures) + "\n")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""Measure the cost of changing models: `python -m benchmarks.model_changes [--only changes|back|coming|chips]`.

changes: one worker alternates two demo models eight times. Each video is generated twice before the next change. The cost of a
change is the additional time of the first of these two videos. The worker's memory must not grow.

back: compare reading a checkpoint from the page cache with returning its arrays from host memory. The checkpoint has Wan 2.1
1.3B's real shapes and random weights (`benchmarks.full_size`). On a CPU, device memory is host memory, so no array is copied. The
seconds of the copy that a chip needs are measured and printed too.

coming: measure how much longer the steps of one model take while the checkpoint of `back` is read. Runs with and without reading
alternate.

chips: predict changes between Wan A14B and HunyuanVideo-1.5 on a v6e:2x4. The prediction uses the bytes of their weights, the
memory of a chip that the compiler reports for a video, and the rate between a chip and its host.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

from backend.chips import CHIPS, GIB
from backend.engine.engine import Engine
from backend.pipeline.generate import generate
from backend.pipeline.load import load
from backend.pipeline.loaded import LoadedModel
from backend.pipeline.model_cache import ROOM, Bounds, ModelCache
from backend.schemas.events import Finished
from backend.schemas.request import example_request
from backend.weights import cached_network
from backend.workers.prefetch import Prefetch
from presets import load_preset

PAIR = ("wan-tiny", "hunyuan-tiny")
CHANGES = 8
MOST_SECONDS, MOST_GROWTH = 0.3, 100e6
LARGEST_SHARE = 1 / 5
TURNS, MOST_SLOWER = 3, 0.05
FULL_SIZE = "wan2.1-t2v-1.3b-480p"
LINK = 16e9  # bytes per second between a chip and its host, each way: published for a TPU v4 (jax-ml/scaling-book, tpus.md)
ON_CHIPS = ("wan2.2-t2v-a14b-720p", "hunyuanvideo-1.5-t2v-720p")
CHIPS_IN_ALL = 8


def measure_changes() -> bool:
    """Measure changes of model. Return whether their cost and the memory's growth are within bounds."""
    costs, memory = [], []
    with tempfile.TemporaryDirectory() as folder:
        engine = Engine(Path(folder), preset=PAIR[0], warm_up=False)
        try:
            for name in (*PAIR, *PAIR):  # load and compile both models before timing
                _video(engine, name)
            for turn in range(CHANGES):
                name = PAIR[turn % 2]
                first, second = _video(engine, name), _video(engine, name)
                costs.append(first - second)
                pid = engine.pool.workers()[0].pid
                assert pid is not None, "the worker is ready"
                memory.append(_resident(pid))
                print(f"to {name:14} {first:7.3f} s, again {second:7.3f} s; the worker has {memory[-1] / 1e6:.0f} MB", flush=True)
        finally:
            engine.close()
    cost, growth = statistics.median(costs), memory[-1] - memory[0]
    print(f"a change costs {cost:.3f} s beyond the video (at most {max(costs):.3f}), bound {MOST_SECONDS} s")
    print(f"memory grew by {growth / 1e6:.0f} MB in {CHANGES} changes, bound {MOST_GROWTH / 1e6:.0f} MB")
    return cost <= MOST_SECONDS and growth <= MOST_GROWTH


def _video(engine: Engine, name: str) -> float:
    began = time.monotonic()
    job = engine.submit(example_request(load_preset(name)))
    *_, (_, final) = engine.event_log.follow(job.id)
    if not isinstance(final, Finished):
        raise SystemExit(f"{name}: {final}")
    return time.monotonic() - began


def _resident(pid: int) -> int:
    rows = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(row.split()[1]) * 1024 for row in rows if row.startswith("VmRSS"))


def measure_return(folder: Path) -> bool:
    """Measure how long arrays take to return to the device. Return whether this is at most a fifth of the time to read them."""
    _load_and_return(folder)  # reads the files into the page cache
    loads, moves = zip(*(_load_and_return(folder) for _ in range(3)), strict=True)
    share = statistics.median(moves) / statistics.median(loads)
    print(f"returning takes {share:.3f} of the time of reading from the page cache, bound {LARGEST_SHARE}")
    with mock.patch.object(cached_network, "is_host", lambda leaf: False):
        _, copied = _load_and_return(folder)
    print(f"copied from one part of the memory to another, as to a chip: {copied:.2f} s")
    return share <= LARGEST_SHARE


def _load_and_return(folder: Path) -> tuple[float, float]:
    """Return the seconds to read the checkpoint, and the seconds to return its arrays after another model was loaded."""
    preset, key = load_preset(FULL_SIZE), (str(folder), load_preset(FULL_SIZE).dtype)
    model_cache = ModelCache(lambda: Bounds(chips=0, host=20 * 10**9, device_bytes=10**12))
    began = time.monotonic()
    loaded = load(preset, str(folder), lambda event: None, model_cache=model_cache)
    read = time.monotonic() - began
    load(load_preset(PAIR[0]), None, lambda event: None, model_cache=model_cache)
    [host] = [model.host_bytes for model in model_cache.list_models() if model.model == key[0]]
    began = time.monotonic()
    if model_cache.activate(key) is not loaded:
        raise SystemExit("the model was not kept")
    back = time.monotonic() - began
    print(f"read {read:.2f} s; {host / 1e9:.2f} GB returned in {back:.3f} s", flush=True)
    return read, back


def measure_prefetch(folder: Path) -> bool:
    """Measure steps while another model is read. Return whether the slowdown is within its bound."""
    preset = load_preset(PAIR[1])
    model_cache = ModelCache(lambda: Bounds(device_bytes=10**12))
    loaded = load(preset, None, lambda event: None, model_cache=model_cache)
    _denoising(loaded)  # the first video compiles
    alone, beside, arrived = [], [], 0
    for _ in range(TURNS):
        alone.append(_denoising(loaded))
        fetch = Prefetch(
            ("", ""), lambda tell: load(load_preset(FULL_SIZE), str(folder), tell, model_cache=model_cache, is_used=False)
        )
        beside.append(_denoising(loaded))
        arrived += not fetch.is_running
        fetch.abandon()
        model_cache.unload_idle()
    usual, share = statistics.median(alone), statistics.median(beside) / statistics.median(alone) - 1
    print(f"the steps take {usual:.2f} s alone, {share:+.1%} while another model is read, bound {MOST_SLOWER:.0%}")
    print(f"{arrived} of {TURNS} models of 4.1 GB were read in that time")
    return share <= MOST_SLOWER


def _denoising(loaded: LoadedModel) -> float:
    """Return the seconds of all steps of a video."""
    with tempfile.TemporaryDirectory() as folder:
        *_, final = generate(example_request(load_preset(PAIR[1])), loaded, Path(folder), lambda: False)
    assert isinstance(final, Finished), final
    return final.result.seconds["denoise"]


def print_chip_predictions() -> bool:
    """Print the predictions for both models on a v6e:2x4."""
    needs = json.loads((Path("presets") / "needs.json").read_text())
    models = {}
    for name in ON_CHIPS:
        of_model = needs[load_preset(name).model_source]
        peak = next(one["gib"] for one in of_model["slices"] if one["preset"] == name and one["slice"] == "v6e:2x4") * GIB
        models[name] = sum(of_model["weights"].values()), peak
    room = ROOM * CHIPS["v6e"].hbm_bytes
    for name, (size, peak) in models.items():
        [other] = [one for one in ON_CHIPS if one != name]
        both = peak + models[other][0] / CHIPS_IN_ALL
        where = "stays on the chips" if both <= room else "goes to the host's memory and comes back"
        seconds = size / CHIPS_IN_ALL / LINK
        print(f"{name}: {size / 1e9:.1f} GB of weights, {peak / GIB:.1f} GiB a chip while it runs; beside it {other} {where}")
        print(f"  {both / GIB:.1f} of {room / GIB:.1f} GiB with both; one copy of its weights takes {seconds:.2f} s (predicted)")
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=("changes", "back", "coming", "chips"))
    parser.add_argument("--folder", type=Path, default=Path("build/full-size"))
    arguments = parser.parse_args()
    folder = arguments.folder
    if arguments.only in (None, "back", "coming") and not folder.is_dir():
        subprocess.run([sys.executable, "-m", "benchmarks.full_size", "--only", "build", "--folder", str(folder)], check=True)
    parts = {
        "changes": measure_changes,
        "back": lambda: measure_return(folder),
        "coming": lambda: measure_prefetch(folder),
        "chips": print_chip_predictions,
    }
    results = [run() for name, run in parts.items() if arguments.only in (None, name)]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()

"""Tests of the command line, partly in a separate process: bad input gives one line and an exit code, and leaves no files."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import closing
from pathlib import Path

import gradio_client
import numpy
import pytest
from PIL import Image

import app as command_line
from backend.engine.store import Store
from backend.settings import PROJECT_FOLDER, this_machine
from tests.clock import is_within
from tests.many_devices import without_quick
from tests.png_header import png_claiming

GOOD = {"--preset": "wan-tiny", "--prompt": "a red circle moving right on a black background"}


def app(*words: str, cwd: Path = PROJECT_FOLDER) -> subprocess.CompletedProcess:
    command = [sys.executable, str(PROJECT_FOLDER / "app.py"), *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60)


def generate(folder: Path, **options: str) -> subprocess.CompletedProcess:
    """Run `generate` with valid values except for `options`, in a folder that contains only the test's files."""
    return app(*generate_words(**options), cwd=folder)


def generate_words(**options: str) -> list[str]:
    given = {**GOOD, "--output": "out.mp4", "--data-dir": "data", **{f"--{name}": value for name, value in options.items()}}
    return ["generate", *(word for pair in given.items() for word in pair), "--json"]


def main(words: list[str]) -> int:
    """Run the command line in this process, and restore the signal handlers."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        return command_line.main(words)
    except SystemExit as end:
        return end.code
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.fixture
def inputs(tmp_path) -> Path:
    """Return a folder with unusable images, and with a folder at the path of an output file."""
    (tmp_path / "text.png").write_text("not a picture")
    noise = numpy.random.default_rng(0).integers(0, 256, (80, 80, 3), dtype=numpy.uint8)
    Image.fromarray(noise).save(tmp_path / "whole.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "whole.png").read_bytes()[:5000])
    (tmp_path / "huge.png").write_bytes(png_claiming(20_000, 20_000))
    (tmp_path / "taken.mp4").mkdir()
    (tmp_path / "file").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"preset": "wan-tny"}, "did you mean wan-tiny?"),
        ({"frames": "30"}, "num_frames=30 must be 4n+1; nearest: 29 or 33"),
        pytest.param({"width": "0"}, "width=0 must be between 96 and 128 for wan-tiny; nearest: 96", marks=pytest.mark.slow),
        pytest.param({"height": "0"}, "height=0 must be between 96 and 128 for wan-tiny; nearest: 96", marks=pytest.mark.slow),
        ({"width": "100"}, "width=100 must be a multiple of 32 for wan-tiny; nearest: 96 or 128"),
        ({"steps": "-4"}, "steps=-4 must be between 1 and 100; 20 is usual"),
        ({"prompt": ""}, "prompt is empty and must say what the video shows"),
        pytest.param({"prompt": "  "}, "prompt is empty and must say what the video shows", marks=pytest.mark.slow),
        pytest.param({"seed": "-1"}, "seed=-1 must be between 0 and 4294967295", marks=pytest.mark.slow),
        ({"guidance": "nan"}, "guidance=nan must be between 0 and 30"),
        pytest.param({"flow-shift": "inf"}, "flow_shift=inf must be above 0 and at most 100", marks=pytest.mark.slow),
        ({"image": "none.png"}, "image 'none.png' must be a file, but no file is at that path"),
        ({"image": "text.png"}, "image 'text.png' is a text file and must be a picture"),
        pytest.param({"image": "cut.png"}, "image 'cut.png' is damaged or cut short", marks=pytest.mark.slow),
        ({"image": "huge.png"}, "image 'huge.png' is too large"),
        ({"image": "whole.png", "last-image": "whole.png"}, "last_image was given but wan-tiny takes a first image only"),
        pytest.param(
            {"video": "none.mp4"}, "clip 'none.mp4' must be a file, but no file is at that path", marks=pytest.mark.slow
        ),
        ({"video": "text.png"}, "clip 'text.png' must be a video (mp4 or mov, webm, gif); choose another file"),
        ({"video": "whole.png", "trim": "0,1"}, "trim=0,1 is 16 frames at 16 fps and must be 13 or 17"),
        ({"strength": "0.5"}, "strength was given but needs a clip"),
        ({"output": "none/out.mp4"}, "must be in an existing folder"),
        pytest.param({"output": "file/out.mp4"}, "must be in an existing folder", marks=pytest.mark.slow),
        ({"output": "taken.mp4"}, "must be a file, and is a folder"),
        ({"output": "/proc/out.mp4"}, "output='/proc/out.mp4' must be writable"),
        ({"output": "out.txt"}, "must end in .mp4"),
        ({"model": "./none"}, "model='./none' must be a checkpoint folder"),
    ],
)
def test_bad_input_gets_its_line_and_leaves_nothing(inputs, options, message, monkeypatch, capsys):
    before = sorted(inputs.rglob("*"))
    monkeypatch.chdir(inputs)
    assert main(generate_words(**options)) == 2
    told, complained = capsys.readouterr()
    assert told == "" and message in complained and complained.count("\n") == 1
    assert sorted(inputs.rglob("*")) == before


@pytest.mark.parametrize(
    ("options", "message"), [({"frames": "30"}, "nearest: 29 or 33"), ({"image": "huge.png"}, "image 'huge.png' is too large")]
)
def test_so_does_a_process_of_its_own_which_ends_with_that_code(inputs, options, message):
    before = sorted(inputs.rglob("*"))
    done = generate(inputs, **options)
    assert done.returncode == 2 and done.stdout == ""
    assert message in done.stderr and done.stderr.count("\n") == 1
    assert sorted(inputs.rglob("*")) == before


@pytest.mark.bench
def test_a_refusal_does_not_keep_one_waiting(inputs):
    began = time.monotonic()
    generate(inputs, image="huge.png")
    assert is_within(time.monotonic() - began, 5)  # 0.5 s on an idle machine


def test_presets_are_listed_and_shown():
    listed = app("presets", "list")
    assert listed.returncode == 0 and listed.stdout.splitlines()[0].startswith("wan-tiny ")
    assert [preset["name"] for preset in json.loads(app("presets", "list", "--json").stdout)][0] == "wan-tiny"
    assert "flow_shift: 5.0\n" in app("presets", "show", "wan2.1-t2v-14b-720p").stdout
    assert json.loads(app("presets", "show", "wan-tiny", "--json").stdout)["num_frames"] == 17


def test_an_unknown_preset_cannot_be_shown():
    done = app("presets", "show", "wan-tny")
    assert (done.returncode, done.stdout) == (2, "") and "did you mean wan-tiny?" in done.stderr


def test_it_works_from_any_folder(tmp_path):
    assert app("presets", "list", cwd=tmp_path).returncode == 0 and list(tmp_path.iterdir()) == []


def test_help_offers_what_works_only():
    told = app("--help").stdout
    commands = ("serve", "generate", "encode", "denoise", "decode", "presets", "check-tpu", "precompile", "models", "doctor")
    assert all(word in told for word in commands)


@pytest.mark.parametrize("command", ["serve", "generate"])
def test_a_data_folder_that_cannot_be_used_is_exit_code_1(inputs, command):
    words = ["generate", *(word for pair in GOOD.items() for word in pair)] if command == "generate" else ["serve"]
    done = app(*words, "--data-dir", "file/data", cwd=inputs)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "choose another with --data-dir" in done.stderr


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM])
def test_a_signal_stops_cleanly(tmp_path, close_gate, number):
    close_gate("a held square", "step 3")
    words = [
        "-m",
        "tests.run_with_fake_pipeline",
        "generate",
        "--preset",
        "wan-tiny",
        "--prompt",
        "a held square",
        "--output",
        str(tmp_path / "out.mp4"),
        "--data-dir",
        str(tmp_path / "data"),
        "--json",
    ]
    process = subprocess.Popen(
        [sys.executable, *words], cwd=PROJECT_FOLDER, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while "Step 2" not in (line := process.stderr.readline()):
        assert line, "it ended too early"
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1 and out == ""
    assert "Stopping\n" in err and err.splitlines()[-1].startswith("Stopped; the unfinished video is at ")
    assert Path(err.splitlines()[-1].rpartition(" ")[2]).is_file() and not (tmp_path / "out.mp4").exists()


@pytest.mark.bench
@pytest.mark.browser
def test_the_first_page_comes_within_5_seconds_and_a_signal_ends_everything(tmp_path):
    port = _free_port()
    began = time.monotonic()
    with (tmp_path / "errors").open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "app.py", "--port", str(port), "--data-dir", str(tmp_path / "data")],
            cwd=PROJECT_FOLDER,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env=without_quick(),
        )
    try:
        while not _answers(port):
            assert process.poll() is None and time.monotonic() - began < 30
            time.sleep(0.05)
        seconds = time.monotonic() - began
    finally:
        process.send_signal(signal.SIGTERM)
    assert process.wait(10) in (0, 1)
    assert (tmp_path / "errors").read_text("utf-8").startswith("Starting Wan TPU Studio ")
    assert is_within(seconds, 5)


@pytest.mark.parametrize(("count", "words"), [("0", "workers=0 must be "), ("99999", "workers=99999 must be ")])
def test_workers_that_the_machine_does_not_allow_are_refused(tmp_path, count, words):
    done = app("serve", "--workers", count, "--data-dir", str(tmp_path / "data"))
    assert done.returncode == 2 and done.stderr.startswith(words) and done.stderr.count("\n") == 1
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("address", "code", "words"),
    [("ray://head:1", 2, "cluster='ray://head:1' must be HOST:PORT"), ("127.0.0.1:9", 1, "the cluster at 127.0.0.1:9 cannot be")],
)
def test_a_cluster_that_cannot_be_is_refused(tmp_path, address, code, words):
    pytest.importorskip("ray")
    done = app("serve", "--cluster", address, "--data-dir", str(tmp_path / "data"))
    assert done.returncode == code and done.stderr.startswith(words) and done.stderr.count("\n") == 1
    assert not (tmp_path / "data").exists()


def test_without_ray_the_command_line_says_what_to_install(tmp_path):
    (tmp_path / "block").mkdir()
    (tmp_path / "block/sitecustomize.py").write_text(
        "import importlib.util as u; f = u.find_spec; u.find_spec = lambda name, *rest: None if name == 'ray' else f(name, *rest)"
    )
    command = [sys.executable, "app.py", "serve", "--cluster", "head:6379", "--data-dir", str(tmp_path / "data")]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "block")}
    done = subprocess.run(command, cwd=PROJECT_FOLDER, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert done.stderr.startswith("--cluster needs Ray") and "pip install -r requirements-cluster.txt" in done.stderr


@pytest.mark.slow  # two real workers start; tests/backend/engine/test_workers.py tests the distribution of jobs
@pytest.mark.demo_model
@pytest.mark.skipif(len(this_machine().cores) < 2, reason="two workers need two cores")
def test_two_workers_make_two_videos_at_the_same_time(tmp_path):
    port = _free_port()
    words = ["serve", "--workers", "2", "--port", str(port), "--data-dir", str(tmp_path / "data")]
    process = subprocess.Popen(
        [sys.executable, "app.py", *words], cwd=PROJECT_FOLDER, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        _wait_for_workers(port, ready=2)
        client = gradio_client.Client(f"http://127.0.0.1:{port}/", verbose=False)
        jobs = [client.submit(GOOD["--prompt"], "wan-tiny", None, {"seed": seed}, api_name="/generate") for seed in (1, 2)]
        videos = [job.result(timeout=120) for job in jobs]
    finally:
        process.send_signal(signal.SIGTERM)
    assert process.wait(60) in (0, 1)
    assert all(Path(video).read_bytes()[4:8] == b"ftyp" for video, _ in videos)
    with closing(Store(tmp_path / "data" / "jobs.sqlite3")) as store:
        first, second = store.jobs.list_jobs()
        assert max(first.started, second.started) < min(first.ended, second.ended)


def _wait_for_workers(port: int, ready: int) -> None:
    until = time.monotonic() + 240  # both workers compile, each with one core
    while list(_health(port).get("workers", {}).values()).count("ready") < ready:
        assert time.monotonic() < until, "the workers did not become ready"
        time.sleep(0.2)


def _health(port: int) -> dict:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5) as answer:
            return json.load(answer)
    except OSError:
        return {}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5) as page:
            return page.status == 200
    except OSError:
        return False

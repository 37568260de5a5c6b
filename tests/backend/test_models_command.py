"""`models` through the command line, against a Hub on this machine: download, resume, offline, verify."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from backend.models_command import _Line
from backend.settings import PROJECT_FOLDER
from presets import load_preset
from tests.fake_hub import COMMIT, REPOSITORY, FakeHub, serving

DEMO = Path(load_preset("wan-tiny").model_source)
CHUNK = 10 * 2**20  # huggingface_hub writes this much at a time; the transformer has 14 MB
NOWHERE = "http://127.0.0.1:9"  # the discard port: nobody listens
WEIGHTS = "transformer/diffusion_pytorch_model.safetensors"

pytestmark = pytest.mark.demo_model


@pytest.fixture
def hub(tmp_path):
    folder = Path(shutil.copytree(DEMO, tmp_path / "hub"))
    (folder / "loras").mkdir()
    (folder / "loras" / "style.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    with serving(folder) as hub:
        yield hub


def environment(home: Path, endpoint: str) -> dict[str, str]:
    return {**os.environ, "HF_HOME": str(home), "HF_ENDPOINT": endpoint, "STUDIO_DATA_DIR": str(home / "data"),
            "HF_HUB_DISABLE_TELEMETRY": "1"}  # fmt: skip


def app(home: Path, endpoint: str, *words: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "app.py", *words], cwd=PROJECT_FOLDER, env=environment(home, endpoint),
                          capture_output=True, text=True, timeout=120)  # fmt: skip


def snapshot(home: Path) -> Path:
    return home / "hub" / f"models--{REPOSITORY.replace('/', '--')}" / "snapshots" / COMMIT


def test_a_download_is_verified_and_works_offline(hub: FakeHub, tmp_path):
    home = tmp_path / "home"
    done = app(home, hub.url, "models", "download", REPOSITORY)
    assert done.returncode == 0, done.stderr
    assert f"{REPOSITORY} is at {snapshot(home)}" in done.stdout and "MB/s" in done.stderr
    assert (snapshot(home) / WEIGHTS).read_bytes() == (DEMO / WEIGHTS).read_bytes()
    assert not (snapshot(home) / "README.md").exists()  # what no one loads is not fetched
    again = app(home, NOWHERE, "models", "download", REPOSITORY)
    assert (again.returncode, again.stderr) == (0, "")
    found = json.loads(app(home, NOWHERE, "models", "verify", REPOSITORY, "--json").stdout)[0]
    assert found["family"] == "wan2.2-ti2v" and found["problems"] == [] and found["hashed"] == found["files"] == 10


def test_a_broken_connection_goes_on_within_the_file(hub: FakeHub, tmp_path):
    hub.stop_after = CHUNK + 100_000
    done = app(tmp_path, hub.url, "models", "download", REPOSITORY)
    assert done.returncode == 0, done.stderr
    assert f"bytes={CHUNK}-" in hub.ranges
    assert app(tmp_path, NOWHERE, "models", "verify", REPOSITORY).returncode == 0


def test_after_a_kill_no_whole_file_comes_again(hub: FakeHub, tmp_path):
    hub.stop_after, hub.stalls = CHUNK + 100_000, True
    words = [sys.executable, "app.py", "models", "download", REPOSITORY]
    process = subprocess.Popen(words, cwd=PROJECT_FOLDER, env=environment(tmp_path, hub.url), stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)  # fmt: skip
    until, small = time.monotonic() + 60, snapshot(tmp_path) / "text_encoder" / "model.safetensors"
    while not small.exists() and time.monotonic() < until:
        time.sleep(0.05)
    process.kill()
    process.wait()
    here = {path: path.stat().st_size for path in snapshot(tmp_path).rglob("*") if path.is_file()}
    assert small in here and snapshot(tmp_path) / WEIGHTS not in here
    hub.stop_after, hub.sent = None, 0
    done = app(tmp_path, hub.url, "models", "download", REPOSITORY)
    assert done.returncode == 0, done.stderr
    whole = sum(path.stat().st_size for path in snapshot(tmp_path).rglob("*") if path.is_file())
    assert hub.sent == whole - sum(here.values())
    assert app(tmp_path, NOWHERE, "models", "verify", REPOSITORY).returncode == 0


def test_what_is_wrong_with_a_file_is_said(hub: FakeHub, tmp_path):
    home = tmp_path / "home"
    app(home, hub.url, "models", "download", REPOSITORY)
    weights = (snapshot(home) / WEIGHTS).resolve()
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    flipped = app(home, NOWHERE, "models", "verify", REPOSITORY)
    assert flipped.returncode == 1
    assert "transformer/diffusion_pytorch_model.safetensors has the hash" in flipped.stdout and "and must have" in flipped.stdout
    weights.write_bytes(data[:-10])
    assert "is cut short: it has" in app(home, NOWHERE, "models", "verify", REPOSITORY).stdout
    (snapshot(home) / "vae" / "config.json").unlink()
    assert "vae/config.json is missing" in app(home, NOWHERE, "models", "verify", REPOSITORY).stdout


def test_no_network_and_nothing_cached_offers_the_demo_model(tmp_path):
    done = app(tmp_path, NOWHERE, "models", "download", REPOSITORY)
    assert (done.returncode, done.stdout) == (1, "") and done.stderr.count("\n") == 1
    assert "the Hugging Face Hub cannot be reached" in done.stderr and "wan-tiny" in done.stderr
    assert f"`python app.py models download {REPOSITORY}`" in done.stderr


def test_what_the_hub_does_not_have(hub: FakeHub, tmp_path):
    told = app(tmp_path, hub.url, "models", "download", "tests/other").stderr
    assert "tests/other is not on the Hugging Face Hub" in told
    told = app(tmp_path, hub.url, "models", "download", f"{REPOSITORY}:loras/none.safetensors").stderr
    assert "names a file that tests/tiny does not have" in told


def test_a_lora_is_fetched_by_its_file(hub: FakeHub, tmp_path):
    done = app(tmp_path, hub.url, "models", "download", f"{REPOSITORY}:loras/style.safetensors")
    assert done.returncode == 0 and (snapshot(tmp_path) / "loras" / "style.safetensors").is_file(), done.stderr
    assert not (snapshot(tmp_path) / WEIGHTS).exists()


def test_the_list_says_what_is_here(tmp_path):
    rows = {row["id"]: row for row in json.loads(app(tmp_path, NOWHERE, "models", "list", "--json").stdout)}
    assert rows["embedded:wan-tiny"]["bytes"] > 1e6
    model = rows["Wan-AI/Wan2.2-T2V-A14B-Diffusers"]
    assert model["bytes"] is None and "wan2.2-t2v-a14b-720p-fast" in model["presets"]
    assert any("high_noise" in name and row["kind"] == "lora" for name, row in rows.items())


@pytest.mark.parametrize("words", [("download", "typo"), ("verify", "typo"), ("verify", "/nowhere"), ("download", "../x/y")])
def test_a_wrong_id_is_refused(tmp_path, words):
    done = app(tmp_path, NOWHERE, "models", *words)
    assert (done.returncode, done.stdout) == (2, "") and "must be a preset's name" in done.stderr or "is neither" in done.stderr


def test_generate_fetches_a_model_by_its_id(hub: FakeHub, tmp_path):
    words = ["generate", "--preset", "wan-tiny", "--model", REPOSITORY, "--prompt", "a red circle", "--steps", "1"]
    done = app(tmp_path, hub.url, *words, "--output", str(tmp_path / "out.mp4"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out.mp4").is_file() and (snapshot(tmp_path) / WEIGHTS).is_file()


def test_progress_says_bytes_and_speed(capsys):
    now = iter([0.0, 2.0, 4.0])
    line = _Line(sys.stderr, "model", clock=lambda: next(now))
    for done in (10_000_000, 30_000_000, 100_000_000):
        line(done, 100_000_000)
    assert capsys.readouterr().err.splitlines()[1:] == [
        "model: 30 of 100 MB, 10.0 MB/s, 7 s left", "model: 100 of 100 MB, 22.5 MB/s, 0 s left"]  # fmt: skip

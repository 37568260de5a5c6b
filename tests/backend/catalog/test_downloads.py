"""Check downloads for the page, against a Hub on this machine: their progress, a pause, a restart, and failures."""

import os
import shutil
import signal
import threading
import time
from pathlib import Path

import pytest

from backend.catalog import download_run
from backend.catalog.downloads import Download, Downloads
from backend.checkpoints.hub import find_cached_folder
from backend.errors import ModelError
from backend.settings import from_environment
from tests.backend.conftest import wait_for
from tests.clock import is_within
from tests.fake_hub import REPOSITORY, FakeHub, Sent
from tests.hub_runs import DEMO, WEIGHTS, begun, snapshot

CHUNK = 10 * 2**20  # huggingface_hub writes this much at a time
OTHER = f"{REPOSITORY}:loras/style.safetensors"

pytestmark = pytest.mark.demo_model


@pytest.fixture
def home(tmp_path, monkeypatch, hub: FakeHub) -> Path:
    """The cache of the child processes and of this process."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "home" / "hub"))
    return tmp_path / "home"


@pytest.fixture
def make(tmp_path, home):
    """A factory of download services on one data folder."""
    made, changes = [], []
    (tmp_path / "data").mkdir()

    def downloads() -> Downloads:
        made.append(Downloads(from_environment(tmp_path / "data"), lambda: changes.append(time.monotonic())))
        return made[-1]

    downloads.changes = changes
    yield downloads
    for one in made:
        one.close()


def wanted_bytes() -> int:
    """Return the bytes of the demo model's files that a download fetches."""
    kinds = [*DEMO.glob("*/*.json"), *DEMO.glob("*/*.safetensors"), DEMO / "model_index.json"]
    return sum(path.stat().st_size for path in kinds)


def test_a_download_says_its_bytes_and_is_then_here(make, hub: FakeHub, home):
    hub.chunk_seconds = 0.05
    downloads, seen = make(), []
    downloads.begin(REPOSITORY)
    assert downloads.all()[0].phase in ("waiting", "asking")

    def is_over() -> bool:
        seen.extend(downloads.all())
        return not downloads.all()

    wait_for(is_over, 60)
    assert find_cached_folder(REPOSITORY) == snapshot(home)
    running = [one for one in seen if one.phase == "running"]
    assert {one.bytes_total for one in running} == {wanted_bytes()} == {downloads.total(REPOSITORY)}
    assert [one.bytes_done for one in running] == sorted(one.bytes_done for one in running)
    assert make.changes  # the pages were notified


@pytest.mark.bench
def test_a_pause_keeps_what_has_arrived_and_only_the_rest_comes_later(make, hub: FakeHub, home):
    hub.stop_after, hub.stalls = CHUNK + 100_000, True
    downloads = make()
    downloads.begin(REPOSITORY)
    wait_for(lambda: begun(home) == [CHUNK, CHUNK], 60)
    pressed = time.monotonic()
    downloads.pause(REPOSITORY)
    wait_for(lambda: not downloads.all(), 60)
    assert is_within(time.monotonic() - pressed, 5) and begun(home) == [CHUNK, CHUNK]
    hub.stop_after, hub.stalls = None, False
    hub.log.clear()
    downloads.begin(REPOSITORY)
    wait_for(lambda: find_cached_folder(REPOSITORY), 60)
    assert Sent(WEIGHTS, CHUNK, (DEMO / WEIGHTS).stat().st_size - CHUNK) in hub.log


def test_one_comes_after_the_other_and_one_that_waits_can_be_taken_out(make, hub: FakeHub, home):
    hub.stop_after, hub.stalls = CHUNK + 100_000, True
    downloads = make()
    downloads.begin(REPOSITORY)
    downloads.begin(OTHER)
    downloads.begin(OTHER)  # a second press
    wait_for(lambda: begun(home) == [CHUNK, CHUNK], 60)
    assert [one.phase for one in downloads.all()] == ["running", "waiting"]
    downloads.pause(OTHER)
    assert [one.source for one in downloads.all()] == [REPOSITORY]
    downloads.begin(OTHER)
    downloads.pause(REPOSITORY)
    wait_for(lambda: (snapshot(home) / "loras" / "style.safetensors").is_file(), 60)


def test_the_end_of_the_server_ends_the_download_and_the_next_one_knows_its_size(make, hub: FakeHub, home):
    hub.stop_after, hub.stalls = CHUNK + 100_000, True
    downloads = make()
    downloads.begin(REPOSITORY)
    wait_for(lambda: begun(home) == [CHUNK, CHUNK], 60)
    process = downloads._process
    downloads.close()
    assert process.wait(60) is not None and begun(home) == [CHUNK, CHUNK]
    after = make()
    assert after.all() == [] and after.total(REPOSITORY) == wanted_bytes()


def test_a_process_that_is_killed_is_a_failure_that_can_be_tried_again(make, hub: FakeHub, home):
    hub.stop_after, hub.stalls = CHUNK + 100_000, True
    downloads = make()
    downloads.begin(REPOSITORY)
    wait_for(lambda: begun(home) == [CHUNK, CHUNK], 60)
    os.kill(downloads._process.pid, signal.SIGKILL)
    wait_for(lambda: downloads.all()[0].phase == "failed", 60)
    [failed] = downloads.all()
    assert "ended with -9" in failed.cause and "continues" in failed.fix
    downloads.pause(REPOSITORY)  # the card's "Not now"
    assert downloads.all() == []


def test_what_the_hub_does_not_have_fails_with_its_reason(make):
    downloads = make()
    downloads.begin("tests/other")
    wait_for(lambda: downloads.all()[0].phase == "failed", 60)
    assert downloads.all()[0].cause == "tests/other is not on the Hugging Face Hub, or not public"


def test_a_disk_that_is_too_small_is_refused_before_the_first_byte(hub: FakeHub, home, monkeypatch):
    said = []
    monkeypatch.setattr(download_run, "write_message", said.append)
    usage = shutil.disk_usage  # kept, because other threads call it too
    monkeypatch.setattr("backend.checkpoints.hub.shutil.disk_usage", lambda folder: usage(folder)._replace(free=20_000_000))
    monkeypatch.setattr("backend.checkpoints.hub.HfApi", lambda: __import__("huggingface_hub").HfApi(endpoint=hub.url))
    with pytest.raises(ModelError, match="GB more and the disk has 0.0 GB free"):
        download_run._download(REPOSITORY)
    assert hub.log == [] and said == []


def test_sizes_that_were_spoiled_are_forgotten(make, tmp_path):
    (tmp_path / "data" / "downloads.json").write_text('{"a/b": "much", "c/d": 5, "e/f"')
    assert make().total("c/d") == 0
    (tmp_path / "data" / "downloads.json").write_text('{"a/b": "much", "c/d": 5}')
    downloads = make()
    assert (downloads.total("a/b"), downloads.total("c/d")) == (0, 5)


def test_a_closed_server_begins_nothing(make):
    downloads = make()
    downloads.close()
    downloads.begin(REPOSITORY)
    assert downloads.all() == [] and not any(thread.name == "downloads" for thread in threading.enumerate())


def test_only_a_failure_is_no_longer_active():
    assert Download(source="a/b", phase="pausing").is_active and not Download(source="a/b", phase="failed").is_active

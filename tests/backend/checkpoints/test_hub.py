"""Check downloads that are cut off, killed, doubled or wrong against the log of a Hub on this machine."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import threading
import time
from pathlib import Path

import httpx2
import pytest
from huggingface_hub import snapshot_download
from huggingface_hub.utils import WeakFileLock

from backend.checkpoints import hub_file
from backend.checkpoints.hub import PARTS, download_model, find_checkpoint
from backend.checkpoints.hub_file import HubFile, Stopped, delete_unfinished, download_to_cache
from backend.models import recognise
from backend.schemas.events import Finished, Loading
from backend.schemas.request import example_request
from presets import list_presets, load_preset
from tests.backend.conftest import all_events, request, wait_for
from tests.clock import is_within
from tests.fake_hub import REPOSITORY, FakeHub, Sent
from tests.hub_runs import DEMO, NOWHERE, WEIGHTS, app, begun, snapshot, start

CHUNK = 10 * 2**20  # huggingface_hub writes this much at a time
LONG = (WEIGHTS, "vae/diffusion_pytorch_model.safetensors")  # 14 and 11 MB: the files longer than a chunk
DOWNLOAD = ("models", "download", REPOSITORY)

pytestmark = pytest.mark.demo_model


def size(name: str) -> int:
    return (DEMO / name).stat().st_size


def whole_bytes(home: Path) -> int:
    return sum(path.stat().st_size for path in snapshot(home).rglob("*") if path.is_file())


def kill_midway(hub: FakeHub, home: Path) -> None:
    """Start a download, and kill it when one chunk of each long file has arrived. Clear the log."""
    hub.stop_after, hub.stalls = CHUNK + 100_000, True
    process = start(home, hub.url, *DOWNLOAD)
    with process:
        wait_for(lambda: begun(home) == [CHUNK, CHUNK], 60)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    hub.stop_after, hub.stalls = None, False
    hub.log.clear()


def test_after_a_kill_only_the_missing_bytes_come(hub: FakeHub, tmp_path):
    kill_midway(hub, tmp_path)
    done = app(tmp_path, hub.url, *DOWNLOAD)
    assert done.returncode == 0, done.stderr
    assert sorted(hub.log, key=lambda sent: sent.name) == [Sent(name, CHUNK, size(name) - CHUNK) for name in LONG]
    assert app(tmp_path, NOWHERE, "models", "verify", REPOSITORY).returncode == 0
    weights = (snapshot(tmp_path) / WEIGHTS).resolve()
    assert weights.name == hashlib.sha256(weights.read_bytes()).hexdigest() and not begun(tmp_path)


@pytest.mark.parametrize("preset", [one.name for one in list_presets() if one.architecture])
def test_every_part_of_a_presets_model_is_fetched(preset):
    assert set(load_preset(preset).architecture) <= set(PARTS)


def test_the_library_finds_what_we_have_fetched(hub: FakeHub, tmp_path):
    app(tmp_path, hub.url, *DOWNLOAD)
    found = snapshot_download(REPOSITORY, cache_dir=tmp_path / "hub", local_files_only=True, allow_patterns=list(LONG))
    assert (Path(found) / WEIGHTS).read_bytes() == (DEMO / WEIGHTS).read_bytes()


def test_a_broken_connection_continues_within_the_file(hub: FakeHub, tmp_path):
    hub.stop_after = CHUNK + 100_000
    done = app(tmp_path, hub.url, *DOWNLOAD)
    assert done.returncode == 0, done.stderr
    assert {Sent(name, CHUNK, size(name) - CHUNK) for name in LONG} <= set(hub.log)
    assert app(tmp_path, NOWHERE, "models", "verify", REPOSITORY).returncode == 0


def test_the_token_stays_with_the_hub(hub: FakeHub, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert app(tmp_path, hub.url, *DOWNLOAD).returncode == 0
    assert hub.tokens_at_storage == {None}


def test_a_server_without_ranges_sends_all_again(hub: FakeHub, tmp_path):
    kill_midway(hub, tmp_path)
    hub.ignores_ranges = True
    done = app(tmp_path, hub.url, *DOWNLOAD)
    assert done.returncode == 0, done.stderr
    assert sorted(hub.log, key=lambda sent: sent.name) == [Sent(name, 0, size(name)) for name in LONG]
    assert app(tmp_path, NOWHERE, "models", "verify", REPOSITORY).returncode == 0


def test_a_file_that_has_changed_on_the_hub_begins_again(hub: FakeHub, tmp_path):
    kill_midway(hub, tmp_path)
    data = bytearray((DEMO / WEIGHTS).read_bytes())
    data[100_000:100_004] = b"new!"
    (hub.folder / WEIGHTS).write_bytes(data)
    hub.commit = "d" * 40
    done = app(tmp_path, hub.url, *DOWNLOAD)
    assert done.returncode == 0, done.stderr
    assert Sent(WEIGHTS, 0, len(data)) in hub.log and Sent(LONG[1], CHUNK, size(LONG[1]) - CHUNK) in hub.log
    assert (snapshot(tmp_path, hub.commit) / WEIGHTS).read_bytes() == data
    assert not begun(tmp_path)  # the partial file of the old commit is useless


def test_wrong_bytes_are_told_and_removed(hub: FakeHub, tmp_path):
    kill_midway(hub, tmp_path)
    hub.flips = True
    done = app(tmp_path, hub.url, *DOWNLOAD)
    assert (done.returncode, done.stdout) == (1, "")
    assert "safetensors arrived with the hash" in done.stderr and "it was removed; download again" in done.stderr
    assert "Traceback" not in done.stderr and not list(snapshot(tmp_path).rglob("*.safetensors"))
    hub.flips = False
    assert app(tmp_path, hub.url, *DOWNLOAD).returncode == 0
    assert app(tmp_path, NOWHERE, "models", "verify", REPOSITORY).returncode == 0


def test_two_processes_fetch_every_byte_once(hub: FakeHub, tmp_path):
    processes = [start(tmp_path, hub.url, *DOWNLOAD) for _ in range(2)]
    complaints = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], complaints
    assert hub.sent == whole_bytes(tmp_path)
    assert app(tmp_path, NOWHERE, "models", "verify", REPOSITORY).returncode == 0


def test_a_hub_that_goes_away_says_that_a_part_is_here(hub: FakeHub, tmp_path):
    kill_midway(hub, tmp_path)
    told = app(tmp_path, NOWHERE, *DOWNLOAD).stderr
    assert f"{REPOSITORY} is incomplete on this machine, and the Hugging Face Hub cannot be reached" in told
    assert begun(tmp_path) == [CHUNK, CHUNK]


def test_a_cache_that_cannot_be_written_is_named(hub: FakeHub, tmp_path):
    (tmp_path / "home").write_text("a file")
    done = app(tmp_path / "home", hub.url, *DOWNLOAD)
    assert done.returncode == 1 and "cannot be written" in done.stderr and "HF_HOME" in done.stderr, done.stderr


@pytest.mark.bench
def test_ctrl_c_stops_at_once_and_keeps_what_has_arrived(hub: FakeHub, tmp_path):
    hub.stop_after, hub.stalls = CHUNK + 100_000, True
    with start(tmp_path, hub.url, *DOWNLOAD) as process:
        wait_for(lambda: begun(tmp_path) == [CHUNK, CHUNK], 60)
        pressed = time.monotonic()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert is_within(time.monotonic() - pressed, 8)  # a silent connection is closed after 10
    assert begun(tmp_path) == [CHUNK, CHUNK]


@pytest.mark.bench
def test_stop_ends_a_download_and_the_next_job_starts(hub: FakeHub, tmp_path, monkeypatch, make_engine):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    hub.stop_after, hub.stalls = CHUNK + 100_000, True
    engine = make_engine(pipeline="tests.hub_pipeline")
    job = engine.submit(example_request(load_preset("wan2.2-ti2v-5b-720p")), may_download=True)
    following = engine.submit(request())
    wait_for(lambda: begun(tmp_path) == [CHUNK, CHUNK], 60)
    began = time.monotonic()
    engine.queue.cancel(job.id)
    assert isinstance(all_events(engine, following.id)[-1], Finished)
    assert is_within(time.monotonic() - began, 4) and begun(tmp_path) == [CHUNK, CHUNK]
    assert not any(isinstance(event, Loading) for event in all_events(engine, following.id))  # the demo model had stayed


@pytest.mark.bench
def test_stop_does_not_wait_for_a_silent_hub(monkeypatch):
    answered = threading.Event()

    def stop(done: int, total: int) -> None:
        raise Stopped

    monkeypatch.setattr("backend.checkpoints.hub._list_files", lambda repository: answered.wait(30) and [])
    began = time.monotonic()
    with pytest.raises(Stopped):
        download_model(REPOSITORY, recognise, stop)
    assert is_within(time.monotonic() - began, 3)
    answered.set()


def test_a_new_commit_during_the_download_of_a_transformer_file_is_the_one_that_is_opened(tmp_path, monkeypatch):
    """The base's configurations are downloaded first, the weights after the file: a commit in between gives another folder."""
    folders = [Path(shutil.copytree(DEMO, tmp_path / commit)) for commit in ("old", "new")]
    (tmp_path / "turbo.safetensors").touch()
    remaining = iter(folders)
    monkeypatch.setattr("backend.checkpoints.hub._download", lambda *arguments: next(remaining))
    accepted = []
    opened = find_checkpoint(f"tests/absent+{tmp_path}/turbo.safetensors", accepted.append)
    assert [checkpoint.folder for checkpoint in accepted] == folders[:1] and opened.folder == folders[1]
    assert opened.transformer_files == accepted[0].transformer_files


@pytest.fixture
def file(tmp_path, monkeypatch) -> HubFile:
    """A file of six bytes that is on no Hub."""
    monkeypatch.setattr(hub_file.constants, "HF_HUB_CACHE", str(tmp_path))
    digest = hashlib.sha256(b"abcdef").hexdigest()
    return HubFile(repository="owner/name", commit="c" * 40, name="x.safetensors", content_hash=digest, num_bytes=6)


def test_a_reset_connection_is_tried_again_while_it_brings_something(file: HubFile, monkeypatch):
    starts = []

    def http_get(url, out, *, resume_size, **options):
        starts.append(resume_size)
        out.write(b"abcdef"[resume_size : resume_size + 2])
        if resume_size < 4:
            raise httpx2.ReadError("reset by peer")

    monkeypatch.setattr(hub_file, "http_get", http_get)
    download_to_cache(file, threading.Event())
    assert starts == [0, 2, 4] and file.blob_path.read_bytes() == b"abcdef"


def test_a_connection_that_brings_nothing_more_is_an_error(file: HubFile, monkeypatch):
    def http_get(url, out, **options):
        raise httpx2.ReadError("reset by peer")

    monkeypatch.setattr(hub_file, "http_get", http_get)
    with pytest.raises(httpx2.ReadError):
        download_to_cache(file, threading.Event())


def test_a_begun_file_that_is_too_long_begins_again(file: HubFile, monkeypatch):
    file.blob_path.parent.mkdir(parents=True)
    file.unfinished_path.write_bytes(b"abcdefgh")
    monkeypatch.setattr(hub_file, "http_get", lambda url, out, *, resume_size, **options: out.write(b"abcdef"[resume_size:]))
    download_to_cache(file, threading.Event())
    assert file.blob_path.read_bytes() == b"abcdef"


def test_who_waits_for_another_process_can_be_stopped(file: HubFile):
    stopped = threading.Event()
    with WeakFileLock(hub_file._lock_path(file.repository, file.content_hash)):
        threading.Timer(0.1, stopped.set).start()
        with pytest.raises(Stopped):
            download_to_cache(file, stopped)


def test_only_what_nobody_writes_and_nobody_can_use_is_forgotten(file: HubFile):
    folder = file.blob_path.parent
    folder.mkdir(parents=True)
    old, busy, library = (folder / f"{name}.incomplete" for name in ("1" * 64, "2" * 64, f"{file.content_hash}.1234abcd"))
    for path in (file.unfinished_path, old, busy, library):
        path.touch()
    with contextlib.ExitStack() as held:
        held.enter_context(WeakFileLock(hub_file._lock_path(file.repository, "2" * 64)))
        delete_unfinished(file.repository, {file.content_hash})
    assert set(folder.iterdir()) == {file.unfinished_path, busy}

"""Check a worker on several hosts with the stand-in pipeline: all hosts act alike, one death restarts all, unknown peers are
rejected.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque

import pytest
from PIL import Image

import app
from backend.cli.arguments import hosts_from_arguments
from backend.cli.command_line import parse
from backend.errors import ModelError, RequestError
from backend.multihost import transport as slice_link
from backend.multihost import wire
from backend.multihost.member import _store_job
from backend.multihost.transport import _job_for_members
from backend.multihost.versions import describe_difference, versions_here
from backend.schemas.events import Cancelled, Failed, Finished, Interrupted, Step
from backend.workers.messages import Decide, Run, RunWithFiles
from backend.workers.multihost_sync import MultihostSync
from tests.backend.conftest import all_events, request, wait_for
from tests.clock import is_within
from tests.many_hosts import SECRET, end_member, hosts, members, processes_of, start_member

NOTICED_SECONDS = 10.0


@pytest.fixture
def pair(make_engine, tmp_path):
    """An engine whose worker is two processes, and the `app.py member` process of the second host."""
    two = hosts(2)
    with members(two, tmp_path) as others:
        yield make_engine(hosts=two), others[0]


def steps_of(engine, job_id: str) -> list[int]:
    steps = [event.index for event in all_events(engine, job_id) if isinstance(event, Step)]
    return [step for step, before in zip(steps, [0, *steps], strict=False) if step != before]


def first_step(engine, job_id: str) -> None:
    next(event for _, event in engine.event_log.follow(job_id) if isinstance(event, Step))


def interruptions_of(engine, job_id: str) -> list[Interrupted]:
    return [event for event in all_events(engine, job_id) if isinstance(event, Interrupted)]


def test_the_worker_waits_for_the_other_hosts_and_says_for_which(make_engine, tmp_path):
    three = hosts(3)
    engine = make_engine(hosts=three)
    first = start_member(three, 1, tmp_path / "one")
    wait_for(lambda: "number 2 of 3" in engine.pool.status().detail)
    job = engine.submit(request())
    second = start_member(three, 2, tmp_path / "two")
    try:
        assert isinstance(all_events(engine, job.id)[-1], Finished)
    finally:
        engine.close()
        for member in (first, second):
            end_member(member)


def test_only_the_first_host_writes_and_tells(pair, tmp_path):
    engine, member = pair
    job = engine.submit(request(steps=4))
    assert isinstance(all_events(engine, job.id)[-1], Finished) and steps_of(engine, job.id) == [1, 2, 3, 4]
    (process,) = processes_of(member.pid)
    theirs = [path for path in (tmp_path / "host-1").rglob("*") if path.is_file()]
    assert [path.name for path in theirs] == ["member-1.log"]
    engine.close()
    wait_for(lambda: process not in processes_of(member.pid))


def test_a_cancel_stops_all_hosts_at_one_step_and_they_go_on_together(pair, close_gate):
    close_gate("a held square")
    engine, member = pair
    job = engine.submit(request("a held square"))
    first_step(engine, job.id)
    pids = engine.pool.workers()[0].pid, *processes_of(member.pid)
    engine.queue.cancel(job.id)
    assert isinstance(all_events(engine, job.id)[-1], Cancelled)
    following = engine.submit(request())
    assert isinstance(all_events(engine, following.id)[-1], Finished)
    assert (engine.pool.workers()[0].pid, *processes_of(member.pid)) == pids, "they were restarted"


@pytest.mark.bench
@pytest.mark.parametrize("what", [pytest.param("the process", marks=pytest.mark.slow), "the member", "the first process"])
def test_one_death_is_noticed_ends_and_restarts_all_and_the_job_continues(pair, close_gate, tmp_path, what):
    gate = close_gate("a held square")
    engine, member = pair
    job = engine.submit(request("a held square", steps=4))
    first_step(engine, job.id)
    first, (process,) = engine.pool.workers()[0].pid, processes_of(member.pid)
    killed = {"the process": process, "the member": member.pid, "the first process": first}[what]
    os.kill(killed, signal.SIGKILL)
    again = start_member(engine.queue.pool._workers[0]._plan.hosts, 1, tmp_path / "again") if what == "the member" else None
    began = time.monotonic()
    next(event for _, event in engine.event_log.follow(job.id) if isinstance(event, Interrupted))
    assert is_within(time.monotonic() - began, NOTICED_SECONDS)
    gate.open()
    try:
        assert isinstance(all_events(engine, job.id)[-1], Finished) and steps_of(engine, job.id) == [1, 2, 3, 4]
        (stop,) = interruptions_of(engine, job.id)
        if what != "the first process":
            assert stop.cause.startswith("Process 1 of the 2 hosts")
        assert stop.by == ("worker" if what == "the process" else "signal")  # the loss of a host is no fault of the video
        assert engine.pool.workers()[0].pid != first and process not in processes_of(member.pid)
    finally:
        engine.close()
        if again is not None:
            end_member(again)


def test_a_member_that_stands_still_is_noticed(make_engine, close_gate, tmp_path, monkeypatch):
    assert wire.SILENCE_SECONDS < NOTICED_SECONDS
    monkeypatch.setattr(wire, "SILENCE_SECONDS", 3.0)
    two, gate = hosts(2), close_gate("a held square")
    with members(two, tmp_path) as (member,):
        engine = make_engine(hosts=two)
        job = engine.submit(request("a held square", steps=6))
        first_step(engine, job.id)
        os.kill(member.pid, signal.SIGSTOP)
        try:
            next(event for _, event in engine.event_log.follow(job.id) if isinstance(event, Interrupted))
        finally:
            os.kill(member.pid, signal.SIGCONT)
        gate.open()
        assert isinstance(all_events(engine, job.id)[-1], Finished) and steps_of(engine, job.id) == [1, 2, 3, 4, 5, 6]
        engine.close()


def test_what_fails_alike_on_all_hosts_fails_the_job_and_no_host(pair):
    engine, member = pair
    job = engine.submit(request("explode"))
    assert isinstance(all_events(engine, job.id)[-1], Failed)
    pids = engine.pool.workers()[0].pid, *processes_of(member.pid)
    assert isinstance(all_events(engine, engine.submit(request()).id)[-1], Finished)
    assert (engine.pool.workers()[0].pid, *processes_of(member.pid)) == pids


def test_what_fails_on_one_host_alone_ends_all(pair, close_gate, monkeypatch):
    close_gate("a square alone", "step 1")
    monkeypatch.setattr(slice_link, "DISAGREEMENT_SECONDS", 0.5)
    engine, _ = pair
    final = all_events(engine, engine.submit(request("a square alone")).id)[-1]
    assert isinstance(final, Failed)
    assert final.cause == "It stopped three times at encoding: Process 1 of the 2 hosts failed: ValueError; its log says why"


def test_who_does_not_know_the_secret_is_told_so_and_ends(make_engine, tmp_path):
    two = hosts(2)
    engine = make_engine(hosts=two)
    wait_for(lambda: "Waiting for the other hosts" in engine.pool.status().detail)
    stranger = start_member(two, 1, tmp_path / "stranger", STUDIO_HOSTS_SECRET="guessed by a stranger")
    _, told = stranger.communicate(timeout=60)
    assert stranger.returncode == 1 and "STUDIO_HOSTS_SECRET" in told.splitlines()[-1]
    assert "Waiting" in engine.pool.status().detail


def test_strangers_neither_come_in_nor_keep_others_out(make_engine, tmp_path):
    two = hosts(2)
    engine = make_engine(hosts=two)
    wait_for(lambda: "Waiting for the other hosts" in engine.pool.status().detail)
    all_said = [b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 8, (4).to_bytes(8) + b"[[[[", (2).to_bytes(8) + b"{}"]
    strangers = []
    for said in all_said:
        strangers.append(socket.create_connection((two.address, two.port)))
        strangers[-1].sendall(said)
    with members(two, tmp_path):
        assert isinstance(all_events(engine, engine.submit(request()).id)[-1], Finished)
    for stranger in strangers:
        stranger.close()


def test_a_crowd_that_says_nothing_keeps_nobody_out(make_engine, tmp_path):
    two = hosts(2)
    engine = make_engine(hosts=two)
    wait_for(lambda: "Waiting for the other hosts" in engine.pool.status().detail)
    is_over, crowd = threading.Event(), deque(maxlen=4 * slice_link._MOST_UNAUTHENTICATED)

    def come_again_and_again() -> None:
        while not is_over.wait(0.02):
            if len(crowd) == crowd.maxlen:
                crowd[0].close()
            with contextlib.suppress(OSError):  # the listening socket closes once all members are connected
                crowd.append(socket.create_connection((two.address, two.port), source_address=("127.0.0.9", 0)))

    stranger = threading.Thread(target=come_again_and_again)
    stranger.start()
    try:
        wait_for(lambda: len(crowd) > slice_link._MOST_UNAUTHENTICATED)
        with members(two, tmp_path):
            assert isinstance(all_events(engine, engine.submit(request()).id)[-1], Finished)
    finally:
        is_over.set()
        stranger.join()
        for one in crowd:
            one.close()


def test_hosts_that_count_differently_are_refused(make_engine, tmp_path):
    two = hosts(2)
    make_engine(hosts=two)
    words = ["--coordinator", f"{two.address}:{two.port}", "--process-id", "2", "--num-processes", "3"]
    done = subprocess.run(
        [sys.executable, "app.py", "member", *words, "--data-dir", str(tmp_path / "other")],
        env={**os.environ, "STUDIO_HOSTS_SECRET": SECRET},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 1 and "give both the same number" in done.stderr.splitlines()[-1]


def test_hosts_with_other_libraries_are_refused():
    here = versions_here()
    assert describe_difference(here, dict(here)) == ""
    assert "jax is 0.1 there" in describe_difference(here, {**here, "jax": "0.1"})


def test_members_get_the_inputs_and_what_was_done(tmp_path):
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for folder in (ours, theirs):
        folder.mkdir()
    Image.new("RGB", (96, 96)).save(ours / "image.png")
    (ours / "stage1_embeddings.safetensors").write_bytes(b"embeddings")
    (ours / "video.mp4").write_bytes(b"the last attempt")
    (ours / "shots" / "1").mkdir(parents=True)
    for name in ("shot.json", "last.png", "last.mp4", "look.json", "video.mp4", "frames.npy"):
        (ours / "shots" / "1" / name).write_bytes(name.encode())
    asked = request(task="i2v", image=str(ours / "image.png"))
    told, files = _job_for_members(Run(job_id="a", request=asked, folder=ours))
    job = _store_job(told, files, theirs)
    moved = job.request
    assert moved.image == str(theirs / "a" / "image.png") and moved.for_sharing() == asked.for_sharing()
    assert (theirs / "a" / "image.png").read_bytes() == (ours / "image.png").read_bytes()
    assert sorted(path.name for path in (theirs / "a").iterdir()) == ["image.png", "shots", "stage1_embeddings.safetensors"]
    shot = {path.name: path.read_bytes() for path in (theirs / "a" / "shots" / "1").iterdir()}
    assert shot == {name: name.encode() for name in ("shot.json", "last.png", "last.mp4", "look.json")}


@pytest.mark.parametrize("name", ["../outside", "/tmp/outside", "a/../../outside"])
def test_a_members_files_stay_in_its_folder(tmp_path, name):
    told = RunWithFiles(job_id="a", request=request(), inputs={}, names=[name])
    with pytest.raises(ModelError, match="outside its job's folder"):
        _store_job(told, [b""], tmp_path)


def test_hosts_that_do_not_ask_the_same_are_noticed():
    follower = MultihostSync(1, channel=None)
    follower.handle(Decide(what="begin", value=True))
    with pytest.raises(RuntimeError, match="the hosts do not do the same"):
        follower.decide("cancelled", False)


def test_there_is_one_worker_on_several_hosts():
    with pytest.raises(RequestError, match="must be 1 with --hosts"):
        hosts_from_arguments(parse(["serve", "--hosts", "2", "--workers", "2"]))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["serve", "--hosts", "1"], "must be a number of at least 2"),
        (["serve", "--hosts", "2"], "STUDIO_HOSTS_SECRET must have at least 16 characters"),
        (["member", "--coordinator", "here", "--process-id", "1", "--num-processes", "2"], "must be HOST:PORT"),
        (["member", "--coordinator", "h:1", "--process-id", "2", "--num-processes", "2"], "must be from 1 to 1"),
        (["member", "--coordinator", "h:1", "--process-id", "1", "--num-processes", "2"], "STUDIO_HOSTS_SECRET must have"),
    ],
)
def test_wrong_options_are_refused(words, told, monkeypatch, capsys):
    monkeypatch.setenv("STUDIO_HOSTS_SECRET", "short")
    try:
        code = app.main([*words, *(["--port", "7999"] if words[0] == "serve" else [])])
    except SystemExit as end:
        code = end.code
    assert code == 2 and told in capsys.readouterr().err

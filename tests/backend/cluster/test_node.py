"""Check the node's side of a cluster worker without a cluster: a real worker process, its files and its messages."""

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from backend.cluster.node import Ended, LogText, NodeWorker
from backend.cluster.transfer import Piece, list_files, read_pieces, write_piece
from backend.media.video import read_frames
from backend.multihost.versions import fingerprint
from backend.schemas.events import Finished, ShotStarted, Step
from backend.settings import from_environment
from backend.workers.messages import JobEvent, Run, Status
from backend.workers.process import WorkerPlan
from tests.backend.conftest import FAKE, request
from tests.many_hosts import hosts

JOB = "job-1"


@pytest.fixture
def plan(tmp_path):
    """The studio's plan with the studio's folders, which the node must not use."""
    settings = from_environment(tmp_path / "studio")
    return WorkerPlan(preset="wan-tiny", model=None, warm_up=False, settings=settings, pipeline=FAKE, name="node-1")


@pytest.fixture
def node(tmp_path, monkeypatch, plan):
    monkeypatch.setenv("STUDIO_DATA_DIR", str(tmp_path / "node"))
    node = NodeWorker("node-1")
    node.open(plan)
    yield node
    node.kill()


def hear(node, until, first: int = 1, seconds: float = 30) -> list:
    """Return the worker's items up to the first for which `until` is true."""
    heard, number, end = [], first, time.monotonic() + seconds
    while not any(map(until, heard)):
        assert time.monotonic() < end, "waited in vain"
        heard += node.fetch_batch(number)
        number += 1
    return heard


def events_of(heard: list) -> list:
    return [item.event for item in heard if isinstance(item, JobEvent)]


def is_final(item) -> bool:
    return isinstance(item, JobEvent) and item.event.is_final


def run(node, folder, **changes) -> None:
    """Start a job whose folder in the studio is `folder`."""
    message = Run(job_id=JOB, request=request(**changes), folder=folder)
    node.create_job_folder(JOB)
    for name in ("image.png",) if (folder / "image.png").exists() else ():
        for piece in read_pieces(JOB, folder, name):
            node.write_piece(piece)
    node.send(message)


def test_a_video_is_made_there_and_its_files_come_before_the_event_that_names_them(node, tmp_path):
    folder = tmp_path / "studio/runs" / JOB
    folder.mkdir(parents=True)
    run(node, folder)
    for item in hear(node, is_final):
        if isinstance(item, Piece):
            write_piece(folder, item)
        elif is_final(item):
            event = item.event
            assert isinstance(event, Finished) and event.result.path == str(folder / "video.mp4")
            assert (folder / "video.mp4").read_bytes()[4:8] == b"ftyp"
        elif isinstance(item, JobEvent) and getattr(item.event, "preview", None):
            assert (folder / item.event.preview).is_file()
    assert (folder / "steps_done").read_text() == "3"


def test_the_jobs_picture_is_there_and_is_named_where_the_studio_has_it(node, tmp_path):
    from PIL import Image

    folder = tmp_path / "studio/runs" / JOB
    folder.mkdir(parents=True)
    Image.new("RGB", (64, 64), "blue").save(folder / "image.png")
    run(node, folder, image=str(folder / "image.png"))
    (folder / "image.png").unlink()  # the node must use its own copy
    [*_, last] = events_of(hear(node, is_final))
    assert isinstance(last, Finished) and last.result.request.image == str(folder / "image.png")


def test_work_continues_where_it_was_if_its_files_come_along(node, tmp_path):
    folder = tmp_path / "studio/runs" / JOB
    folder.mkdir(parents=True)
    node.create_job_folder(JOB)
    node.write_piece(Piece(job_id=JOB, name="steps_done", data=b"2"))
    node.send(Run(job_id=JOB, request=request(), folder=folder))
    steps = [event.index for event in events_of(hear(node, is_final)) if isinstance(event, Step)]
    assert steps == [2, 3]


def test_a_new_job_finds_nothing_of_the_one_before(node, tmp_path):
    run(node, tmp_path)
    hear(node, is_final)
    node.create_job_folder("job-2")
    assert [path.name for path in (tmp_path / "node/cluster/node-1/runs").iterdir()] == ["job-2"]


def test_the_same_number_gives_the_same_batch_again(node):
    number = 1
    while not (first := node.fetch_batch(number)):  # the worker sent nothing for a second
        number += 1
    assert node.fetch_batch(number) == first and node.fetch_batch(number + 1) != first


def test_its_log_comes_too_and_its_end_last(node):
    hear(node, lambda item: isinstance(item, Status) and item.status.state == "ready")
    node.kill()
    heard = hear(node, lambda item: isinstance(item, Ended), first=1000)
    assert heard[-1] == Ended(code=-9)
    assert any(isinstance(item, LogText) and item.data for item in heard)  # the stacks


def test_a_worker_of_two_hosts_waits_for_the_second_and_works_with_it(node, plan, tmp_path):
    """The worker opens twice, as after the studio lost the first one. The port must be free again."""
    two = hosts(2)
    for _ in range(2):
        node.open(replace(plan, hosts=two))
        hear(node, lambda item: isinstance(item, Status) and "number 1 of 2" in item.status.detail, first=1)
    threading.Thread(target=NodeWorker("node-2").serve, args=(two, 1), daemon=True).start()
    folder = tmp_path / "studio/runs" / JOB
    folder.mkdir(parents=True)
    run(node, folder)
    [*_, last] = events_of(hear(node, is_final, first=1000))
    assert isinstance(last, Finished)


@pytest.mark.parametrize("name", ["../1", "a/b", "", "..", ".1"])
def test_a_jobs_id_that_leads_elsewhere_is_refused(node, name):
    with pytest.raises(ValueError):
        node.create_job_folder(name)


def test_the_fingerprint_is_that_of_what_runs(tmp_path):
    (tmp_path / "backend").mkdir()
    (tmp_path / "backend/a.py").write_text("1")
    first = fingerprint(tmp_path)
    (tmp_path / "backend/notes.txt").write_text("not run")
    assert fingerprint(tmp_path) == first != fingerprint()
    (tmp_path / "backend/a.py").write_text("2")
    assert fingerprint(tmp_path) != first


@pytest.mark.slow
@pytest.mark.demo_model
def test_a_storyboard_continues_on_another_node_with_the_shot_that_it_had_reached(tmp_path, monkeypatch, plan):
    """Run the real pipeline on two nodes. The second node gets the files that the first node sent to the studio."""
    studio, plan = tmp_path / "studio/runs" / JOB, replace(plan, pipeline=None)
    studio.mkdir(parents=True)
    rows = [{"prompt": "a red circle", "num_frames": 9}, {"prompt": "a red circle growing", "num_frames": 17}]
    story, begun = request(shots=rows), []
    for name in ("one", "two"):
        monkeypatch.setenv("STUDIO_DATA_DIR", str(tmp_path / name))
        node = NodeWorker(name)
        node.open(plan)
        node.create_job_folder(JOB)
        for file in list_files(studio):
            for piece in read_pieces(JOB, studio, file):
                node.write_piece(piece)
        node.send(Run(job_id=JOB, request=story, folder=studio))
        is_over = is_final if name == "two" else is_step_of_the_second_shot
        for item in hear(node, is_over, seconds=120):
            if isinstance(item, Piece):
                write_piece(studio, item)
            elif isinstance(item, JobEvent):
                begun += [item.event.index] if isinstance(item.event, ShotStarted) else []
                result = getattr(item.event, "result", None)
                assert result is None or Path(result.path).is_file(), "its files come before an event"
        node.kill()
    assert begun == [1, 2, 2] and isinstance(item.event, Finished) and item.event.result.num_frames == 21
    assert len(list(read_frames(studio / "video.mp4"))) == 21
    assert not list(studio.rglob("frames.npy")), "too large to travel"


def is_step_of_the_second_shot(item) -> bool:
    return isinstance(item, JobEvent) and "shots/2" in (getattr(item.event, "preview", None) or "")

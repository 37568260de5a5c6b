"""Check that upscaling a finished video is a job like any other. It loads no model, and later predictions use its duration."""

import shutil

import pytest

from backend.engine.disk import needed_bytes
from backend.engine.dispatcher import needed_preset
from backend.engine.engine import Engine
from backend.errors import RequestError
from backend.media.clips import read_clip_facts
from backend.media.video import read_request
from backend.schemas.finished import upscale_clip_request, upscale_request, upscale_result_request
from backend.schemas.request import GenerationRequest
from tests.backend.conftest import request


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    engine = Engine(tmp_path_factory.mktemp("data"), pipeline="tests.fake_pipeline")
    yield engine
    engine.close()


def finished(engine: Engine, wanted: GenerationRequest):
    job = engine.submit(wanted)
    *_, (_, final) = engine.event_log.follow(job.id)
    assert final.kind == "finished", final
    return engine.jobs.find(job.id), final.result


def test_a_video_becomes_larger_in_a_job_of_its_own_and_stays_as_it_is(engine):
    assert engine.upscalers()[0] == "animevideov3"
    small, result = finished(engine, request(prompt="a square that hums", steps=2))
    video = small.folder / "video.mp4"
    before = video.read_bytes()
    wanted = upscale_result_request(result, small.request, str(video), 2)
    assert engine.estimates.estimate(wanted) is None and needed_preset(wanted) == ""
    job, made = finished(engine, wanted)
    assert (made.width, made.height, made.has_sound) == (2 * result.width, 2 * result.height, True)
    assert job.request.finished_video == str(job.folder / "finished_video.mp4") and video.read_bytes() == before
    assert read_request(job.folder / "video.mp4").prompt == "a square that hums"
    facts = read_clip_facts(job.folder / "video.mp4")
    assert (facts.width, facts.has_sound) == (made.width, True)

    told = engine.estimates.estimate(wanted)
    assert (told.seconds, told.basis, told.is_warm) == (0.2, "measured", True)
    longer = upscale_request(small.request.with_changes(num_frames=2 * small.request.num_frames - 1), str(video), 2)
    assert engine.estimates.estimate(longer).basis == "scaled" and engine.estimates.estimate(longer).seconds == pytest.approx(
        0.39, abs=0.02
    )
    slower = engine.estimates.estimate(upscale_request(small.request, str(video), 2, "x4plus"))  # 27 times as many weights
    assert slower.basis == "scaled" and slower.seconds == pytest.approx(0.2 * 26.8, rel=0.02)
    step = small.request.with_changes(upscale=2)
    assert engine.estimates.estimate(step).seconds == pytest.approx(engine.estimates.estimate(small.request).seconds + 0.2)


def test_a_step_after_the_video_has_the_same_settings_and_is_larger(engine):
    job, made = finished(engine, request(prompt="a square", steps=2, upscale=4))
    assert (made.width, job.request.upscale, job.request.finished_video) == (4 * job.request.width, 4, None)
    assert read_request(job.folder / "video.mp4") == job.request


def test_a_stop_ends_it(engine, close_gate):
    close_gate("a square that is held", "frame 2")
    small, result = finished(engine, request(prompt="a square that is held", steps=1))
    job = engine.submit(upscale_result_request(result, small.request, str(small.folder / "video.mp4"), 2))
    for _, event in engine.event_log.follow(job.id):
        if event.kind == "upscaling":
            engine.queue.cancel(job.id)
    assert event.kind == "cancelled" and engine.jobs.find(job.id).state == "cancelled"


@pytest.mark.parametrize("may_download", [False, True])
def test_an_upscaler_that_is_not_here_is_refused_before_anything_is_queued(engine, may_download):
    before = len(engine.jobs.list_jobs())
    with pytest.raises(RequestError, match="upscaler='missing.pth' must be an installed upscaler"):
        engine.submit(request(upscale=2, upscaler="missing.pth"), may_download=may_download)
    assert len(engine.jobs.list_jobs()) == before


def test_what_the_disk_could_never_hold_does_not_stop_the_line(engine, tmp_path):
    long = upscale_clip_request("long", (1900, 1000), 600.0, 24.0, "/a.mp4", 4)
    if needed_bytes(long) < shutil.disk_usage(engine.settings.data_dir).free:
        pytest.skip("this disk could hold it")
    with pytest.raises(RequestError, match="this video, upscaled 4 times, may need more than the disk has"):
        engine.submit(long)


def test_the_disk_must_have_room_for_the_larger_frames():
    small, large = request(), request(upscale=4)
    pixels = large.final_size[0] * large.final_size[1] * large.num_frames
    assert needed_bytes(large) - needed_bytes(small) == pytest.approx(0.6 * pixels, abs=2)
    assert needed_bytes(upscale_request(small, "/a.mp4", 4)) == round(0.6 * pixels)

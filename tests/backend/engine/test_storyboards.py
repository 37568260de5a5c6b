"""Check a storyboard in the queue with the demo model: killed and resumed, its shots in the library, and regenerated from one
shot on.
"""

import os
import signal

import pytest

from backend.engine.engine import Engine
from backend.engine.job import Selection
from backend.engine.storyboards import shot_id
from backend.errors import RequestError
from backend.media.video import read_frames
from backend.schemas.events import Finished, Interrupted, ShotFinished, ShotStarted, Step
from backend.schemas.request import GenerationRequest
from presets import load_preset

pytestmark = [pytest.mark.parity, pytest.mark.demo_model]
PROMPTS = (
    "a red circle moving right on a black background",
    "a red circle growing on a black background",
    "a red circle moving up",
)


def story(**changes) -> GenerationRequest:
    given = {"shots": [{"prompt": prompt} for prompt in PROMPTS], "num_frames": 9, "steps": 4, "seed": 1} | changes
    return GenerationRequest.from_preset(load_preset("wan-tiny"), **given)


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    engine = Engine(tmp_path_factory.mktemp("data"), preset="wan-tiny", warm_up=False)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def killed(engine):
    """A storyboard whose worker was killed in the second shot, after its end, and its events."""
    job, seen = engine.submit(story(), owner="ann"), []
    for _, event in engine.event_log.follow(job.id):
        seen.append(event)
        if isinstance(event, Step) and event.preview.startswith("shots/2/") and not any(isinstance(e, Interrupted) for e in seen):
            os.kill(engine.pool.workers()[0].pid, signal.SIGKILL)
    return engine.jobs.find(job.id), seen


def test_it_continues_with_the_shot_that_it_had_reached(killed):
    job, seen = killed
    assert job.state == "finished" and isinstance(seen[-1], Finished) and seen[-1].result.num_frames == 25
    cut = next(place for place, event in enumerate(seen) if isinstance(event, Interrupted))
    assert [event.index for event in seen[:cut] if isinstance(event, ShotStarted)] == [1, 2]
    assert [event.index for event in seen[cut:] if isinstance(event, ShotStarted)] == [2, 3]


def test_each_shot_is_a_video_in_the_library_of_the_same_owner(engine, killed):
    job, _ = killed
    videos = {video.id: engine.jobs.find(video.id) for video in engine.library.videos(Selection(owner="ann"))}
    assert set(videos) == {job.id, *(shot_id(job.id, number) for number in (1, 2, 3))}
    assert engine.library.videos(Selection(owner="bob")) == []
    for number, prompt in enumerate(PROMPTS, 1):
        shot = videos[shot_id(job.id, number)]
        assert (shot.state, shot.request.prompt, shot.request.task) == ("finished", prompt, "t2v" if number == 1 else "i2v")
        assert shot.request.image is None or shot.request.image.startswith(str(shot.folder))
        assert len(list(read_frames(shot.folder / "video.mp4"))) == 9
        [(_, last)] = engine.event_log.follow(shot.id)
        assert isinstance(last, Finished) and last.result.path == str(shot.folder / "video.mp4")
    again = engine.submit(videos[shot_id(job.id, 2)].request, owner="ann")  # a video like others: it can be generated again
    assert isinstance([event for _, event in engine.event_log.follow(again.id)][-1], Finished)


def test_a_shot_is_made_again_with_those_after_it_and_the_earlier_ones_stay(engine, killed):
    job, _ = killed
    asked = story(seed=99, shots=[{"prompt": "unused"}, {"prompt": PROMPTS[2]}, {"prompt": PROMPTS[1]}])
    again = engine.submit(asked, owner="ann", regenerated_shot=(job.id, 2))
    events = [event for _, event in engine.event_log.follow(again.id)]
    assert [event.index for event in events if isinstance(event, ShotStarted)] == [2, 3]
    assert [event.index for event in events if isinstance(event, ShotFinished)] == [2, 3]
    request = engine.jobs.find(again.id).request
    assert [shot.prompt for shot in request.shots] == [PROMPTS[0], PROMPTS[2], PROMPTS[1]] and request.shots[0].seed == 1
    files = [[(one.folder / "shots" / str(number) / "video.mp4").read_bytes() for number in (1, 2)] for one in (job, again)]
    assert files[0][0] == files[1][0] and files[0][1] != files[1][1] and len(list(read_frames(again.folder / "video.mp4"))) == 25
    engine.library.delete(job.id)
    assert (again.folder / "shots" / "1" / "video.mp4").is_file() and engine.jobs.find(shot_id(job.id, 1)).deleted is None


def test_what_cannot_be_made_again_is_refused(engine, killed):
    job, _ = killed
    for number in (0, 4):
        with pytest.raises(RequestError, match=f"from_shot={number} must be from 1 to 3; choose another"):
            engine.submit(story(), regenerated_shot=(job.id, number))
    with pytest.raises(RequestError, match="from_shot=1 needs a storyboard, and this video is not one"):
        engine.submit(story(), regenerated_shot=(shot_id(job.id, 1), 1))


def test_its_time_is_that_of_its_shots(engine, killed):
    one = engine.estimates.estimate(story(shots=[{"prompt": "x"}]))
    assert one is None or engine.estimates.estimate(story()).seconds > one.seconds

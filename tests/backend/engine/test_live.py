"""Live videos in the queue: prompts and actions reach them, Stop finishes them, and their final request is kept."""

import pytest

from backend.errors import RequestError
from backend.schemas.events import Block, Finished
from backend.schemas.live import frame_name
from backend.schemas.request import GenerationRequest
from presets import load_preset
from tests.backend.conftest import all_events, wait_for
from tests.fake_pipeline import square_in


def open_request(prompt: str = "a red square") -> GenerationRequest:
    return GenerationRequest.from_preset(load_preset("wan-live-tiny"), prompt=prompt, num_frames=401, is_open=True)


def seen(engine, job) -> tuple[int, str]:
    """Return the position and colour of the square in the newest frame. Prompts and actions reach the worker with a delay."""
    return square_in(job.folder / frame_name(engine.events.last(job.id).end - 1))


def test_what_is_said_is_heard_and_kept(engine):
    job = engine.submit(open_request())
    wait_for(lambda: isinstance(engine.events.last(job.id), Block))
    engine.steer_live(job.id, action="right")
    engine.steer_live(job.id, prompt="a blue square")
    wait_for(lambda: seen(engine, job)[0] > 48 and seen(engine, job)[1] == "blue")
    engine.queue.cancel(job.id)
    finished = all_events(engine, job.id)[-1]
    assert isinstance(finished, Finished)
    request = engine.jobs.find(job.id).request
    assert request == finished.result.request and not request.is_open and request.num_frames < 401
    said = [(cue.action, cue.prompt) for cue in request.cues]
    assert said in ([("right", "a blue square")], [("right", None), (None, "a blue square")])  # before one block, or two


def test_what_cannot_be_followed_is_refused(engine):
    job = engine.submit(open_request())
    wait_for(lambda: isinstance(engine.events.last(job.id), Block))
    for words in ({"action": "jump"}, {"prompt": " "}, {"prompt": "x" * 10_000}, {"prompt": "a\x00b"}):
        with pytest.raises(RequestError):
            engine.steer_live(job.id, **words)
    engine.queue.cancel(job.id)
    assert isinstance(all_events(engine, job.id)[-1], Finished)
    with pytest.raises(RequestError, match="must be a running live video"):
        engine.steer_live(job.id, action="left")


def test_ten_thousand_actions_at_once_change_the_next_block_once(engine):
    job = engine.submit(open_request())
    wait_for(lambda: isinstance(engine.events.last(job.id), Block))
    for number in range(10_000):
        engine.steer_live(job.id, action=("left", "right")[number % 2])
    engine.steer_live(job.id, action="right", prompt="a blue square")
    wait_for(lambda: seen(engine, job)[1] == "blue")  # the earlier actions were applied too
    engine.queue.cancel(job.id)
    finished = all_events(engine, job.id)[-1]
    assert isinstance(finished, Finished)
    cues = finished.result.request.cues
    assert cues[-1].action == "right" and len(cues) <= finished.result.num_frames // 4 + 1


def test_nothing_is_said_to_a_video_of_one_piece(engine, close_gate):
    close_gate("a held square")
    preset = load_preset("wan-tiny")
    with pytest.raises(RequestError, match="is not a live preset"):
        GenerationRequest.from_preset(preset, prompt="x", is_open=True)
    job = engine.submit(GenerationRequest.from_preset(preset, prompt="a held square", steps=3))
    with pytest.raises(RequestError, match="must be a running live video"):
        engine.steer_live(job.id, prompt="a blue square")
    engine.queue.cancel(job.id)


def test_whoever_sees_the_end_sees_the_final_request(engine, monkeypatch):
    append, open_at_end = engine.event_log.append, []

    def appending(job_id, event):
        if isinstance(event, Finished):
            open_at_end.append(engine.jobs.find(job_id).request.is_open)
        append(job_id, event)

    monkeypatch.setattr(engine.event_log, "append", appending)
    job = engine.submit(open_request())
    wait_for(lambda: isinstance(engine.events.last(job.id), Block))
    engine.queue.cancel(job.id)
    assert isinstance(all_events(engine, job.id)[-1], Finished) and open_at_end == [False]

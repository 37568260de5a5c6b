"""Every event survives its JSON form."""

import json

import pytest

from backend.schemas import events
from backend.schemas.events import (
    Cancelled,
    Compiling,
    Decoding,
    Encoding,
    Failed,
    Finished,
    Loading,
    Proposal,
    Queued,
    Step,
    Upscaling,
    VideoResult,
)
from backend.schemas.request import GenerationRequest
from presets import load_preset

REQUEST = GenerationRequest.from_preset(load_preset("wan-tiny"), prompt="a red circle", seed=1)
RESULT = VideoResult(
    path="/v.mp4", fps=16, num_frames=33, width=128, height=96, seconds={"total": 1.5}, request=REQUEST, versions={"jax": "0"}
)
ALL = [Queued(2), Loading(1, 2, "the denoiser"), Compiling("a step"), Compiling("a step", False, 2, 5, 61.5), Encoding(), Step(1, 20, 0.1, 1.9, "previews/1.png"),
       Step(2, 20, 0.1, 1.8), Decoding(4, 33), Upscaling(2, 33, 8.5), Finished(RESULT), Failed("It broke", "Mend it"),
       Failed("Too large", "Make it smaller", (Proposal(width=96, height=96, num_frames=17, bytes_per_device=5),)), Cancelled(None),
       Cancelled(RESULT)]  # fmt: skip


@pytest.mark.parametrize("event", ALL, ids=lambda event: event.kind)
def test_an_event_survives_json(event):
    assert events.from_json(json.loads(json.dumps(event.to_json()))) == event


def test_a_failure_of_an_older_version_has_no_proposals():
    assert events.from_json({"kind": "failed", "cause": "It broke", "fix": "Mend it"}) == Failed("It broke", "Mend it")
    assert events.from_json({"kind": "compiling", "what": "a step", "is_loaded": True}) == Compiling("a step", True)


def test_a_result_of_an_older_version_has_the_sound_of_its_clip():
    stored = {name: value for name, value in RESULT.to_json().items() if name != "has_sound"}
    assert not VideoResult.from_json(stored).has_sound
    from_clip = {**stored["request"], "video": "/clip.mp4", "strength": 0.5}
    assert VideoResult.from_json(stored | {"request": from_clip}).has_sound


def test_exactly_three_kinds_are_final():
    assert {event.kind for event in ALL if event.is_final} == {"finished", "failed", "cancelled"}


def test_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="'exploded' must be one of queued, loading"):
        events.from_json({"kind": "exploded"})

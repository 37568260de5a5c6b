"""Every message survives JSON unchanged, and other objects are refused."""

import json
from pathlib import Path
from typing import get_args

import pytest

from backend.schemas.events import Step
from backend.schemas.prompt_cues import Cue
from backend.schemas.worker import CachedModel, Device, WorkerFacts, WorkerStatus
from backend.workers.messages import (
    AddCue,
    Begin,
    Cancel,
    Decide,
    Exit,
    Exiting,
    ExitNow,
    ExpectModels,
    Facts,
    Gather,
    Gathered,
    Heartbeat,
    Hello,
    JobEvent,
    ManageModel,
    Message,
    PrepareFor,
    Refused,
    Run,
    RunWithFiles,
    Start,
    Status,
    Stop,
    decode_message,
    encode_message,
)
from tests.backend.conftest import request

KEPT = CachedModel(model="m", chip_bytes=3, host_bytes=4, is_pinned=True)
MESSAGES = [
    Run(job_id="a", request=request(), folder=Path("/runs/a")),
    Run(job_id="a", request=request(), folder=Path("/runs/a"), is_draft=True),
    Begin(preset="wan-tiny", warm_up=True),
    Cancel(job_id="a"),
    AddCue(job_id="a", cue=Cue(block=2, prompt="a blue square")),
    Stop(),
    ExitNow(),
    Heartbeat(),
    Status(status=WorkerStatus(state="ready", detail="Ready")),
    ExpectModels(models=["a", "b"], preset="wan-tiny"),
    PrepareFor(request=request()),
    ManageModel(model="m", how="pin"),
    Facts(facts=WorkerFacts(devices=(Device(name="d", kind="cpu"),), model="m", cached_models=(KEPT,), cached_bytes=(3, 4))),
    JobEvent(job_id="a", event=Step(1, 3, 0.5, 1.0, "previews/1.png")),
    Exiting(reason="A device was lost"),
    Decide(what="cues", value=[{"block": 0}]),
    Gather(what="made", value=""),
    Gathered(values=["", ""]),
    Hello(index=1, count=2, versions={"jax": "1"}),
    Refused(reason="other versions"),
    Start(
        preset="wan-tiny",
        model=None,
        warm_up=True,
        pipeline=None,
        options={"dp": None, "sp": 2, "resident_chips_gb": 0.5},
        port=7,
    ),
    RunWithFiles(job_id="a", request=request(), inputs={"image": ["image.png"]}, names=["image.png"]),
    Exit(code=-9),
]


def test_all_kinds_are_here():
    assert {type(message) for message in MESSAGES} == set(get_args(Message))


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_comes_out_of_json_as_it_went_in(message):
    assert decode_message(json.loads(json.dumps(encode_message(message)))) == message


@pytest.mark.parametrize("data", [{}, {"type": "Nothing"}, {"type": "Exit"}, {"type": "Exit", "code": 1, "more": 2}])
def test_what_is_no_message_is_refused(data):
    with pytest.raises((TypeError, LookupError, ValueError)):
        decode_message(data)

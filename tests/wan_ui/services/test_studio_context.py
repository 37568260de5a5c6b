"""Tests of what a visitor and the operator may queue, by every way from the page to the engine."""

import asyncio
import base64
import shutil
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
from huggingface_hub import constants
from starlette.applications import Starlette
from starlette.testclient import TestClient

from backend.engine.engine import Engine
from backend.engine.job import Job
from backend.engine.keys import Keys
from backend.errors import DataFolderError, QueueFull, RequestError
from backend.schemas.request import GenerationRequest
from backend.schemas.worker import Device
from presets import load_preset
from tests.wan_ui.builders import a_request
from wan_ui.gateway import uploads
from wan_ui.gateway.access import OPERATOR_COOKIE, Access
from wan_ui.routes.api import GenerateArguments
from wan_ui.routes.videos import videos_routes
from wan_ui.services.studio_context import StudioContext

WAN = load_preset("wan2.1-t2v-1.3b-480p")
VISITOR = SimpleNamespace(cookies={}, session_hash="page", client=("203.0.113.7", 1), headers={})


def submitted(context: StudioContext, wanted: GenerateArguments, request) -> Job:
    """Submit a request as a program does, and return the job."""
    caller = context.identify_caller(request)
    return queued(context, wanted.to_request(context.default_preset(caller, wanted.given)), caller)


def queued(context: StudioContext, wanted: GenerationRequest, caller) -> Job:
    return asyncio.run(context.submit(wanted, caller))


def revised(context: StudioContext, job: Job, wanted: GenerationRequest, caller) -> Job:
    return context.engine.sandbox.run_steps(context.revise_steps(job, wanted, caller))


@pytest.fixture
def context(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    engine = Engine(tmp_path / "data", pipeline="tests.fake_pipeline", warm_up=False)
    yield StudioContext(engine=engine, access=Access("key"), can_run=engine.has_weights)
    engine.close()


@pytest.fixture
def operator(context) -> SimpleNamespace:
    return SimpleNamespace(
        cookies={OPERATOR_COOKIE: context.access._cookie()}, session_hash="page", client=("203.0.113.7", 1), headers={}
    )


def a_large_request() -> GenerationRequest:
    return GenerationRequest.from_preset(WAN, prompt="x", steps=1)


def test_only_the_operator_may_begin_a_download(context, operator):
    with pytest.raises(RequestError, match="only the operator may download it"):
        queued(context, a_large_request(), context.identify_caller(VISITOR))
    assert context.engine.jobs.list_jobs() == [] and not context.can_run(WAN)
    assert queued(context, a_large_request(), context.identify_caller(operator)).request.preset == WAN.name


@pytest.fixture
def running(context, close_gate) -> Job:
    """Return a visitor's job that runs until the test ends, so that other jobs wait."""
    close_gate("a held square")
    return queued(context, a_request(prompt="a held square"), context.identify_caller(VISITOR))


def test_a_waiting_video_cannot_be_changed_into_a_download(context, running, operator):
    waiting = queued(context, a_request(), context.identify_caller(VISITOR))
    with pytest.raises(RequestError, match="only the operator may download it"):
        revised(context, waiting, a_large_request(), context.identify_caller(VISITOR))
    assert context.engine.jobs.find(waiting.id).request == waiting.request
    assert revised(context, waiting, a_large_request(), context.identify_caller(operator)).request.preset == WAN.name


def test_the_endpoint_for_programs_asks_who_calls(context, operator):
    wanted = GenerateArguments(prompt="x", preset=WAN.name, image=None, settings={"steps": 1})
    with pytest.raises(RequestError, match="only the operator may download it"):
        submitted(context, wanted, VISITOR)
    assert submitted(context, wanted, operator).request.preset == WAN.name


def test_a_visit_says_once_who_asks_and_what_they_may(context, operator):
    visitor = context.identify_caller(
        SimpleNamespace(cookies={}, session_hash="page", client=("203.0.113.7", 1), headers={"accept-language": "zh"})
    )
    assert (visitor.scope, visitor.is_operator, visitor.queue_limits.of_owner) == (visitor.owner, False, context.most_waiting)
    assert visitor.texts.language == "zh" and not visitor.uses_english
    assert visitor.may_see(visitor.owner) and not visitor.may_see("somebody else")
    everybody = context.identify_caller(operator)
    assert (everybody.scope, everybody.is_operator, everybody.queue_limits) == (None, True, None) and everybody.may_see("anybody")


def test_a_programs_key_counts_more_than_its_cookies_and_its_address(context, operator, tmp_path):
    key, secret = Keys(tmp_path).create("shop", 3)
    keyed = replace(context, access=Access("key", Keys(tmp_path)))
    for cookies in ({}, operator.cookies):
        sender = SimpleNamespace(
            cookies=cookies, session_hash="page", client=VISITOR.client, headers={"authorization": f"Bearer {secret}"}
        )
        for caller in (keyed.identify_caller(sender), keyed.identify_program(sender, "mcp")):
            assert (caller.owner, caller.scope, caller.is_operator) == (key.owner, key.owner, False)
            assert (caller.queue_limits.of_owner, caller.queue_limits.address, caller.queue_limits.in_all) == (
                3,
                "",
                context.most_in_all,
            )
    sender.headers = {"authorization": "Bearer key"}
    assert keyed.identify_caller(sender).is_operator and keyed.identify_program(sender, "mcp").scope is None
    Keys(tmp_path).revoke("shop")
    sender.headers, sender.cookies = {"authorization": f"Bearer {secret}"}, {}
    assert keyed.identify_caller(sender).owner.startswith("session-")


def test_visitors_use_only_the_presets_that_the_operator_names(context, running, operator):
    narrow = replace(context, can_run=lambda preset: True, models=frozenset({WAN.name}))
    visitor = narrow.identify_caller(VISITOR)
    with pytest.raises(RequestError, match=f"preset='wan-tiny' is not offered to visitors of this server; take {WAN.name}"):
        queued(narrow, a_request(), visitor)
    waiting = queued(context, a_request(), context.identify_caller(VISITOR))
    with pytest.raises(RequestError, match="is not offered to visitors"):
        revised(narrow, waiting, a_request(), visitor)
    everything, tiny = narrow.identify_caller(operator), load_preset("wan-tiny")
    assert narrow.preset_filter()(WAN) and not narrow.preset_filter(visitor)(tiny) and narrow.preset_filter(everything)(tiny)
    assert queued(narrow, a_request(), everything).request.preset == "wan-tiny"


IMAGE = {"image": "a"}
BIG, BIG_I2V, SMALL = "wan2.2-t2v-a14b-720p", "wan2.2-i2v-a14b-720p", "wan2.1-t2v-1.3b-480p"
V6E_8 = [Device(name=str(number), kind="TPU v6 lite", bytes_limit=31 * 2**30) for number in range(8)]


def with_installed(context: StudioContext, monkeypatch, *names: str, devices=(), **changes) -> StudioContext:
    """Return a context whose machine has these devices, and the weights of the demo models and of the presets `names`."""
    worker = SimpleNamespace(facts=SimpleNamespace(devices=list(devices)))
    monkeypatch.setattr(context.engine.pool, "representative_worker", lambda: worker)
    return replace(context, can_run=lambda preset: preset.model.startswith("embedded:") or preset.name in names, **changes)


@pytest.mark.parametrize(
    ("names", "devices", "given", "default"),
    [
        ((), V6E_8, {}, "wan-tiny"),
        ((SMALL, f"{BIG}-draft", BIG), V6E_8, {}, BIG),  # the best of the installed presets for these devices
        ((f"{BIG}-draft", SMALL), (), {}, f"{BIG}-draft"),  # the first installed model, if the devices are not known
        ((SMALL,), V6E_8, {}, SMALL),
        ((SMALL,), [Device(name="0", kind="cpu")], {}, "wan-tiny"),  # this machine is too slow for the installed model
        ((BIG,), V6E_8, IMAGE, "wan-tiny"),  # no installed model takes an image
        ((BIG, BIG_I2V, "wan2.1-flf2v-14b-720p"), V6E_8, IMAGE, BIG_I2V),
        (("wan2.1-flf2v-14b-720p", "wan2.2-animate-14b"), V6E_8, IMAGE, "wan-tiny"),  # these need more than an image
        (("turbowan2.2-i2v-a14b-720p", BIG_I2V), V6E_8, IMAGE | {"last_image": "b"}, BIG_I2V),  # TurboWan takes no last image
        ((BIG,), V6E_8, {"video": "c", "extend": "after"}, "wan-tiny"),  # the installed model cannot extend clips
        ((BIG, "ltx-2.0-512p"), V6E_8, {"video": "c", "make": "sound"}, "ltx-2.0-512p"),
        ((BIG, "ltx-2.0-512p"), V6E_8, {"video": "c"}, BIG),
        ((BIG, "wan2.1-vace-1.3b-480p"), V6E_8, {"references": ["a"]}, "wan2.1-vace-1.3b-480p"),
    ],
)
def test_the_default_preset_is_an_installed_model_that_takes_the_inputs(context, monkeypatch, names, devices, given, default):
    context = with_installed(context, monkeypatch, *names, devices=devices)
    assert context.default_preset(context.identify_caller(VISITOR), given) == default


def test_the_default_preset_is_the_one_loaded_first_and_one_that_the_caller_may_use(context, monkeypatch, operator):
    context = with_installed(context, monkeypatch, BIG, SMALL, devices=V6E_8)
    monkeypatch.setattr(context.engine, "first_preset", SMALL)  # as with --model
    visitor = context.identify_caller(VISITOR)
    assert context.default_preset(visitor) == SMALL
    narrow = replace(context, models=frozenset({BIG, BIG_I2V}))
    assert narrow.default_preset(visitor) == BIG and narrow.default_preset(narrow.identify_caller(operator)) == SMALL
    missing = replace(context, models=frozenset({BIG_I2V}))
    assert missing.default_preset(visitor) == BIG_I2V  # the request is refused: only the operator may download it


def test_a_request_without_a_model_or_with_an_alias_uses_the_default_preset_and_names_it(context, monkeypatch, running):
    image = "data:image/png;base64," + base64.b64encode(b"").decode()
    context = with_installed(context, monkeypatch, BIG, BIG_I2V, devices=V6E_8)
    site = TestClient(Starlette(routes=[*videos_routes(context)]), headers={"authorization": "Bearer key"})
    for fields, default in (({}, BIG), ({"model": "sora-2"}, BIG), ({"model": "wan-tiny"}, "wan-tiny")):
        assert site.post("/v1/videos", json={"prompt": "a red square", **fields}).json()["model"] == default
    refused = site.post("/v1/videos", json={"prompt": "x", "size": "1x1", "input_reference": image}).json()
    assert f"does not fit {BIG_I2V}" in refused["error"]["message"]
    assert site.get("/v1/models/sora-2").json()["id"] == "sora-2"


def test_a_new_cookie_is_no_new_place_in_the_queue(context, running):
    narrow = replace(context, most_of_address=2, most_in_all=4)

    def queue(number: int, host: str) -> None:
        sender = SimpleNamespace(cookies={}, session_hash=f"page {number}", client=(host, 1), headers={})
        queued(narrow, a_request(), narrow.identify_caller(sender))

    queue(1, "203.0.113.1"), queue(2, "203.0.113.1")
    with pytest.raises(QueueFull, match="your address has 2 queued videos and may have 2"):
        queue(3, "203.0.113.1")
    queue(4, "127.0.0.1"), queue(5, "127.0.0.1")  # all visitors behind a tunnel have this address
    with pytest.raises(QueueFull, match="the queue has 4 queued videos and may have 4"):
        queue(6, "127.0.0.1")


def test_places_are_counted_and_taken_in_one_step(context, running):
    caller, answers = context.identify_caller(VISITOR), []

    def queue() -> None:
        try:
            answers.append(queued(context, a_request(), caller).id)
        except QueueFull:
            answers.append(None)

    threads = [threading.Thread(target=queue) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (
        len([one for one in answers if one]) == context.most_waiting
        and len(context.engine.queue.waiting_job_ids()) == context.most_waiting
    )


def test_nothing_is_taken_when_the_disk_is_almost_full(context, operator, monkeypatch):
    usage = shutil.disk_usage  # other threads call it too
    monkeypatch.setattr(uploads.shutil, "disk_usage", lambda folder: usage(folder)._replace(free=1000))
    with pytest.raises(DataFolderError, match="disk is almost full"):
        queued(context, a_request(), context.identify_caller(VISITOR))
    assert queued(context, a_request(), context.identify_caller(operator))


def test_a_video_whose_caller_goes_before_it_is_told_of_it_does_not_wait(context, running, monkeypatch):
    begun, gate, queue = threading.Event(), threading.Event(), context.engine._enqueue

    def held(*arguments) -> Job:
        job = queue(*arguments)
        begun.set()
        gate.wait(60)
        return job

    monkeypatch.setattr(context.engine, "_enqueue", held)

    async def cancel_while_queueing() -> None:
        task = asyncio.ensure_future(context.submit(a_request(), context.identify_caller(VISITOR)))
        await asyncio.to_thread(begun.wait, 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.set()
        [told_of_none] = [job.id for job in context.engine.jobs.list_jobs() if job.id != running.id]
        while context.engine.jobs.find(told_of_none).state != "cancelled":
            await asyncio.sleep(0.02)

    asyncio.run(asyncio.wait_for(cancel_while_queueing(), 120))

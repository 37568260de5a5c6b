"""What a visitor may queue, and what the operator may, by every way from the page to the engine."""

from types import SimpleNamespace

import pytest
from huggingface_hub import constants

from backend.contract.request import GenerationRequest
from backend.engine.engine import Engine
from backend.errors import RequestError
from presets import load_preset
from tests.wan_ui.builders import a_request
from wan_ui.desk.access import OPERATOR_COOKIE, Access
from wan_ui.desk.desk import Desk
from wan_ui.routes.api import Wanted, _submitted

WAN = load_preset("wan2.1-t2v-1.3b-480p")
VISITOR = SimpleNamespace(cookies={}, session_hash="page", headers={})


@pytest.fixture
def desk(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    engine = Engine(tmp_path / "data", pipeline="tests.fake_pipeline", warm_up=False)
    yield Desk(engine=engine, access=Access("key"), can_run=engine.has_weights)
    engine.close()


@pytest.fixture
def operator(desk) -> SimpleNamespace:
    return SimpleNamespace(cookies={OPERATOR_COOKIE: desk.access._cookie()}, session_hash="page", headers={})


def a_large_request() -> GenerationRequest:
    return GenerationRequest.from_preset(WAN, prompt="x", steps=1)


def test_only_the_operator_may_begin_a_download(desk, operator):
    with pytest.raises(RequestError, match="only the operator may download it"):
        desk.submit(a_large_request(), desk.visit(VISITOR))
    assert desk.engine.jobs() == [] and not desk.can_run(WAN)
    assert desk.submit(a_large_request(), desk.visit(operator)).request.preset == WAN.name


def test_a_waiting_video_cannot_be_changed_into_a_download(desk, operator):
    desk.submit(a_request(prompt="a slow square"), desk.visit(VISITOR))
    waiting = desk.submit(a_request(), desk.visit(VISITOR))
    with pytest.raises(RequestError, match="only the operator may download it"):
        desk.revise(waiting, a_large_request(), desk.visit(VISITOR))
    assert desk.engine.job(waiting.id).request == waiting.request
    assert desk.revise(waiting, a_large_request(), desk.visit(operator)).request.preset == WAN.name


def test_the_endpoint_for_programs_asks_who_calls(desk, operator):
    wanted = Wanted(prompt="x", preset=WAN.name, image=None, settings={"steps": 1})
    with pytest.raises(RequestError, match="only the operator may download it"):
        _submitted(desk, wanted, VISITOR)
    assert _submitted(desk, wanted, operator).request.preset == WAN.name


def test_a_visit_says_once_who_asks_and_what_they_may(desk, operator):
    visitor = desk.visit(SimpleNamespace(cookies={}, session_hash="page", headers={"accept-language": "zh"}))
    assert (visitor.scope, visitor.is_operator, visitor.limit) == (visitor.owner, False, desk.most_waiting)
    assert visitor.texts.language == "zh" and not visitor.reads_the_first_page
    assert visitor.may_see(visitor.owner) and not visitor.may_see("somebody else")
    everybody = desk.visit(operator)
    assert (everybody.scope, everybody.is_operator, everybody.limit) == (None, True, None) and everybody.may_see("anybody")

"""Tests of the cached models in the System view: where each model is, and buttons for the operator only."""

from types import SimpleNamespace

import pytest

from backend.schemas.worker import CachedModel, WorkerFacts, WorkerStatus, WorkerView
from tests.wan_ui.builders import CHINESE
from wan_ui.i18n.english import ENGLISH
from wan_ui.services.caller import Caller
from wan_ui.system import html

KEPT = (
    CachedModel(model="/models/wan-tiny", chip_bytes=2 * 10**9, host_bytes=0, is_pinned=True),
    CachedModel(model="Wan-AI/Other", chip_bytes=10**9, host_bytes=3 * 10**9),
    CachedModel(model="third", chip_bytes=0, host_bytes=10**9),
)


def worker(name: str = "worker", machine: str = "") -> WorkerView:
    facts = WorkerFacts(model="/models/wan-tiny", cached_models=KEPT, cached_bytes=(2 * 10**9, 4 * 10**9))
    return WorkerView(name=name, status=WorkerStatus(state="ready", detail="Ready"), facts=facts, machine=machine)


def rows(*workers: WorkerView, texts=ENGLISH) -> dict[str, str]:
    return dict(html._worker_sections(workers, texts, True)[-1][1])


def test_each_kept_model_has_a_row_and_all_have_a_sum():
    found = rows(worker())
    assert found["Models in memory"] == "2.0 GB on the devices, 4.0 GB in host memory"
    assert found["wan-tiny (kept loaded)"] == "2.0 GB on the devices"
    assert found["Other"] == "1.0 GB on the devices, 3.0 GB in host memory"
    assert found["third"] == "1.0 GB in host memory"
    assert rows(worker(), texts=CHINESE)["third"] == "主机内存 1.0 GB"


@pytest.mark.parametrize("is_operator", [True, False])
def test_only_the_operator_has_buttons_and_none_to_drop_what_is_in_use(monkeypatch, is_operator):
    monkeypatch.setattr(html, "build_report", lambda engine, caller: html.Report(sections=SECTIONS, errors=()))
    engine = SimpleNamespace(
        pool=SimpleNamespace(workers=lambda: (worker("one", "a"), worker("two", "b"))),
        history=SimpleNamespace(samples_since=lambda seconds: []),
    )
    caller = Caller(owner="x", scope=None, is_operator=is_operator, texts=ENGLISH, queue_limits=None)
    drawn = html.system_html(engine, caller)
    assert drawn.count('data-act="keep:unpin"') == drawn.count('data-act="keep:pin"') / 2 == (2 if is_operator else 0)
    assert drawn.count('data-act="keep:drop"') == (4 if is_operator else 0)
    assert ('data-job="two" data-value="third"' in drawn) == is_operator
    assert 'data-act="keep:drop" data-job="one" data-value="/models/wan-tiny"' not in drawn


SECTIONS = tuple((f"Worker {number}", ()) for number in (1, 2))

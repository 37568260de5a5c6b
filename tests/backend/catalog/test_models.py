"""Add and remove models on the page. Models in use, unknown models and models that came with the studio are refused."""

from pathlib import Path

import pytest

from backend.catalog import catalog
from backend.catalog.catalog import list_entries, required_licences
from backend.errors import RequestError, StudioError
from presets import load_preset
from tests.backend.conftest import request, wait_for
from tests.fake_hub import REPOSITORY, FakeHub
from tests.hub_runs import snapshot

pytestmark = pytest.mark.demo_model
BIG = load_preset("wan2.2-ti2v-5b-720p").model_copy(update={"model": REPOSITORY})


@pytest.fixture
def home(tmp_path, monkeypatch, hub: FakeHub) -> Path:
    """A separate cache, and two models: the embedded model and a model on the tests' Hub."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "home" / "hub"))
    monkeypatch.setattr(catalog, "list_presets", lambda: [load_preset("wan-tiny"), BIG])
    return tmp_path / "home"


def fetched(engine) -> None:
    engine.models.fetch(REPOSITORY)
    wait_for(lambda: row(engine).entry.is_here and row(engine).download is None, 60)


def row(engine):
    return next(one for one in engine.models.rows() if one.entry.source == REPOSITORY)


def test_a_model_comes_and_goes(make_engine, home):
    engine = make_engine()
    assert not row(engine).entry.is_here and row(engine).download is None
    before = engine.models.changes()
    fetched(engine)
    assert row(engine).total_bytes and engine.models.changes() > before
    with pytest.raises(RequestError, match="is on this machine already"):
        engine.models.fetch(REPOSITORY)
    assert engine.remove_model(REPOSITORY) > 20_000_000
    assert not row(engine).entry.is_here and row(engine).total_bytes == 0 and not snapshot(home).exists()


def test_a_model_that_a_job_needs_stays(make_engine, home, close_gate, monkeypatch):
    close_gate("a held square")
    engine = make_engine()
    fetched(engine)
    job = engine.submit(request("a held square"))
    # for the catalog, the job uses this model's files
    monkeypatch.setattr("backend.schemas.settings.find_preset", lambda name: BIG)
    with pytest.raises(StudioError, match="is needed by a queued or running video"):
        engine.remove_model(REPOSITORY)
    assert row(engine).entry.is_here
    engine.queue.cancel(job.id)
    wait_for(lambda: engine.jobs.find(job.id).has_ended)
    assert engine.remove_model(REPOSITORY) > 0


def test_a_model_that_is_being_downloaded_stays(make_engine, hub: FakeHub, home):
    engine = make_engine()
    hub.stop_after, hub.trickles = 100_000, True
    engine.models.fetch(REPOSITORY)
    with pytest.raises(StudioError, match="pause the download first"):
        engine.remove_model(REPOSITORY)
    engine.models.downloads.pause(REPOSITORY)
    wait_for(lambda: row(engine).download is None)
    engine.remove_model(REPOSITORY)


@pytest.mark.parametrize("source", ["owner/nobody", "../../etc", "/etc/passwd", "", "embedded:wan-tiny"])
def test_only_what_presets_use_and_the_hub_has_can_be_fetched_or_removed(make_engine, home, source):
    engine = make_engine()
    for do in (engine.models.fetch, engine.remove_model):
        with pytest.raises(RequestError):
            do(source)
    assert engine.models.downloads.all() == []


def test_entries_are_what_the_command_lists():
    sources = [entry.source for entry in list_entries()]
    assert len(sources) == len(set(sources)) and sources[0] == "embedded:wan-tiny"
    embedded = next(entry for entry in list_entries() if entry.source == "embedded:wan-tiny")
    assert embedded.is_here and not embedded.is_on_hub
    loras = [entry for entry in list_entries() if entry.kind == "lora"]
    assert loras and all(entry.is_on_hub and ":" in entry.source for entry in loras)
    excluded = [entry for entry in list_entries() if any("South Korea" in licence for licence in required_licences(entry.source))]
    assert excluded and all("hunyuan" in entry.source for entry in excluded)

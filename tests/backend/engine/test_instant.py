"""Instant drafts: one per owner, the newest wins, videos come first, and nothing of a draft remains."""

import base64
import io
import os
import signal

import pytest
from PIL import Image

from backend.engine.instant import MOST_EVALUATIONS, MOST_FRAMES, MOST_OF_ADDRESS, choose_preset, draft_request
from backend.engine.scheduling import QueueLimits
from backend.errors import Busy, ImageError, RequestError
from backend.schemas.events import DraftFinished, Failed, Finished
from backend.schemas.request import GenerationRequest, example_request
from backend.shares import FIRST_PORT, Share
from presets import list_presets, list_variants, load_preset
from tests.backend.conftest import all_events, request, wait_for

LIMITS = QueueLimits(of_owner=20, of_address=40, in_all=100, address="1.2.3.4")
SECONDS = 60.0


@pytest.fixture
def ready(engine):
    """An engine whose worker is idle and has the model."""
    wait_for(lambda: engine.pool.ready_workers())
    return engine


def start(engine, wanted=None, owner="ann", limits=None):
    return engine.sandbox.run_steps(engine.draft_steps(wanted or request(), owner, limits, engine.has_weights))


def picture(event) -> Image.Image:
    assert isinstance(event, DraftFinished), event
    return Image.open(io.BytesIO(base64.b64decode(event.picture)))


def has_folders(engine) -> bool:
    return any(engine.settings.drafts_dir.glob("*"))


def test_a_draft_is_an_animation_and_nothing_of_it_remains(ready):
    before = ready.event_log.count_changes()
    with picture(start(ready).result.result(SECONDS)) as image:
        assert (image.format, image.size, image.n_frames) == ("WEBP", (96, 96), 2)
    assert ready.jobs.list_jobs() == [] and ready.queue.waiting() == [] and ready.event_log.count_changes() == before
    assert list(ready.settings.runs_dir.iterdir()) == [] and not has_folders(ready)
    assert ready.library.prompts("ann", 5) == []


def test_the_copy_of_an_image_is_deleted_with_the_draft(ready, close_gate, tmp_path):
    Image.new("RGB", (300, 200), (0, 0, 255)).save(tmp_path / "blue.png")
    gate = close_gate("a held square", "draft 2")
    draft = start(ready, request("a held square", image=str(tmp_path / "blue.png")))
    gate.wait()
    assert [path.name for path in draft.folder.iterdir()] == ["image.png"]
    gate.open()
    with picture(draft.result.result(SECONDS)) as image:
        assert image.convert("RGB").getpixel((90, 90))[2] > 200
    assert not has_folders(ready)


def test_the_newest_draft_of_an_owner_wins(ready, close_gate):
    gate = close_gate("a held square", "draft 2")
    old, other = start(ready, request("a held square")), start(ready, owner="bob")
    gate.wait()
    new = start(ready)
    assert old.result.result(SECONDS) == "replaced"  # the gate is still closed: the draft stopped where it was
    assert picture(other.result.result(SECONDS)) and picture(new.result.result(SECONDS))


def test_a_video_stops_drafts_and_drafts_wait_for_it(ready, close_gate):
    gate, step = close_gate("a held square", "draft 2"), close_gate("a held video")
    draft = start(ready, request("a held square"))
    gate.wait()
    job = ready.submit(request("a held video"), "bob")
    step.wait()
    assert draft.result.result(SECONDS) is None
    with pytest.raises(Busy, match="drafts wait"):
        start(ready)
    step.open()
    assert isinstance(all_events(ready, job.id)[-1], Finished)
    wait_for(lambda: not ready.queue.running)
    assert picture(start(ready).result.result(SECONDS))


def test_an_idle_worker_with_own_chips_makes_drafts_beside_a_video_and_gives_way_to_the_next_video(make_engine, close_gate):
    shares = [Share(chips=(number,), block="1,1,1", port=FIRST_PORT + number) for number in range(2)]
    engine = make_engine(shares=shares)
    wait_for(lambda: all(worker.status.state == "ready" for worker in engine.pool.workers()))
    step, gate = close_gate("a held video"), close_gate("a held square", "draft 2")
    first = engine.submit(request("a held video"), "bob")
    step.wait()
    assert picture(start(engine).result.result(SECONDS))
    draft = start(engine, request("a held square"))
    gate.wait()
    second = engine.submit(request(), "bob")
    assert draft.result.result(SECONDS) is None
    assert isinstance(all_events(engine, second.id)[-1], Finished)
    assert engine.jobs.find(first.id).state == "running"
    second_step = close_gate("a second held video")
    engine.submit(request("a second held video"), "bob")
    second_step.wait()
    with pytest.raises(Busy, match="drafts wait"):
        start(engine)


def test_a_worker_that_shares_the_processors_makes_no_drafts_beside_a_video(make_engine, close_gate):
    engine = make_engine(shares=(Share(), Share()))
    wait_for(lambda: all(worker.status.state == "ready" for worker in engine.pool.workers()))
    step, gate = close_gate("a held video"), close_gate("a held square", "draft 2")
    draft = start(engine, request("a held square"))
    gate.wait()
    engine.submit(request("a held video"), "bob")
    step.wait()
    assert draft.result.result(SECONDS) is None
    with pytest.raises(Busy, match="drafts wait"):
        start(engine)


def test_a_dead_worker_ends_the_draft_and_drafts_continue_with_the_next_worker(ready, close_gate):
    gate = close_gate("a held square", "draft 2")
    draft = start(ready, request("a held square"))
    gate.wait()
    os.kill(ready.pool.workers()[0].pid, signal.SIGKILL)
    assert draft.result.result(SECONDS) is None
    assert picture(start(ready).result.result(SECONDS))  # it waits until the next worker is ready


def test_drafts_that_end_their_workers_pause(ready):
    for _ in range(2):
        wait_for(lambda: ready.pool.ready_workers())
        assert start(ready, request("die")).result.result(SECONDS) is None
    wait_for(lambda: ready.pool.ready_workers())
    with pytest.raises(Busy, match="twice in ten minutes"):
        start(ready)
    assert isinstance(all_events(ready, ready.submit(request()).id)[-1], Finished)


def test_a_draft_whose_model_only_a_video_loads_is_refused_until_then(ready):
    turbo = load_preset("wan-tiny-turbo")
    with pytest.raises(Busy, match="wait until a video has loaded it"):
        start(ready, GenerationRequest.from_preset(turbo, prompt="a square"))
    assert not has_folders(ready)
    assert isinstance(all_events(ready, ready.submit(GenerationRequest.from_preset(turbo, prompt="a square")).id)[-1], Finished)
    wait_for(lambda: ready.pool.ready_workers())
    assert picture(start(ready, GenerationRequest.from_preset(turbo, prompt="a square")).result.result(SECONDS))


def test_a_failed_draft_states_the_reason_and_the_next_one_runs(ready):
    event = start(ready, request("explode")).result.result(SECONDS)
    assert isinstance(event, Failed) and "the square exploded" in event.cause
    assert picture(start(ready).result.result(SECONDS))


def test_a_draft_is_checked_as_a_video_is(ready, tmp_path):
    (tmp_path / "wrong.png").write_bytes(b"this is no image")
    with pytest.raises(ImageError):
        start(ready, request(image=str(tmp_path / "wrong.png")))
    assert not has_folders(ready)
    with pytest.raises(RequestError, match="has no instant draft"):
        start(ready, request(shots=[{"prompt": "a red square"}, {"prompt": "a blue square"}]))
    assert picture(start(ready).result.result(SECONDS))  # the refused drafts take no place


def test_drafts_of_one_address_are_limited(ready, close_gate):
    gate = close_gate("a held square", "draft 1")
    first = start(ready, request("a held square"), "owner 0", LIMITS)
    gate.wait()
    for number in range(1, MOST_OF_ADDRESS):
        start(ready, owner=f"owner {number}", limits=LIMITS)
    with pytest.raises(Busy, match="too many instant drafts"):
        start(ready, owner="one more", limits=LIMITS)
    ready.queue.drafts.stop_owner("owner 0")
    assert first.result.result(SECONDS) is None
    assert picture(start(ready, owner="one more", limits=LIMITS).result.result(SECONDS))


def test_closing_the_engine_ends_drafts(make_engine, close_gate, tmp_path):
    engine = make_engine()
    wait_for(lambda: engine.pool.ready_workers())
    Image.new("RGB", (96, 96)).save(tmp_path / "black.png")
    gate = close_gate("a held square", "draft 2")
    draft = start(engine, request("a held square", image=str(tmp_path / "black.png")))
    gate.wait()
    engine.close()
    assert draft.result.result(SECONDS) is None and not has_folders(engine)


def test_the_next_engine_deletes_what_a_killed_engine_left(make_engine, tmp_path):
    left = tmp_path / "data" / "drafts" / "draft-1"
    left.mkdir(parents=True)
    make_engine()
    assert not left.exists()


def test_an_unexpected_error_leaves_no_draft_that_counts_towards_the_limits(ready, monkeypatch):
    def fail(request):
        raise RuntimeError

    with monkeypatch.context() as patch:
        patch.setattr(ready.estimates, "shape", fail)
        for number in range(MOST_OF_ADDRESS):
            with pytest.raises(RuntimeError):
                start(ready, owner=f"visitor {number}", limits=LIMITS)
    assert picture(start(ready, limits=LIMITS).result.result(SECONDS))


PLAIN = [preset for preset in list_presets() if preset.segment_frames is None and not preset.takes_last_image]


@pytest.mark.parametrize("name", [preset.name for preset in PLAIN])
def test_a_draft_of_each_preset_is_small_and_allowed(name):
    preset = load_preset(name)
    wanted = example_request(preset, seed=7)
    reduced = draft_request(wanted, preset)
    assert (reduced.prompt, reduced.seed, reduced.image) == (wanted.prompt, 7, wanted.image)
    assert reduced.num_frames <= MOST_FRAMES and reduced.steps <= MOST_EVALUATIONS // (2 if reduced.is_guided else 1)
    assert reduced.width * reduced.height <= wanted.width * wanted.height
    assert abs(reduced.width / reduced.height - wanted.width / wanted.height) < 0.1 * wanted.width / wanted.height


def test_a_draft_keeps_its_shape_and_drops_what_it_does_not_need():
    wanted = request(width=128, height=96, num_frames=33, steps=20, upscale=2, progressive=2, step_cache=0.1)
    reduced = draft_request(wanted, load_preset("wan-tiny"))
    assert (reduced.width, reduced.height, reduced.num_frames, reduced.steps) == (128, 96, 13, 8)
    assert (reduced.upscale, reduced.progressive, reduced.step_cache) == (0, 0, 0.0)


@pytest.mark.parametrize("name", ["wan2.2-ti2v-5b-720p", "fastwan2.2-ti2v-5b-720p"])
def test_a_draft_has_the_number_format_of_the_request_and_dense_attention(name):
    wanted = example_request(load_preset("wan2.2-ti2v-5b-720p"), quantize="int8", sparse=1.5)
    reduced = draft_request(wanted, load_preset(name))
    assert (reduced.preset, reduced.quantize, reduced.sparse) == (name, "int8", 0.0)


@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        ("wan2.2-ti2v-5b-720p", "fastwan2.2-ti2v-5b-720p"),
        ("wan2.2-ti2v-5b-720p-turbo", "fastwan2.2-ti2v-5b-720p"),
        ("wan2.1-t2v-14b-480p", "fastwan2.1-t2v-14b-480p"),
        ("wan2.1-i2v-14b-480p", "wan2.1-i2v-14b-480p"),  # its fast variant has LoRAs
        ("hunyuanvideo-1.5-i2v-480p", "hunyuanvideo-1.5-i2v-480p-fast"),
    ],
)
def test_the_fastest_variant_makes_the_draft(name, chosen):
    wanted = example_request(load_preset(name))
    found = choose_preset(wanted, list_variants(name))
    assert found.name == chosen
    reduced: GenerationRequest = draft_request(wanted, found)
    assert (reduced.preset, reduced.prompt, reduced.seed) == (chosen, wanted.prompt, wanted.seed)

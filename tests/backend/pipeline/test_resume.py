"""An interrupted video equals an uninterrupted video, bit for bit."""

import dataclasses

import pytest
from safetensors.numpy import load_file

from backend.pipeline import denoising
from backend.pipeline import generate as pipeline
from backend.pipeline.stage_files import EMBEDDINGS, FRAMES, LATENTS, STATE
from backend.schemas.events import Cancelled, Decoding, Encoding, Finished, Step
from backend.schemas.request import GenerationRequest
from presets import load_preset
from tests.backend.pipeline.kills import assert_same_video, make_with_copies

PRESET = load_preset("wan-tiny")
KINDS = {"plain": {}, "step cache": {"step_cache": 0.3, "steps": 12}, "MagCache": {"mag_cache": 0.12, "steps": 12}}
MORE_KINDS = {
    "guidance interval": {"guidance_interval": (0.2, 0.8)},
    "euler": {"solver": "euler"},
    "context windows": {"num_frames": 49},
    "Sol-Attn": {"sparse": 1.5},
}

pytestmark = [pytest.mark.parity, pytest.mark.demo_model]


def a_request(**changes) -> GenerationRequest:
    settings = {"prompt": "a red circle moving right on a black background", "steps": 6, "seed": 1} | changes
    return GenerationRequest.from_preset(PRESET, **settings)


def events_of(request, loaded, folder, is_cancelled=lambda: False):
    return pipeline.generate(request, loaded, folder, is_cancelled)


@pytest.mark.parametrize("kind", [*KINDS, *(pytest.param(kind, marks=pytest.mark.slow) for kind in MORE_KINDS)])
def test_a_denoising_that_was_killed_continues_and_ends_the_same(loaded, tmp_path, at_every_step, kind):
    request = a_request(**(KINDS | MORE_KINDS)[kind])
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    make_with_copies(request, loaded, whole, {killed: lambda event: isinstance(event, Step) and event.index == 4})
    assert (killed / STATE).exists() and not (killed / LATENTS).exists()
    events = list(events_of(request, loaded, killed))
    steps = [event.index for event in events if isinstance(event, Step)]
    assert steps == list(range(steps[0], request.steps + 1)) and 0 < steps[0] < 5
    assert not any(isinstance(event, Encoding) for event in events)
    assert isinstance(events[-1], Finished) and f"after step {steps[0]}" in events[-1].result.notes[0]
    assert_same_video(whole, killed)
    assert not (killed / STATE).exists()


@pytest.mark.parametrize("kind", ["step cache", "MagCache"])
def test_the_caches_count_the_steps_of_both_processes(loaded, tmp_path, at_every_step, kind):
    request = a_request(**KINDS[kind])
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    make_with_copies(request, loaded, whole, {killed: lambda event: isinstance(event, Step) and event.index == 9})
    resumed, fresh = (list(events_of(request, loaded, one))[-1].result.notes[-1] for one in (killed, tmp_path / "fresh"))
    assert resumed == fresh and "of 12 steps" in fresh


def test_sol_attn_counts_the_blocks_of_both_processes(loaded, tmp_path, at_every_step, monkeypatch):
    counts = []
    monkeypatch.setattr(denoising, "_describe_sparse", lambda *given: str(counts.append(given)))
    request = a_request(sparse=1.5)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    make_with_copies(request, loaded, whole, {killed: lambda event: isinstance(event, Step) and event.index == 5})
    list(events_of(request, loaded, killed))
    (blocks, num_sparse, total), resumed = counts
    assert blocks[0] > 0 and (num_sparse, total) == (4, 6), "two dense steps come first"
    assert resumed == (pytest.approx(blocks), num_sparse, total)


def test_a_closed_iterator_keeps_the_last_step_though_no_file_was_due(loaded, tmp_path):
    request = a_request()
    events = events_of(request, loaded, tmp_path / "closed")
    for event in events:
        if isinstance(event, Step) and event.index == 3:
            events.close()
    assert int(load_file(tmp_path / "closed" / STATE)["steps_done"][0]) == 4
    list(events_of(request, loaded, tmp_path / "whole"))
    rest = list(events_of(request, loaded, tmp_path / "closed"))
    assert [event.index for event in rest if isinstance(event, Step)] == [4, 5, 6]
    assert_same_video(tmp_path / "whole", tmp_path / "closed")


def test_a_decoding_that_was_killed_continues_at_its_frame(loaded, tmp_path, at_every_step):
    request = a_request()
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    make_with_copies(request, loaded, whole, {killed: lambda event: isinstance(event, Decoding) and event.frame == 13})
    assert (killed / FRAMES).exists()
    events = list(events_of(request, loaded, killed))
    assert [type(event) for event in events] == [Decoding, Decoding, Decoding, Finished]
    assert [event.frame for event in events[:3]] == [9, 13, 17]
    assert_same_video(whole, killed)
    assert not (killed / FRAMES).exists()


def test_a_stopped_video_leaves_no_state(loaded, tmp_path, at_every_step):
    seen = []
    for event in events_of(a_request(), loaded, tmp_path, lambda: len(seen) > 4):
        seen.append(event)
    assert isinstance(seen[-1], Cancelled) and not (tmp_path / STATE).exists()


def test_a_file_that_the_disk_has_torn_is_made_again(loaded, tmp_path, at_every_step):
    request = a_request()
    whole, torn = tmp_path / "whole", tmp_path / "torn"
    make_with_copies(request, loaded, whole, {torn: lambda event: isinstance(event, Step) and event.index == 4})
    for name in (STATE, EMBEDDINGS):
        kept = (torn / name).read_bytes()
        (torn / name).write_bytes(kept[: len(kept) // 2])
    (torn / "previews" / ".step-003.png.0123abcd.part").write_bytes(b"half a picture")  # its process was killed
    events = list(events_of(request, loaded, torn))
    assert [event.index for event in events if isinstance(event, Step)] == [1, 2, 3, 4, 5, 6]
    assert not list(torn.rglob("*.part"))
    assert_same_video(whole, torn)


def test_another_model_begins_again(loaded, tmp_path, at_every_step):
    request = a_request()
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    make_with_copies(request, loaded, whole, {killed: lambda event: isinstance(event, Step) and event.index == 4})
    other = dataclasses.replace(loaded, source="another/model")
    steps = [event.index for event in events_of(request, other, killed) if isinstance(event, Step)]
    assert steps == [1, 2, 3, 4, 5, 6]


def test_the_seconds_of_all_processes_are_added(loaded, tmp_path, at_every_step):
    request = a_request(steps=8)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    make_with_copies(request, loaded, whole, {killed: lambda event: isinstance(event, Step) and event.index == 7})
    one, both = (list(events_of(request, loaded, folder))[-1].result.seconds for folder in (tmp_path / "fresh", killed))
    assert both["encode"] > 0 and both["denoise"] > 0.3 * one["denoise"]

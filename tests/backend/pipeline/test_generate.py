"""Run the real pipeline with the demo model: its events, its files, and its stops."""

import json
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file

from backend.media.video import read_facts, read_frames, read_request
from backend.pipeline import generate as pipeline
from backend.pipeline.decoding import decode_pieces
from backend.pipeline.denoising_loop import Denoising
from backend.pipeline.run import Run
from backend.runtime import work
from backend.schemas.events import Cancelled, Compiling, Decoding, Encoding, Finished, Loading, Step
from backend.schemas.request import GenerationRequest
from presets import LoraChoice, load_preset
from tests.clock import is_within

PRESET = load_preset("wan-tiny")

pytestmark = [pytest.mark.parity, pytest.mark.demo_model]


def make_request(**changes) -> GenerationRequest:
    settings = {"prompt": "a red circle moving right on a black background", "steps": 4, "seed": 1} | changes
    return GenerationRequest.from_preset(PRESET, **settings)


def run(request, loaded, folder, is_cancelled=lambda: False):
    return list(pipeline.generate(request, loaded, folder, is_cancelled))


def test_events_come_in_order_and_the_second_run_compiles_nothing(loaded, tmp_path):
    events = run(make_request(), loaded, tmp_path)
    kinds = [type(event) for event in events if not isinstance(event, Compiling)]
    assert kinds == [Encoding, *[Step] * 4, *[Decoding] * 5, Finished]
    assert [event.index for event in events if isinstance(event, Step)] == [1, 2, 3, 4]
    assert [event.frame for event in events if isinstance(event, Decoding)] == [1, 5, 9, 13, 17]
    assert not any(isinstance(event, Compiling) for event in run(make_request(seed=2), loaded, tmp_path))


def test_a_stop_while_it_encodes_ends_before_the_next_program(loaded, tmp_path):
    seen = []
    for event in pipeline.generate(make_request(), loaded, tmp_path, lambda: Encoding() in seen):
        seen.append(event)
    assert seen[-2:] == [Encoding(), Cancelled(None)] and not (tmp_path / "stage1_embeddings.safetensors").exists()


def test_the_video_is_what_was_asked_for_and_carries_its_request(loaded, tmp_path):
    request = make_request()
    result = run(request, loaded, tmp_path)[-1].result
    facts = read_facts(Path(result.path))
    assert (facts.width, facts.height, facts.fps) == (96, 96, 16)
    assert len(list(read_frames(Path(result.path)))) == result.num_frames == 17
    assert read_request(Path(result.path)).seed == 1
    assert result.seconds.keys() == {"compile", "encode", "denoise", "decode"} and result.seconds["denoise"] > 0


def test_the_jobs_folder_holds_every_stage(loaded, tmp_path):
    run(make_request(), loaded, tmp_path)
    embeddings = load_file(tmp_path / "stage1_embeddings.safetensors")
    assert embeddings["prompt_embeds"].shape == embeddings["negative_prompt_embeds"].shape == (1, 512, 256)
    assert load_file(tmp_path / "stage2_latents.safetensors")["latents"].shape == (
        1,
        loaded.model.latent_shape(make_request())[1],
        5,
        6,
        6,
    )
    assert json.loads((tmp_path / "generation_config.json").read_text())["num_inference_steps"] == 4
    assert not list(tmp_path.rglob("*.part"))


def test_every_step_has_a_preview_that_comes_closer_to_the_video(loaded, tmp_path):
    events = run(make_request(steps=8), loaded, tmp_path)
    video = np.stack(list(read_frames(tmp_path / "video.mp4"))).astype(float)
    shown = [Image.open(tmp_path / event.preview) for event in events if isinstance(event, Step)]
    # an animated preview, after a slow step, has an alpha channel
    previews = [np.asarray(picture.convert("RGB"), float) for picture in shown]
    assert len(previews) == 8 and previews[0].shape == (96, 96, 3)
    distance = [np.abs(preview - video[0]).mean() for preview in previews]
    assert distance[-1] < distance[0] and distance[-1] < 6  # H.264 at this size costs a few levels


def test_a_step_is_told_with_the_seconds_until_its_result_was_there(loaded, tmp_path, monkeypatch):
    clean = Denoising.current_latents

    def slowly(loop, **which):
        time.sleep(0.05)  # like devices that continue to work after the call has returned
        return clean(loop, **which)

    monkeypatch.setattr(Denoising, "current_latents", slowly)
    *events, finished = pipeline.generate(make_request(steps=3), loaded, tmp_path, lambda: False)
    seconds = [event.seconds for event in events if isinstance(event, Step)]
    assert len(seconds) == 3 and min(seconds) >= 0.05 and sum(seconds) <= finished.result.seconds["denoise"]


@pytest.mark.bench
def test_stop_ends_between_two_steps_and_keeps_what_there_is(loaded, tmp_path):
    run(make_request(), loaded, tmp_path)  # compiles all programs
    stopped, stopped_at, events = threading.Event(), 0.0, []
    for event in pipeline.generate(make_request(steps=60), loaded, tmp_path, stopped.is_set):
        events.append(event)
        if isinstance(event, Step) and event.index == 5:
            stopped.set()
            stopped_at = time.monotonic()
    assert isinstance(events[-1], Cancelled) and is_within(time.monotonic() - stopped_at, 1.0)
    # Step 6 started when step 5 was reported. It ends and is reported too, and no step follows.
    assert [event.index for event in events if isinstance(event, Step)] == [1, 2, 3, 4, 5, 6]
    assert events[-1].result.num_frames == 17 and Path(events[-1].result.path).is_file()


def test_stop_before_the_first_step_leaves_no_video(loaded, tmp_path):
    run(make_request(), loaded, tmp_path / "warm")
    events = run(make_request(), loaded, tmp_path, lambda: True)
    assert events[-1] == Cancelled(None) and not (tmp_path / "video.mp4").exists()


def test_a_stopped_video_with_sol_attn_reports_the_steps_that_ran(loaded, tmp_path):
    stopped, events = threading.Event(), []
    for event in pipeline.generate(make_request(steps=10, sparse=1.0), loaded, tmp_path, stopped.is_set):
        events.append(event)
        if isinstance(event, Step) and event.index == 4:
            stopped.set()
    assert isinstance(events[-1], Cancelled) and [event.index for event in events if isinstance(event, Step)] == [1, 2, 3, 4, 5]
    (note,) = events[-1].result.notes
    assert note.startswith("Sol-Attn approximated the attention in 3 of 10 steps; 0.0% of the blocks"), "2 dense steps come first"


def test_stop_ends_the_download_of_a_lora(loaded, tmp_path, monkeypatch):
    stopped, events = threading.Event(), []

    def download(loaded, choices, on_event, downscale) -> list[str]:
        for done in range(100):
            on_event(Loading(done, 100, "the download"))
            assert stopped.wait(60)
        raise AssertionError("it was not stopped")

    monkeypatch.setattr("backend.pipeline.preparing.merge_loras", download)
    request = make_request(loras=(LoraChoice(source="owner/name:style.safetensors"),))
    for event in pipeline.generate(request, loaded, tmp_path, stopped.is_set):
        events.append(event)
        if event == Loading(0, 100, "the download"):
            stopped.set()
    assert events[-2:] == [Loading(0, 100, "the download"), Cancelled(None)]


def test_image_to_video_begins_with_the_picture(loaded, tmp_path):
    picture = np.zeros((96, 96, 3), np.uint8) + np.array([14, 20, 82], np.uint8)
    picture[34:62, 10:38] = (242, 218, 50)
    Image.fromarray(picture).save(tmp_path / "square.png")
    prompt = "a yellow square moving right over a navy background"
    run(make_request(prompt=prompt, image=str(tmp_path / "square.png")), loaded, tmp_path)
    pictures = {"image": (Image.fromarray(picture),)}
    encoded = work.run(loaded.model.encode(loaded.weights, make_request(image="/image.png"), pictures)).full["first_frame"]
    latents = load_file(tmp_path / "stage2_latents.safetensors")["latents"]
    np.testing.assert_allclose(latents[:, :, :1], encoded, atol=1e-6)  # the picture's own latents, untouched by the steps
    seen = Run(request=make_request(), loaded=loaded, folder=tmp_path, is_cancelled=lambda: False)
    first, _ = next(decode_pieces(seen, latents))
    decoded = (np.asarray(first)[0, :, 0].transpose(1, 2, 0) + 1) * 127.5
    assert psnr(decoded, picture) >= 20  # the same image at all; training.evaluate measures the quality of the model
    first = next(iter(read_frames(tmp_path / "video.mp4"))).astype(float)
    assert psnr(first, decoded) >= 28  # H.264 halves the colour's resolution, which shows at saturated edges


def psnr(frame: np.ndarray, reference: np.ndarray) -> float:
    """Return the peak signal-to-noise ratio in dB of 8-bit values."""
    return float(10 * np.log10(255**2 / np.square(frame - reference.astype(float)).mean()))


def test_where_steps_take_long_their_pictures_move_as_the_video_will(loaded, tmp_path, monkeypatch):
    monkeypatch.setattr("backend.pipeline.denoising.ANIMATED_STEP_SECONDS", 0.0)
    events = run(make_request(steps=12), loaded, tmp_path)
    name = [event.preview for event in events if isinstance(event, Step)][-1]
    assert name == "previews/step-012.webp"
    with Image.open(tmp_path / name) as picture:
        assert picture.n_frames == 5
        shown = []
        for frame in range(5):
            picture.seek(frame)
            shown.append(np.asarray(picture.convert("RGB"), np.float32))
    video = list(read_frames(Path(events[-1].result.path)))
    for frame, decoded in ((0, video[0]), (4, video[-1])):
        where = [pixels[..., 0] > 120 for pixels in (shown[frame], decoded)]
        columns = [np.nonzero(mask)[1].mean() for mask in where]
        assert abs(columns[0] - columns[1]) < 12, "the red circle is where it will be"  # a latent is 16 pixels wide

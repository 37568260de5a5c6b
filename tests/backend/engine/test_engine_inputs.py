"""Check the engine's input files of images, clips and audio: copying, refusals, and opening in sequence."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from backend.engine.engine import Engine
from backend.engine.folder import write_inputs
from backend.errors import Busy, ClipError, ImageError, SoundError
from backend.media.clips import read_clip_facts
from backend.media.sandbox import SandboxCall, SandboxPool
from backend.media.sound import Sound, read_sound
from backend.media.video import read_request
from backend.schemas.events import (
    Finished,
    Step,
)
from backend.schemas.request import GenerationRequest
from presets import load_preset
from tests.backend.conftest import FAKE, all_events, request, wait_for
from tests.backend.media import sandbox_work
from tests.clip_files import counting_clip


def test_images_are_copied_so_that_the_original_may_go(engine, close_gate, tmp_path):
    gate = close_gate("a held square")
    path = tmp_path / "a.png"
    Image.new("RGB", (50, 40), "blue").save(path)
    engine.submit(request("a held square"))
    job = engine.submit(request(image=str(path)))
    path.unlink()
    gate.open()
    assert job.request.image == str(job.folder / "image.png")
    assert isinstance(all_events(engine, job.id)[-1], Finished)


def test_a_bad_image_leaves_nothing(engine, tmp_path):
    path = tmp_path / "a.png"
    path.write_text("words")
    with pytest.raises(ImageError):
        engine.submit(request(image=str(path)))
    assert engine.jobs.list_jobs() == [] and list((tmp_path / "data" / "runs").iterdir()) == []


def test_the_largest_transparent_webp_is_stored_within_the_sandbox_memory(tmp_path):
    image = Image.new("RGBA", (8660, 5773), (255, 0, 0, 100))
    image.save(tmp_path / "a.webp", lossless=True, quality=0, method=0)
    del image
    folder = tmp_path / "job"
    folder.mkdir()
    arguments = request(image=str(tmp_path / "a.webp")), folder
    with closing(SandboxPool()) as sandbox:
        stored = sandbox.run(SandboxCall(work=write_inputs, arguments=arguments, seconds=300))  # enough for a busy machine
    with Image.open(stored["image"][0]) as image:
        assert (image.format, image.size) == ("WEBP", (8660, 5773))


@pytest.fixture
def clip(tmp_path):
    """Two seconds with sound."""
    return counting_clip(
        tmp_path / "my clip.MOV", 32, 16, (64, 64), sound=True, options=["-c:v", "libx264", "-c:a", "aac", "-f", "mov"]
    )


def test_a_sound_is_copied_and_is_that_of_the_video(tmp_path):
    own = tmp_path / "my song.WAVE"
    samples = 0.5 * np.sin(np.arange(2 * 22_050) / 20).astype(np.float32)
    Sound(samples=np.stack([samples, 0.5 * samples]), rate=22_050).write(own)
    given = dict(prompt="a red circle", seed=3, sound=str(own), sound_start=0.5, width=256, height=256, num_frames=9)
    engine = Engine(tmp_path / "data", "square", pipeline=FAKE)
    try:
        job = engine.submit(GenerationRequest.from_preset(load_preset("ltx-2.3-704p"), **given))
        own.unlink()
        assert job.request.sound == str(job.folder / "input-sound.wav") and job.request.sound_start == 0.5
        result = all_events(engine, job.id)[-1].result
        heard = read_sound(Path(result.path))
        assert result.has_sound and heard.rate == 22_050 and np.square(heard.samples[0]).mean() == pytest.approx(0.125, abs=0.02)
        assert (read_request(result.path).sound, read_request(result.path).sound_start) == ("input-sound.wav", 0.5)
        again = engine.submit(job.request.with_changes(sound_start=0.0))
        assert again.request.sound == str(again.folder / "input-sound.wav")
        assert isinstance(all_events(engine, again.id)[-1], Finished)
        with pytest.raises(SoundError):
            engine.submit(job.request.with_changes(sound_start=2.0))
        assert len(engine.jobs.list_jobs()) == 2
    finally:
        engine.close()


def test_a_clip_is_copied_and_its_part_becomes_the_video_with_its_sound(engine, clip):
    job = engine.submit(request(video=str(clip), trim=(0.5, 1.5625), strength=0.5, steps=4))
    clip.unlink()
    assert job.request.video == str(job.folder / "input-video.mp4")  # its content says what it is
    events = all_events(engine, job.id)
    assert [event.index for event in events if isinstance(event, Step)] == [1, 2]
    result = events[-1].result
    assert result.num_frames == 17 and read_clip_facts(result.path).has_sound
    shared = read_request(result.path)
    assert (shared.video, shared.trim, shared.strength) == ("input-video.mp4", (0.5, 1.5625), 0.5)
    again = engine.submit(job.request)
    assert again.request.video == str(again.folder / "input-video.mp4") and isinstance(all_events(engine, again.id)[-1], Finished)


def test_a_waiting_video_keeps_its_clip_when_it_is_changed(engine, close_gate, clip):
    gate = close_gate("a held square")
    engine.submit(request("a held square"))
    job = engine.submit(request(video=str(clip)))
    changed = engine.sandbox.run_steps(engine.revise_steps(job.id, job.request.with_changes(strength=0.5)))
    assert (changed.request.strength, changed.request.video) == (0.5, str(job.folder / "input-video.mp4"))
    gate.open()
    assert isinstance(all_events(engine, job.id)[-1], Finished)


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"words " * 100, "must be a video"), (None, "after 1.5 s it has 8 frames at 16 fps")],
)
def test_a_bad_clip_leaves_nothing(engine, tmp_path, clip, content, words):
    if content:
        clip.write_bytes(content)
    with pytest.raises(ClipError, match=words):
        engine.submit(request(video=str(clip), trim=(1.5, 2.5625)))
    assert engine.jobs.list_jobs() == [] and list((tmp_path / "data" / "runs").iterdir()) == []


def test_pictures_wait_for_their_turn_and_leave_nothing_when_it_does_not_come(engine, tmp_path):
    Image.new("RGB", (64, 64)).save(tmp_path / "a.png")
    with_picture, gate = request("red", task="i2v", image=str(tmp_path / "a.png")), tmp_path / "gate"
    engine.sandbox = SandboxPool(at_once=1, patience_seconds=0.05)
    with ThreadPoolExecutor(1) as other:
        other.submit(
            engine.sandbox.run,
            SandboxCall(work=sandbox_work.wait_for, arguments=(str(gate), str(tmp_path / "begun")), seconds=60),
        )
        wait_for((tmp_path / "begun").exists)
        before = len(engine.jobs.list_jobs())
        with pytest.raises(Busy):
            engine.submit(with_picture)
        assert len(engine.jobs.list_jobs()) == before
        engine.submit(request("red"))  # the request has no picture, so it does not wait
        gate.touch()
    engine.sandbox.close()
    engine.sandbox = SandboxPool()
    engine.submit(with_picture)

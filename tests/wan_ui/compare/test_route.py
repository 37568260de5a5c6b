"""Tests of the route that sends a comparison as one video, silent or with the audio of one tile, and of who gets it."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from backend.engine.user_presets import Comparison
from backend.errors import VideoFileError
from backend.media.clips import read_clip_facts
from backend.media.sandbox import SandboxPool
from backend.media.sound import read_sound, replace_audio
from backend.media.video import write_video
from tests.fake_pipeline import hum
from tests.wan_ui.builders import FakeEngine, a_job
from wan_ui.compare.route import compare_route
from wan_ui.gateway.access import Access
from wan_ui.gateway.visitors import COOKIE, owner_name

MINE, THEIRS = "A" * 43, "B" * 43
OWNER = owner_name({COOKIE: MINE})


def a_video(folder: Path, num_frames: int, seed: int, has_sound: bool):
    folder.mkdir(parents=True)
    job = a_job(folder, owner=OWNER, num_frames=num_frames, seed=seed)
    frames = (np.full((96, 96, 3), level, np.uint8) for level in range(num_frames))
    write_video(frames, folder / "video.mp4", fps=job.request.fps, request=job.request)
    if has_sound:
        replace_audio(folder / "video.mp4", hum(job.request), (96, 96))
    return job


@pytest.fixture
def engine(tmp_path) -> Iterator[FakeEngine]:
    """Return an engine with three videos: a long silent video, and two shorter videos with tones of 440 and 660 Hz."""
    told = [(17, 0, False), (9, 1, True), (9, 2, True)]
    jobs = [a_video(tmp_path / "runs" / f"job-{number}", *facts) for number, facts in enumerate(told, 1)]
    engine, found = FakeEngine(jobs), Comparison(id="abc", owner=OWNER, jobs=("job-1", "job-2", "job-3"))
    engine.user_presets = SimpleNamespace(comparison={"abc": found}.get)
    engine.library = SimpleNamespace(with_sound=lambda job_ids: frozenset(job_ids) & {"job-2", "job-3"})
    engine.settings = SimpleNamespace(comparisons_dir=tmp_path / "comparisons")
    engine.sandbox = SandboxPool()
    yield engine
    engine.sandbox.close()


def get(engine, query: str = "", token: str = MINE):
    site = Starlette(routes=[compare_route(engine, Access("key"))])
    return TestClient(site, cookies={COOKIE: token}).get(f"/studio/compare/abc.mp4{query}")


def test_the_chosen_tiles_sound_goes_with_it_as_long_as_the_whole(engine, tmp_path):
    answers = {query: get(engine, query) for query in ("", "?sound=2", "?sound=3")}
    assert {answer.status_code for answer in answers.values()} == {200}
    assert {path.name for path in engine.settings.comparisons_dir.iterdir()} == {"abc.mp4", "abc.2.mp4", "abc.3.mp4"}
    with pytest.raises(VideoFileError, match="the sound could not be read"):
        read_sound(engine.settings.comparisons_dir / "abc.mp4")
    for number, tone in ((2, 440), (3, 660)):
        (tmp_path / "tiled.mp4").write_bytes(answers[f"?sound={number}"].content)
        sound, facts = read_sound(tmp_path / "tiled.mp4"), read_clip_facts(tmp_path / "tiled.mp4")
        assert facts.has_sound and sound.samples.shape[1] == round(17 / 16 * sound.rate)
        spectrum = np.abs(np.fft.rfft(sound.samples[1]))
        assert spectrum.argmax() * sound.rate / sound.samples.shape[1] == pytest.approx(tone, abs=3)
        assert np.abs(sound.samples[:, round(0.7 * sound.rate) :]).max() < 0.01, "silent where the shorter video has ended"


@pytest.mark.parametrize("tile", ["1", "0", "4", "-1", "2.0", "x", "02", "../abc", "%2e%2e%2f", "２"])
def test_a_tile_that_is_not_there_or_silent_is_refused_and_leaves_nothing(engine, tile):
    assert get(engine, f"?sound={tile}").status_code == 404
    assert not engine.settings.comparisons_dir.exists()


def test_a_stranger_gets_neither(engine):
    assert get(engine, "", THEIRS).status_code == get(engine, "?sound=2", THEIRS).status_code == 404

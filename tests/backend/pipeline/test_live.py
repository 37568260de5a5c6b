"""Check live videos of the demo model: steered, stopped, killed and generated again, and their files."""

import shutil

import numpy as np
import pytest

from backend.errors import RequestError, VideoFileError
from backend.media.pictures import crop_to, load_checked_image
from backend.media.video import read_frames
from backend.pipeline.generate import generate
from backend.pipeline.live import live
from backend.pipeline.load import load
from backend.pipeline.loaded import LoadedModel
from backend.schemas.events import Block, Cancelled, Finished, VideoResult
from backend.schemas.live import FOLDER, KEPT_SECONDS
from backend.schemas.prompt_cues import Cue
from backend.schemas.request import GenerationRequest
from presets import load_preset

PRESET = load_preset("wan-live-tiny")
PROMPT = "a red circle on a navy background"

pytestmark = [pytest.mark.parity, pytest.mark.demo_model]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory) -> LoadedModel:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STUDIO_DATA_DIR", str(tmp_path_factory.mktemp("data")))
        yield load(PRESET, None, lambda event: None)


class Person:
    """A visitor who sends the cues of `script` for each block during the previous block, and presses Stop after block `last`."""

    def __init__(self, script: dict[int, Cue], last: int) -> None:
        self._script, self._last, self._next, self._seen = script, last, 0, -1

    def hear(self) -> list[Cue]:
        self._next += 1
        return [cue for block, cue in self._script.items() if block == self._next - 1]

    def is_stopped(self) -> bool:
        return self._next > self._last

    def watch(self, loaded, folder, request, seen=lambda event: None) -> VideoResult:
        """Generate the video at full speed."""
        event = None
        for event in live(request, loaded, folder, self.is_stopped, self.hear, lead=float("inf")):
            seen(event)
        assert isinstance(event, Finished)
        return event.result


def open_request(**changes) -> GenerationRequest:
    return GenerationRequest.from_preset(PRESET, **{"prompt": PROMPT, "seed": 3, "num_frames": 401, "is_open": True} | changes)


SCRIPT = {
    0: Cue(block=0, action="right"),
    3: Cue(block=0, prompt="a blue square on a black background"),
    6: Cue(block=0, action="up"),
}


def frames_of(path) -> np.ndarray:
    return np.stack(list(read_frames(path)))


def test_a_stopped_video_knows_what_was_said_and_is_made_again_to_the_same_pixels(loaded, tmp_path):
    result = Person(SCRIPT, last=9).watch(loaded, tmp_path / "live", open_request())
    request = result.request
    assert not request.is_open and result.num_frames == request.num_frames == 37
    assert request.cues == tuple(cue.model_copy(update={"block": block}) for block, cue in SCRIPT.items())
    assert not list((tmp_path / "live" / FOLDER).glob("*.mp4"))
    (tmp_path / "again").mkdir()
    *_, again = generate(request, loaded, tmp_path / "again", lambda: False)
    assert isinstance(again, Finished) and again.result.request == request
    np.testing.assert_array_equal(frames_of(result.path), frames_of(again.result.path))


def test_one_that_was_killed_continues_as_it_was_told_before(loaded, tmp_path):
    folder, killed = tmp_path / "live", tmp_path / "killed"

    def copy_in_the_middle(event) -> None:
        if isinstance(event, Block) and event.index == 5:
            shutil.copytree(folder, killed)

    result = Person(SCRIPT, last=9).watch(loaded, folder, open_request(), copy_in_the_middle)
    told = len((killed / FOLDER / "script.jsonl").read_text("utf-8").splitlines())
    assert 5 < told < 10
    rest = {
        block - told: cue for block, cue in SCRIPT.items() if block >= told
    }  # blocks that were reported before are not asked for again
    resumed = Person(rest, last=9 - told).watch(loaded, killed, open_request())
    assert resumed.request == result.request
    np.testing.assert_array_equal(frames_of(result.path), frames_of(resumed.path))


def test_it_begins_with_the_visitors_picture(loaded, tmp_path):
    picture = PRESET.image_examples[1].path
    request = open_request(prompt="a yellow star over a navy background", image=str(picture))
    result = Person({1: Cue(block=0, action="left")}, last=6).watch(loaded, tmp_path, request)
    frames = frames_of(result.path).astype(float)
    given = np.asarray(crop_to(load_checked_image(str(picture)), 96, 96), float)
    before, after = (np.argwhere(frame[..., 0] > 128).mean(0) for frame in (frames[0], frames[-1]))
    assert np.abs(frames[0] - given).mean() < 8
    assert after[1] < before[1] - 15 and abs(after[0] - before[0]) < 8  # the square moved left and stayed at its height


def test_nothing_is_kept_of_one_that_is_stopped_before_its_first_block(loaded, tmp_path):
    *_, last = live(open_request(), loaded, tmp_path, lambda: True, list)
    assert last == Cancelled(None) and not (tmp_path / "video.mp4").exists()


def test_pictures_for_the_page_are_removed_when_they_are_old(loaded, tmp_path, monkeypatch):
    kept_seconds, most = 2, []
    assert kept_seconds < KEPT_SECONDS, "as short as a test may be"
    monkeypatch.setattr("backend.pipeline.live.KEPT_SECONDS", kept_seconds)
    blocks = kept_seconds * PRESET.fps // 4 + 6

    def count(event) -> None:
        if isinstance(event, Block):
            most.append(len(list((tmp_path / FOLDER).glob("*.jpg"))))

    Person({}, last=blocks).watch(loaded, tmp_path, open_request(), count)
    assert kept_seconds * PRESET.fps <= max(most) <= kept_seconds * PRESET.fps + 8


def test_words_that_the_model_cannot_follow_end_it_with_a_sentence(loaded, tmp_path):
    """The error is raised at once, not at the end of the video."""
    heard = iter([[], [Cue(block=0, action="jump")]])
    with pytest.raises(RequestError, match="jump"):
        list(live(open_request(), loaded, tmp_path, lambda: False, lambda: next(heard), lead=float("inf")))


def test_a_disk_that_takes_no_video_ends_it_with_a_sentence(loaded, tmp_path, monkeypatch):
    def fails(frames, path, fps, comment):
        next(iter(frames))
        raise VideoFileError("the video could not be written", "there is no room", "free some space")

    monkeypatch.setattr("backend.pipeline.live.write_frames", fails)
    with pytest.raises(VideoFileError, match="no room"):
        list(live(open_request(), loaded, tmp_path, lambda: False, list, lead=float("inf")))

"""Videos of different lengths and sizes are joined side by side in one file, each with its label."""

import json

import numpy
import pytest

from backend.media.mp4 import read_comment
from backend.media.sound import Sound, read_sound, replace_audio
from backend.media.tiles import LABEL_HEIGHT, Tile, write_side_by_side
from backend.media.video import read_facts, read_frames, write_video
from tests.backend.conftest import request


@pytest.fixture
def tiles(tmp_path) -> list[Tile]:
    made = []
    for number, (colour, size, count) in enumerate(
        [((200, 0, 0), (64, 96), 3), ((0, 0, 200), (96, 64), 5), ((0, 160, 0), (96, 96), 5)]
    ):
        path = tmp_path / f"{number}.mp4"
        write_video((numpy.full((*size, 3), colour, numpy.uint8) for _ in range(count)), path, fps=8, request=request())
        made.append(Tile(path=path, label=f"steps {number}"))
    return made


def test_three_videos_become_one(tiles, tmp_path):
    count = write_side_by_side(tiles, [request(seed=number) for number in range(3)], tmp_path / "all.mp4")
    frames, facts = list(read_frames(tmp_path / "all.mp4")), read_facts(tmp_path / "all.mp4")
    assert count == len(frames) == 5
    cell_width, cell_height = facts.width // 2, facts.height // 2 - LABEL_HEIGHT
    assert cell_width >= 320 and cell_width == cell_height
    for frame in (frames[0], frames[4]):  # the shorter one stays on its last frame
        assert frame[cell_height // 2, cell_width // 2, 0] > 150
        assert frame[cell_height // 2, cell_width * 3 // 2, 2] > 150
        assert frame[cell_height * 3 // 2 + LABEL_HEIGHT, cell_width // 2, 1] > 110
        assert frame[-20:, -20:].max() < 60, "the fourth place is empty"
    assert frames[0][cell_height : cell_height + LABEL_HEIGHT, :100].max() > 150, "there is a label"
    told = json.loads(read_comment(tmp_path / "all.mp4"))
    assert [one["seed"] for one in told["compared"]] == [0, 1, 2]


def test_a_slower_video_keeps_its_speed_and_its_sound_fits_the_whole(tmp_path):
    tiles, requests = [], [request(seed=1, fps=8), request(seed=2, fps=16)]
    for number, one in enumerate(requests):
        path = tmp_path / f"{number}.mp4"
        frames = (numpy.full((96, 96, 3), 10 * index, numpy.uint8) for index in range(9))
        write_video(frames, path, fps=one.fps, request=one)
        tiles.append(Tile(path=path, label=str(one.fps), fps=one.fps))
    tone = numpy.sin(numpy.arange(9000) / 3, dtype=numpy.float32)[None] / 2
    replace_audio(tiles[0].path, Sound(samples=tone, rate=8000), (96, 96))
    assert write_side_by_side(tiles, requests, tmp_path / "both.mp4", tiles[0].path) == 18
    frames = list(read_frames(tmp_path / "both.mp4"))
    width = frames[0].shape[1] // 2
    levels = [[int(half[100:200, 100:200].mean()) for half in (frame[:, :width], frame[:, width:])] for frame in frames]
    assert [round(slow / 10) for slow, _ in levels] == [index // 2 for index in range(18)]
    assert [round(fast / 10) for _, fast in levels] == [*range(9), *[8] * 9]
    sound = read_sound(tmp_path / "both.mp4")
    assert sound.samples.shape[1] / sound.rate == 18 / 16
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []

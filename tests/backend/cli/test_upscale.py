"""Check the command `upscale`: it enlarges clips and our videos, and reports errors in one sentence before it starts."""

import json

import pytest

from backend.cli.command_line import parse
from backend.cli.upscale import upscale
from backend.engine.engine import Engine
from backend.errors import StudioError
from backend.media.clips import read_clip_facts
from tests.clip_files import counting_clip


def fake_engine(*arguments, **options) -> Engine:
    return Engine(*arguments, pipeline="tests.fake_pipeline", **options)


def test_a_clip_becomes_larger_and_json_is_one_object(tmp_path, capsys):
    clip, output = counting_clip(tmp_path / "holiday.mov", 8, 8, (48, 32)), tmp_path / "large.mp4"
    words = ["upscale", str(clip), "--scale", "4", "--output", str(output), "--json", "--data-dir", str(tmp_path / "data")]
    assert upscale(parse(words), fake_engine) == 0
    told = capsys.readouterr()
    result = json.loads(told.out)
    assert (result["width"], result["height"], result["num_frames"], result["path"]) == (192, 128, 8, str(output))
    assert result["seconds"]["upscale"] == 0.2 and (read_clip_facts(output).width, read_clip_facts(clip).width) == (192, 48)
    assert "BSD 3-Clause" in told.err and "Upscaling frame 8 of 8" in told.err


def test_the_models_that_are_here_are_listed(tmp_path, capsys):
    (tmp_path / "upscalers").mkdir()
    (tmp_path / "upscalers" / "mine.pth").write_bytes(b"")
    assert upscale(parse(["upscale", "--list", "--json", "--data-dir", str(tmp_path)])) == 0
    assert json.loads(capsys.readouterr().out) == ["animevideov3", "x4plus", "x4plus-anime", "mine.pth"]
    assert upscale(parse(["upscale", "--list", "--data-dir", str(tmp_path)])) == 0
    assert capsys.readouterr().out.count("BSD 3-Clause License\n") == 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "FILE is missing"),
        (("missing.mp4",), "must be a file, but no file is at that path"),
        (("notes.mp4",), "must be a video"),
        (("clip.mp4", "--model", "missing"), "must be an installed upscaler"),
        (("clip.mp4", "--model", "../notes.mp4"), "must be an installed upscaler"),
        (("clip.mp4", "--output", "large.avi"), "must end in .mp4"),
    ],
)
def test_what_is_wrong_is_one_sentence_before_anything_starts(tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    counting_clip(tmp_path / "clip.mp4", 8, 8, (48, 32))
    (tmp_path / "notes.mp4").write_text("words " * 100)

    def none(*_, **__):
        raise AssertionError("an engine was started")

    with pytest.raises(StudioError, match=said) as refused:
        upscale(parse(["upscale", *words, "--data-dir", str(tmp_path / "data")]), none)
    assert "\n" not in str(refused.value) and not list((tmp_path / "data").glob("runs/*"))


@pytest.mark.parametrize("scale", ["3", "0", "two", "2.0"])
def test_a_scale_that_there_is_not_is_refused(scale, capsys):
    with pytest.raises(SystemExit):
        parse(["upscale", "a.mp4", "--scale", scale])
    assert capsys.readouterr().err.count("\n") == 1

"""The command `generate` with a real engine and worker; only the pipeline is a stand-in."""

import io
import json
from functools import partial

import pytest

from backend.cli.command_line import parse
from backend.cli.generate import check_output, copy_video, generate
from backend.cli.progress import Progress, describe
from backend.engine.engine import Engine
from backend.errors import OutputError, VideoFileError
from backend.media.video import read_facts, read_request
from backend.schemas.events import Compiling, Decoding, Encoding, Loading, Queued, Step, Upscaling
from presets import load_preset
from tests.backend.conftest import FAKE


def run(tmp_path, *words: str, prompt: str = "a red square") -> int:
    base = ["generate", "--preset", "wan-tiny", "--prompt", prompt, "--steps", "3", "--data-dir", str(tmp_path / "data")]
    return generate(parse([*base, *words]), partial(Engine, pipeline=FAKE))


def test_json_is_one_object_and_nothing_else(tmp_path, capsys):
    output = tmp_path / "out.mp4"
    assert run(tmp_path, "--output", str(output), "--json", "--seed", "5", "--frames", "33", "--width", "128") == 0
    told = capsys.readouterr()
    result = json.loads(told.out)
    assert list(result) == ["path", "width", "height", "num_frames", "fps", "seed", "seconds", "rates", "preset", "job_id"]
    assert result["path"] == str(output) and (result["width"], result["height"]) == (128, 96)
    assert (result["num_frames"], result["fps"], result["seed"], result["preset"]) == (33, 16, 5, "wan-tiny")
    assert list(result["seconds"]) == ["load", "compile", "encode", "denoise", "decode", "total"]
    assert "Step 3 of 3" in told.err and "Decoding frame 32 of 33" in told.err


def test_of_a_video_with_sound_json_says_how_it_sounds(tmp_path, capsys):
    assert run(tmp_path, "--json", "--frames", "33", prompt="a red square hums") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["sound"] == {"sample_rate": 24000, "channels": 2, "seconds": pytest.approx(33 / 16, abs=0.05)}  # AAC's frames


def test_a_live_videos_json_says_its_blocks_and_their_actions_too(tmp_path, capsys):
    words = ["live", "--preset", "wan-live-tiny", "--prompt", "a red circle", "--seconds", "2", "--actions", "right*2,up*1"]
    arguments = parse([*words, "--seed", "5", "--json", "--data-dir", str(tmp_path / "data")])
    assert generate(arguments, partial(Engine, pipeline=FAKE)) == 0
    result = json.loads(capsys.readouterr().out)
    preset = load_preset("wan-live-tiny")
    assert result["blocks"] == 1 + (result["num_frames"] - preset.first_frames) // preset.frame_step > 3
    assert result["actions"] == ["right", "right", "up"] + ["stay"] * (result["blocks"] - 3)
    seconds = result["seconds"]["denoise"] + result["seconds"]["decode"]
    assert result["frames_per_second"] == pytest.approx(result["num_frames"] / seconds, rel=0.05)
    assert result["delay_seconds"] == pytest.approx(seconds / result["blocks"], abs=0.002)


def test_generate_says_the_same_of_a_live_preset_as_of_any(tmp_path, capsys):
    words = ["generate", "--preset", "wan-live-tiny", "--prompt", "a red circle", "--json", "--data-dir", str(tmp_path / "data")]
    assert generate(parse(words), partial(Engine, pipeline=FAKE)) == 0
    assert list(json.loads(capsys.readouterr().out))[-2:] == ["preset", "job_id"]


def test_the_output_is_the_video(tmp_path, capsys):
    output = tmp_path / "out.mp4"
    output.write_text("an older one")
    assert run(tmp_path, "--output", str(output), "--seed", "5") == 0
    assert read_facts(output).width == 96 and read_request(output).seed == 5
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    assert capsys.readouterr().out.startswith(f"{output} (96x96, 17 frames at 16 fps, seed 5, ")


def test_without_an_output_the_video_stays_with_its_job(tmp_path, capsys):
    assert run(tmp_path, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["path"] == str(tmp_path / "data" / "runs" / result["job_id"] / "video.mp4")
    assert 0 <= result["seed"] < 2**32


def test_a_failure_is_one_line_and_exit_code_1(tmp_path, capsys):
    assert run(tmp_path, "--json", "--output", str(tmp_path / "out.mp4"), prompt="explode") == 1
    told = capsys.readouterr()
    assert told.out == "" and not (tmp_path / "out.mp4").exists()
    assert told.err.splitlines()[-1] == (
        "ValueError: the square exploded; See the newest file in the data folder's logs for details"
    )


def test_where_memory_runs_out_json_says_what_would_fit(tmp_path, capsys):
    assert run(tmp_path, "--json", prompt="memory") == 1
    told = capsys.readouterr()
    result = json.loads(told.out)
    assert result["error"] == "There is not enough memory for this video" and result["fix"].startswith("It would fit at 96x96")
    assert result["would_fit"][0] == {"width": 96, "height": 96, "num_frames": 5, "bytes_per_device": 800}
    assert told.err.splitlines()[-1] == f"{result['error']}; {result['fix']}"


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("out.gif", "must end in .mp4"),
        ("", "must end in .mp4"),
        ("no/out.mp4", "must be in an existing folder"),
        ("folder.mp4", "must be a file, and is a folder"),
        ("x" * 300 + ".mp4", "must be writable (File name too long)"),
    ],
)
def test_an_output_is_refused_before_any_work(tmp_path, monkeypatch, name, part):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.mp4").mkdir()
    with pytest.raises(OutputError) as caught:
        run(tmp_path, "--output", name)
    assert part in str(caught.value) and [path.name for path in tmp_path.iterdir()] == ["folder.mp4"]


def test_a_usable_output_is_left_untouched(tmp_path):
    (tmp_path / "out.mp4").write_text("older")
    assert check_output(str(tmp_path / "out.mp4")) == tmp_path / "out.mp4"
    assert (tmp_path / "out.mp4").read_text() == "older" and len(list(tmp_path.iterdir())) == 1


def test_a_copy_that_fails_says_where_the_video_is(tmp_path):
    (tmp_path / "video.mp4").write_text("video")
    with pytest.raises(VideoFileError, match=f"the video is at {tmp_path}/video.mp4"):
        copy_video(tmp_path / "video.mp4", tmp_path / "no" / "out.mp4")


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_one_changing_line():
    stream = Terminal()
    progress = Progress(stream)
    progress.show(Step(1, 2, 0.5, 0.5))
    progress.show(Step(2, 2, 0.5, 0.0))
    progress.end()
    assert stream.getvalue() == (
        "\r\x1b[KStep 1 of 2 (0.50 s per step, 0 s left)\r\x1b[KStep 2 of 2 (0.50 s per step, 0 s left)\n"
    )


def test_elsewhere_each_news_is_a_line_once():
    stream = io.StringIO()
    progress = Progress(stream)
    for _ in range(2):
        progress.show(Compiling("the denoiser"))
    progress.end()
    assert stream.getvalue() == "Compiling the denoiser\n"


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (Queued(0), "Starting"),
        (Queued(2), "Queued behind 2"),
        (Loading(1, 4, "weights"), "Loading weights (25 %)"),
        (Loading(0, 0, "weights"), "Loading weights"),
        (Compiling("a step", False, 2, 5), "Compiling a step (2 of 5)"),
        (Compiling("a step", False, 2, 5, 61.4), "Compiling a step (2 of 5, about 61 s left)"),
        (Compiling("a step", True, 2, 5), "Loaded a step precompiled (2 of 5)"),
        (Encoding(), "Encoding the prompt"),
        (Decoding(4, 33), "Decoding frame 4 of 33"),
        (Upscaling(4, 33), "Upscaling frame 4 of 33"),
        (Upscaling(4, 33, 7.6), "Upscaling frame 4 of 33 (8 s left)"),
        (Step(3, 20, 0.25, 4.4), "Step 3 of 20 (0.25 s per step, 4 s left)"),
    ],
)
def test_events_in_words(event, text):
    assert describe(event) == text


def test_a_terminal_is_told_how_fast_a_download_goes():
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    told = {kind: kind() for kind in (Terminal, io.StringIO)}
    for stream in told.values():
        Progress(stream).show(Loading(1, 4, "the download", 10e6))
    assert "Loading the download (25 %) at 10.0 MB/s, 0 s left" in told[Terminal].getvalue()
    assert told[io.StringIO].getvalue() == "Loading the download (25 %)\n"

"""Run `cut` through the command line: finished videos become one film, without importing any model code."""

import json
import subprocess
import sys

import pytest

from backend.media.video import read_facts, read_frames
from backend.settings import PROJECT_FOLDER
from tests.clip_files import counting_clip, numbers, run_ffmpeg

FILE = """
track = "music.wav"
track_start = 0.25
track_fade = 0.25
track_volume = 0.5
[[shots]]
video = "one.mp4"
trim = [0.5, 1]
[[shots]]
video = "two.mp4"
fade = 0.125
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("film")
    for name in ("one", "two"):
        counting_clip(folder / f"{name}.mp4", 16, 16)
    run_ffmpeg("-f", "lavfi", "-i", "sine=440:d=3", str(folder / "music.wav"))
    (folder / "film.toml").write_text(FILE)
    return folder


def cut(*words: object) -> subprocess.CompletedProcess:
    line = [sys.executable, "app.py", "cut", *map(str, words)]
    return subprocess.run(line, cwd=PROJECT_FOLDER, capture_output=True, text=True)


def test_videos_become_one_beside_a_file_that_says_how(folder):
    done = cut(folder / "film.toml", "--output", folder / "out.mp4", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told.pop("seconds") > 0
    size = {"width": 64, "height": 48, "fps": 16}
    assert told == {"path": str(folder / "out.mp4"), **size, "num_frames": 8 + 14, "has_sound": True}
    seen = numbers(list(read_frames(folder / "out.mp4")))
    assert seen[:6] == [*range(8, 14)] and seen[8:] == [*range(2, 16)] and read_facts(folder / "out.mp4").seconds >= 22 / 16


def test_neither_jax_nor_torch_is_imported(folder):
    (folder / "film.json").write_text(json.dumps({"shots": [{"video": "one.mp4"}], "width": 33, "height": 25}))
    words = ["app.py", "cut", str(folder / "film.json")]
    script = f"import sys, app; print(app.main({words[1:]!r}), {{'jax', 'torch'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], cwd=PROJECT_FOLDER, capture_output=True, text=True)
    assert done.stdout.endswith("0 set()\n"), done.stderr
    facts = read_facts(folder / "film.mp4")  # next to the description, with its name
    assert (facts.width, facts.height, facts.seconds) == (33, 25, 1.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fps = 16", "bad.toml must have [[shots]], 1 to 24 of them, each with its video; correct it"),
        ('[[shots]]\nprompt = "x"', "shot 1 has 'prompt' and may have video, trim, fade"),
        ("[[shots]]\nfade = 1", "shot 1 has no video and needs one before it can be cut; give its mp4 as video"),
        (
            '[[shots]]\nvideo = "one.mp4"\ntrim = [0, 9]',
            "shot 1 shows 144 frames, but its video has 16: 1.00 s at 16 fps",
        ),
        ('[[shots]]\nvideo = "one.mp4"\ntrim = ["a", 9]', "shot 1 has a time 'a', which must be a number"),
        ('[[shots]]\nvideo = "one.mp4"\ntrim = [0, nan]', "shot 1 has trim=0,nan which must be two times of the shot"),
        ('[[shots]]\nvideo = "one.mp4"\nfade = 0.5', "shot 1 has a fade, but no previous shot"),
        ('[[shots]]\nvideo = "music.wav"', "clip 'music.wav' must be a video"),
        ('[[shots]]\nvideo = "../none.mp4"', "clip 'none.mp4' must be a file, but no file is at that path"),
        ('track = "one.mp4"\n[[shots]]\nvideo = "one.mp4"', "audio 'one.mp4' must have audio, but is a silent video"),
        ('track_fade = 1\n[[shots]]\nvideo = "one.mp4"', "bad.toml has settings of a track but no track"),
        ('track = "music.wav"\ntrack_start = 1.0\n[[shots]]\nvideo = "one.mp4"', "track_start=1 must be within the film's 1.00"),
        ('fps = 0\n[[shots]]\nvideo = "one.mp4"', "fps=0 must be a whole number from 1 to 120"),
        ("[[shots", "bad.toml must be TOML"),
    ],
)
def test_a_file_that_cannot_be_cut_is_refused_in_one_line(folder, text, message, capsys):
    from app import main

    (folder / "bad.toml").write_text(text)
    assert main(["cut", str(folder / "bad.toml")]) == 2
    out, err = capsys.readouterr()
    assert out == "" and message in err and err.count("\n") == 1 and not (folder / "bad.mp4").exists()

"""`storyboard` through the command line."""

import json
import os
import subprocess
import sys

import pytest

from backend.cli.arguments import request_from_arguments
from backend.cli.command_line import parse
from backend.media.video import read_facts, read_request
from backend.settings import PROJECT_FOLDER
from tests.clip_files import counting_clip

FILE = """
preset = "wan-tiny"
steps = 2
seed = 4
[[shots]]
prompt = "a red circle moving right on a black background"
frames = 9
[[shots]]
prompt = "a red circle moving down on a black background"
seconds = 0.5
seed = 8
"""


def app(*words: object) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "app.py", *map(str, words)], cwd=PROJECT_FOLDER, capture_output=True, text=True)


@pytest.mark.demo_model
def test_a_file_becomes_one_video(tmp_path):
    file, output = tmp_path / "story.toml", tmp_path / "out.mp4"
    file.write_text(FILE)
    done = app("storyboard", file, "--output", output, "--json", "--data-dir", tmp_path / "data")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["path"], told["num_frames"], told["seed"], told["preset"]) == (str(output), 17, 4, "wan-tiny")
    assert "Shot 1 of 2" in done.stderr and "Shot 2 of 2" in done.stderr
    assert read_facts(output).width == 96 and [shot.seed for shot in read_request(output).shots] == [None, 8]
    assert {path.name for path in (tmp_path / "data" / "runs").iterdir()} >= {f"{told['job_id']}-shot-{n}" for n in (1, 2)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('preset = "wan-tiny"', "story.toml has no shots and must have [[shots]], each with a prompt; add at least one"),
        ('preset = "wan-tiny"\nshots = []', "story.toml has no shots"),
        ('preset = "wan-tiny"\ncolour = 1\n[[shots]]\nprompt = "x"', "story.toml has 'colour' and may have preset, shots,"),
        ('preset = "wan-tiny"\n[[shots]]\nprompt = " "', "shot 1 has an empty prompt"),
        ('preset = "wan-tiny"\n[[shots]]\nprompt = "x"\nframes = 16', "shot 1: num_frames=16 must be 4n+1; nearest: 13 or 17"),
        (
            'preset = "wan2.2-t2v-a14b-480p"\n[[shots]]\nprompt = "x"\n[[shots]]\nprompt = "y"',
            "shots were given, but wan2.2-t2v-a14b-480p cannot start from an image",
        ),
        (
            'preset = "wan-tiny-vace"\n[[figures]]\nname = "Anna"\n[[shots]]\nprompt = "Anna"',
            "character 'Anna' has no image and must have one; give it an image, or leave it out",
        ),
        ('preset = "wan-tiny-vace"\nfigures = "Anna"\n[[shots]]\nprompt = "x"', "figures='Anna' must be a list of characters"),
        ("[[shots", "story.toml must be TOML"),
        ('[[shots]]\nprompt = "x"', "preset=''"),
    ],
)
def test_a_file_that_cannot_be_made_is_refused_in_one_line(tmp_path, text, message):
    file = tmp_path / "story.toml"
    file.write_text(text)
    done = app("storyboard", file, "--data-dir", tmp_path / "data")
    assert (done.returncode, done.stdout) == (2, "") and message in done.stderr and done.stderr.count("\n") == 1


def test_a_shot_is_as_long_as_the_clip_that_drives_it(tmp_path):
    counting_clip(tmp_path / "dance.mp4", 40, 16, size=(96, 96))
    rows = '[[shots]]\ndrive = "dance.mp4"\n[[shots]]\ndrive = "dance.mp4"\nframes = 9\ncut = true'
    (tmp_path / "story.toml").write_text(f'preset = "wan-tiny-animate"\nimage = "figure.png"\n{rows}')
    made = request_from_arguments(parse(["storyboard", str(tmp_path / "story.toml"), "--output", "a.mp4"]))
    assert made.shot_drives == (str(tmp_path / "dance.mp4"),) and made.image == str(tmp_path / "figure.png")
    assert [shot.num_frames for shot in made.shots] == [40, 9]


def test_a_file_that_is_not_there_and_half_an_option_are_refused(tmp_path):
    missing = app("storyboard", tmp_path / "none.toml")
    assert missing.returncode == 2 and "'none.toml' must be a readable file" in missing.stderr
    file = tmp_path / "story.toml"
    file.write_text(FILE)
    half = app("storyboard", file, "--from-shot", 2, "--data-dir", tmp_path / "data")
    assert half.returncode == 2 and "--from-shot was given without --again" in half.stderr


def test_figures_are_given_in_the_file_and_on_the_command_line(tmp_path):
    file = tmp_path / "story.toml"
    file.write_text('preset = "wan-tiny-vace"\n[[figures]]\nname = "Anna"\nimage = "anna.png"\n[[figures]]\nname = "it"\n'
                    'image = "it.png"\n[[shots]]\nprompt = "Anna walks"\n')  # fmt: skip
    arguments = parse(["storyboard", str(file), "--figure", "anna:other.png", "--figure", "the dog:/dog.png"])
    request = request_from_arguments(arguments)
    assert [figure.name for figure in request.figures] == ["it", "anna", "the dog"]
    assert request.figure_images == (str(tmp_path / "it.png"), os.path.abspath("other.png"), "/dog.png")
    for wrong in ("Anna", ":a.png", "Anna:", " :a.png"):
        with pytest.raises(SystemExit):
            parse(["storyboard", str(file), "--figure", wrong])

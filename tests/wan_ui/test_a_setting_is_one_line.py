"""Tests that one line in the table of settings and one in each language add a setting; in a real Chromium.

A copy of the project with these three lines accepts the setting on the command line, from programs and in the form. It writes the
setting into the mp4 file and reads it again.
"""

import json
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from backend.cli.command_line import parse
from backend.engine.keys import Keys
from backend.errors import RequestError
from backend.media.mp4 import read_comment
from backend.settings import PROJECT_FOLDER
from tests.many_devices import without_quick
from tests.wan_ui.conftest import _serving, _studio
from tests.wan_ui.form.test_four_steps_in_browser import kept_settings, put
from tests.wan_ui.form.test_load_settings_in_browser import drop
from tests.wan_ui.routes.test_api import wanted
from tests.wan_ui.steps import made, rest, wait_until

pytestmark = pytest.mark.browser

LINES = {  # by file: the new line, and the start of the line that it precedes
    "backend/schemas/settings.py": (
        '    grain: float = _setting(0.0, limits=(0, 1), label="grain", description="How much film grain is added. It takes no time.")',
        "    action: str | None = _setting",
    ),
    "wan_ui/i18n/english.py": ('    grain: str = "Film grain"', "    storyboard: str"),
    "wan_ui/i18n/zh.toml": ('grain = "胶片颗粒"', "storyboard ="),
}
MAKE = (
    "import sys; from functools import partial; from backend.cli.command_line import parse; "
    "from backend.cli.generate import generate; from backend.engine.engine import Engine; "
    "raise SystemExit(generate(parse(sys.argv[1:]), partial(Engine, pipeline='tests.fake_pipeline')))"
)
SHOWN = "document.querySelector('#grain input[type=number]')?.value === '{}'"


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    """Return a copy of the project with one more setting."""
    folder = tmp_path_factory.mktemp("project")
    for name in ("backend", "kernels", "presets", "wan_ui"):
        shutil.copytree(PROJECT_FOLDER / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("models", "tests"):
        (folder / name).symlink_to(PROJECT_FOLDER / name)
    for name in ("app.py", "pyproject.toml"):
        shutil.copy(PROJECT_FOLDER / name, folder)
    for name, (line, before) in LINES.items():
        lines = (folder / name).read_text("utf-8").split("\n")
        place = next(number for number, text in enumerate(lines) if text.startswith(before))
        (folder / name).write_text("\n".join([*lines[:place], line, *lines[place:]]), "utf-8")
    return folder


@pytest.fixture(scope="module")
def studio(project, data_dir) -> Iterator:
    with _serving("fake", data_dir, folder=project) as server:
        yield _studio("fake", server)


def written(video: Path) -> dict:
    """Return the settings in an mp4 file, unchecked."""
    return json.loads(read_comment(video))["request"]


@pytest.fixture
def command(project, tmp_path):
    """Return a function that runs `generate` with the given arguments in the copy."""
    usual = ["generate", "--preset", "wan-tiny", "--prompt", "x", "--steps", "1", "--data-dir", str(tmp_path / "data")]
    run = partial(subprocess.run, cwd=project, env=without_quick(), capture_output=True, text=True, timeout=120)
    return lambda *words, program=("-c", MAKE): run([sys.executable, *program, *usual, *words])


def test_without_its_lines_nothing_takes_it():
    with pytest.raises(SystemExit):
        parse(["generate", "--preset", "wan-tiny", "--prompt", "x", "--grain", "0.25"])
    with pytest.raises(RequestError, match="settings has 'grain'"):
        wanted(settings={"grain": 0.25}).to_request()


def test_the_command_line_takes_it_checks_it_and_writes_it(command, tmp_path):
    done = command("--grain", "0.25", "--output", str(tmp_path / "a.mp4"))
    assert done.returncode == 0 and written(tmp_path / "a.mp4")["grain"] == 0.25, done.stderr
    assert command("--output", str(tmp_path / "b.mp4")).returncode == 0
    assert "grain" not in written(tmp_path / "b.mp4")  # a setting that is not set is not stored
    for text, said in (("2", "grain=2 must be between 0 and 1; 0 is usual"), ("nan", "grain=nan must"), ("x", "invalid float")):
        refused = command("--grain", text, program=["app.py"])
        assert refused.returncode == 2 and said in refused.stderr
    assert "how much film grain is added" in command("--help", program=["app.py"]).stdout


def test_programs_may_set_it(studio, data_dir, tmp_path):
    import gradio_client

    client = gradio_client.Client(studio.url, verbose=False, download_files=str(tmp_path))
    video, _ = client.predict("a red circle", "", None, {"steps": 1, "grain": 0.75}, api_name="/generate")
    assert written(Path(video))["grain"] == 0.75
    with pytest.raises(Exception, match="grain=-1 must be between 0 and 1"):
        client.predict("a red circle", "", None, {"grain": -1}, api_name="/generate")
    body = json.dumps({"model": "wan-tiny", "prompt": "a red circle", "steps": 1, "grain": 0.25}).encode()
    headers = {"authorization": f"Bearer {Keys(data_dir).create('tests', 20)[1]}", "content-type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(f"{studio.url}v1/videos", body, headers), timeout=30) as answer:
        job = json.load(answer)["id"]
    assert json.loads((data_dir / "runs" / job / "request.json").read_text("utf-8"))["grain"] == 0.25


def test_the_form_shows_it_sends_it_and_reads_it_from_a_video_a_link_and_a_preset(visit, tmp_path):
    page, other = visit(), visit()
    page.locator("#more > button").click()
    assert page.locator("#grain").inner_text().startswith("Film grain")
    wait_until(page, SHOWN.format("0"))
    put(page, "grain", "0.5")
    made(page, "a striped zebra")
    with page.expect_download() as download:
        page.locator("#download").click()
    shutil.copy(download.value.path(), tmp_path / "mine.mp4")
    assert written(tmp_path / "mine.mp4")["grain"] == 0.5
    other.locator("#more > button").click()
    drop(other, tmp_path / "mine.mp4")
    wait_until(other, SHOWN.format("0.5"))
    settings = kept_settings(page, "grainy")
    assert settings["grain"] == 0.5 and "prompt" not in settings
    put(page, "grain", "0")
    page.locator('[data-act="own:load"]', has_text="grainy").click()
    wait_until(page, SHOWN.format("0.5"))
    page.locator("#own-menu summary").click()
    page.locator('[data-act="own:link"]').click()
    wait_until(page, "document.querySelector('#message input')?.value.includes('?settings=')")
    rest(other)
    other.goto(page.locator("#message input").input_value())
    other.locator("#more > button").click()
    wait_until(other, SHOWN.format("0.5"))
    other.locator('#views [data-view="edit"]').click()
    other.locator(".edit .more > summary").click()
    assert other.locator('label[for="edit-grain"]').inner_text() == "Film grain"
    assert other.locator("#edit-grain").input_value() == "0.5", "Edit shows the settings of the link too"


def test_a_chinese_page_has_its_word(chromium, studio):
    context = chromium.new_context(locale="zh-CN")
    page = context.new_page()
    page.goto(studio.url)
    wait_until(page, "window.studio?.isOpen && document.querySelector('.status')?.dataset.state === 'ready'")
    page.locator("#more > button").click()
    page.locator("#grain", has_text="胶片颗粒").wait_for()
    context.close()

"""Tests of the page's JavaScript: how its modules are bundled, and from where the page loads them."""

import re
from pathlib import Path

import httpx
import pytest

import wan_ui
from wan_ui.scripts import ENTRY, FIRST, Scripts, join_modules


def test_each_module_runs_once_after_those_that_it_imports():
    modules = {
        "assets/studio.js": "import { double, half as part } from '../edit/math.js';\nimport { one } from './one.js';\nshow(double(part));\n",
        "assets/one.js": "/** @typedef {import('./types.js').One} One */\nexport const one = 1;\n",
        "edit/math.js": "import { one } from '../assets/one.js';\nexport async function double(x) {}\nexport class half {}\nlet one2 = one;\n",
        "edit/unused.js": "fail();\n",
    }
    assert join_modules(modules, "assets/studio.js") == (
        "const module0 = (() => { // assets/one.js\n/** @typedef {import('./types.js').One} One */\nconst one = 1;\nreturn { one };\n})();\n"
        "const module1 = (() => { // edit/math.js\nconst { one } = module0;\nasync function double(x) {}\nclass half {}\nlet one2 = one;\n"
        "return { double, half };\n})();\n"
        "const module2 = (() => { // assets/studio.js\nconst { double, half: part } = module1;\nconst { one } = module0;\n"
        "show(double(part));\nreturn {  };\n})();\n"
    )


@pytest.mark.parametrize(
    "text",
    [
        "export let count = 0;\n",
        "export default 1;\n",
        "import './b.js';\n",
        "import * as b from './b.js';\n",
        "export { b } from './b.js';\n",
    ],
)
def test_a_form_that_cannot_be_joined_is_refused(text):
    with pytest.raises(ValueError, match=r"a\.js: cannot join"):
        join_modules({"a.js": text, "b.js": ""}, "a.js")


def test_modules_that_import_each_other_are_refused():
    modules = {"a.js": "import { b } from './b.js';\n", "b.js": "import { a } from './a.js';\n"}
    with pytest.raises(ValueError, match=r"a\.js imports itself through b\.js"):
        join_modules(modules, "a.js")


def test_each_module_is_reached_from_the_entry():
    folder = Path(wan_ui.__file__).parent
    found = set(re.findall(r"^const module\d+ = \(\(\) => \{ // (\S+)$", Scripts.read().joined, re.MULTILINE))
    assert found == {path.relative_to(folder).as_posix() for path in folder.rglob("*.js")} - {FIRST}


def test_a_browser_caches_the_script_and_other_versions_are_not_served(studio):
    scripts = Scripts.read()
    answer = httpx.get(f"{studio.url}studio/scripts/{scripts.version}.js")
    assert answer.status_code == 200 and answer.text == scripts.joined
    assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert answer.headers["content-type"].startswith("text/javascript")
    for name in ("0123456789abcdef.js", ENTRY, "../scripts.py"):
        assert httpx.get(f"{studio.url}studio/scripts/{name}").status_code == 404, name


def test_the_version_follows_the_text(tmp_path):
    for name, text in (
        (FIRST, "1"),
        (ENTRY, "import { a } from '../edit/edit.js';\n"),
        ("edit/edit.js", "export const a = 3;\n"),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    before = Scripts.read(tmp_path)
    assert before.first == "1"
    (tmp_path / "edit/edit.js").write_text("export const a = 4;\n")
    assert Scripts.read(tmp_path).version != before.version


def test_the_script_comes_before_gradios(studio):
    page, version = httpx.get(studio.url).text, Scripts.read().version
    assert page.count(f'<script type="module" src="studio/scripts/{version}.js"></script>') == 1
    assert page.index(version) < page.index("assets/index-")  # Gradio's entry draws the components, and must run later


@pytest.mark.browser
def test_the_page_has_one_name_of_ours(page):
    names = page.evaluate("Object.keys(window).filter(name => /studio/i.test(name))")
    assert names == ["studio"]

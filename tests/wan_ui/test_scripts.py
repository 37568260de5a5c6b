"""The page's JavaScript: where it is served, and how its modules depend on each other."""

import re

import httpx
import pytest

from wan_ui.scripts import ENTRY, Scripts

IMPORTED = re.compile(r"(?:from|import) '(\.[^']+)'")


def address(url: str, scripts: Scripts, name: str) -> str:
    return f"{url}studio/scripts/{scripts.version}/{name}"


def test_a_browser_keeps_each_module_and_fetches_a_changed_one(studio):
    scripts = Scripts.read()
    for name, module in scripts.modules.items():
        answer = httpx.get(address(studio.url, scripts, name))
        assert answer.status_code == 200 and answer.content == module, name
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert answer.headers["content-type"].startswith("text/javascript")


def test_other_versions_and_other_files_are_not_served(studio):
    scripts = Scripts.read()
    for name in ("../serve.py", "serve.py", "assets/types.d.ts", "assets/before_gradio.js", ""):
        assert httpx.get(address(studio.url, scripts, name)).status_code == 404, name
    assert httpx.get(f"{studio.url}studio/scripts/0123456789abcdef/{ENTRY}").status_code == 404


def test_the_version_follows_the_text(tmp_path):
    for name, text in (("assets/before_gradio.js", "1"), (ENTRY, "2"), ("edit/edit.js", "3")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    before = Scripts.read(tmp_path)
    assert before.modules.keys() == {ENTRY, "edit/edit.js"} and before.first == "1"
    (tmp_path / "edit/edit.js").write_text("4")
    assert Scripts.read(tmp_path).version != before.version


def test_the_page_asks_for_all_modules_at_once(studio):
    page, scripts = httpx.get(studio.url).text, Scripts.read()
    listed = re.findall(r'<link rel="modulepreload" href="studio/scripts/(\w+)/([^"]+)">', page)
    assert sorted(listed) == sorted((scripts.version, name) for name in scripts.modules)
    assert page.index(ENTRY) < page.index("assets/index-")  # Gradio's entry, which draws the components, runs after ours


def test_each_module_is_reached_from_the_entry():
    modules, found, left = Scripts.read().modules, set(), [ENTRY]
    while left:
        name = left.pop()
        if name in found:
            continue
        found.add(name)
        folder = name.split("/")[:-1]
        for path in IMPORTED.findall(modules[name].decode()):
            parts = list(folder)
            for part in path.split("/"):
                parts = {"..": parts[:-1], ".": parts}.get(part, [*parts, part])
            left.append("/".join(parts))
    assert found == modules.keys()


@pytest.mark.browser
def test_the_page_has_one_name_of_ours(page):
    names = page.evaluate("Object.keys(window).filter(name => /studio/i.test(name))")
    assert names == ["studio"]

import re
from dataclasses import fields
from pathlib import Path
from typing import get_args

import backend
import wan_ui
from backend.engine.job import JobState
from backend.schemas.settings import FIELDS, Extend
from backend.schemas.worker import WorkerState
from presets import list_presets
from tests.wan_ui.builders import CHINESE
from wan_ui.edit.modes import MODES
from wan_ui.form.settings import control_updates
from wan_ui.i18n.english import ENGLISH, Texts
from wan_ui.i18n.languages import LANGUAGES, texts_for
from wan_ui.views import VIEWS

SAID = re.compile(r"words\(\)\.(\w+)")
SPELLED_AS_IN_ENGLISH: dict[str, set[str]] = {}
"""Names of texts that a language spells as English does, by the language's code."""


def test_every_text_is_used():
    code = "".join(path.read_text() for path in Path(wan_ui.__file__).parent.rglob("*.py") if path.name != "english.py")
    states = {f"worker_{state}" for state in get_args(WorkerState)} | {f"job_{state}" for state in get_args(JobState)}
    unused = [field.name for field in fields(Texts) if not re.search(rf"(texts|labels|ENGLISH|Texts\(\))\.{field.name}\b", code)]
    controls = control_updates(list_presets()[0], ENGLISH).keys()  # the label of a setting has the name of the setting
    hints = {f"{name}_info" for name in controls}
    ways = {f"edit_{kind}_{way}" for kind in ("way", "hint") for way in MODES}
    ends = {f"edit_goes_{end}" for end in get_args(Extend)}
    engine = "".join(path.read_text() for path in (Path(backend.__file__).parent / "engine").glob("*.py"))
    tasks = {f"task_{kind}" for kind in re.findall(r'task="(\w+)"', code + engine)}
    settings = {f"setting_{one.name}" for one in FIELDS}
    assert (
        set(unused) - controls - hints - settings - tasks - {view.title for view in VIEWS} - _used_by_scripts()
        == states | ways | ends
    )


def _used_by_scripts() -> set[str]:
    """Return the names of the texts that the views' scripts use."""
    scripts = {view: (Path(wan_ui.__file__).parent / view).glob("*.js") for view in ("edit", "live")}
    said = {(view, name) for view, paths in scripts.items() for path in paths for name in SAID.findall(path.read_text())}
    assert {f"{view}_{name}" for view, name in said} <= {field.name for field in fields(Texts)} | {
        "edit_bytes",
        "edit_unreachable",
    }
    return {f"{view}_{name}" for view, name in said}


def test_every_language_says_everything_with_the_same_places_to_fill():
    only_english = {"serving", "password_made", "operator_link"}  # the terminal shows these texts
    for texts in LANGUAGES.values():
        for field in fields(Texts):
            said, english = getattr(texts, field.name), getattr(ENGLISH, field.name)
            same = only_english | SPELLED_AS_IN_ENGLISH.get(texts.language, set())
            assert texts is ENGLISH or (said == english) is (field.name in same), field.name
            if isinstance(english, str):
                assert sorted(re.findall(r"\{(\w+)", said)) == sorted(re.findall(r"\{(\w+)", english)), field.name
            else:
                assert [key for key, _ in said] == [key for key, _ in english]


def test_the_language_is_the_first_that_the_browser_names_and_we_have():
    for header, texts in (
        ("zh-CN,zh;q=0.9,en;q=0.8", CHINESE),
        ("eo,eo;q=0.9,zh-TW;q=0.5", CHINESE),
        ("eo", ENGLISH),
        ("en-GB,zh;q=0.5", ENGLISH),
        ("", ENGLISH),
    ):
        assert texts_for({"accept-language": header}) is texts


def test_the_language_that_the_visitor_chose_comes_first():
    for cookie, texts in (
        ("studio_language=zh", CHINESE),
        ("studio_visitor=x; studio_language=zh; other=1", CHINESE),
        ("other_studio_language=zh", ENGLISH),
        ("studio_language=tlh", ENGLISH),
    ):
        assert texts_for({"accept-language": "en", "cookie": cookie}) is texts, cookie
    assert texts_for({"accept-language": "zh", "cookie": "studio_language=en"}) is ENGLISH

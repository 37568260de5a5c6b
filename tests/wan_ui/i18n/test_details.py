"""Tests that all languages have every text that workers report. The tests read these texts from the code."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import backend
from backend.schemas.events import DOWNLOAD
from presets import list_presets
from tests.wan_ui.builders import CHINESE, a_job
from wan_ui.components.progress import StageView, progress_texts
from wan_ui.i18n.details import translate_detail
from wan_ui.i18n.english import DETAILS, ENGLISH
from wan_ui.i18n.languages import LANGUAGES
from wan_ui.stage.html import stage_html

CALLED = {"send_status": 1, "WorkerStatus": "detail", "Loading": 2, "Compiling": 0}
"""Which argument of these calls is such a text."""
ELSEWHERE = {
    ("model.py", "detail"),  # `Compiling` and `Loaded` of `warm_up`, below, and an argument that `send_status` forwards
    ("loop.py", "self._last_error"),  # an error, which says what to do in English everywhere
    ("supervisor.py", "detail"),
    ("transport.py", "detail"),  # `MultihostTransport._open`, below
    ("read.py", "what.replace('_', ' ')"),  # parts of checkpoints, below
    ("warm_up.py", "name"),  # programs, below
    ("memory_suggestions.py", "what"),
    ("model_files.py", "DOWNLOAD"),
}
FILLED = (
    "Compiling the denoising step",
    "Loaded the decoder precompiled",
    "Loading transformer 2 (12 of 3000 MB, 250.0 MB/s, 12 s left)",
    "Waiting for the other hosts: number 1, 2 of 3 (`app.py member` there; this one is 0)",
    "settings that fit: 832x480, 81 frames",
)


def calls() -> Iterator[tuple[str, ast.Call]]:
    for path in sorted(Path(backend.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call):
                yield path.name, node


def text_of(node: ast.expr) -> str | None:
    """Return the text of a constant, or of an f-string with its values in braces. None for other expressions."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "{what}" for part in node.values)
    return None


def reported() -> tuple[set[str], set[tuple[str, str]]]:
    """Return the texts of all calls that report a text, and the arguments that are not plain text."""
    texts, others = set(), set()
    for file, call in calls():
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        place = CALLED.get(name)
        is_report = name != "send_status" or ast.unparse(call.func).endswith("_reports.send_status")
        if place is None or not is_report:
            continue
        named = {keyword.arg: keyword.value for keyword in call.keywords}
        given = named.get("detail") if place == "detail" else dict(enumerate(call.args)).get(place)
        if given is not None:
            text = text_of(given)
            texts.add(text) if text is not None else others.add((file, ast.unparse(given)))
    return texts, others


def program_names() -> set[str]:
    """The names of compiled programs: what is called with a name and a `key`; and the two that one step has."""
    keyed = [
        text_of(call.args[0])
        for _, call in calls()
        if call.args and any(one.arg == "key" and isinstance(one.value, ast.Constant) for one in call.keywords)
    ]
    return {name for name in keyed if name and re.fullmatch(r"(the|a) .*", name)} | {"the refining step", "the denoising step"}


def parts() -> set[str]:
    """Return the names of checkpoint parts that progress reports contain."""
    return {part.replace("_", " ") for preset in list_presets() for part in preset.network_configs()}


def is_known(text: str) -> bool:
    return text in DETAILS or re.sub(r"\{what\}.*", "{what}", text) in DETAILS


def test_every_reported_text_is_listed():
    texts, others = reported()
    assert len(texts) >= 12 and len(program_names()) >= 30
    unknown = sorted(text for text in texts | program_names() | parts() | {DOWNLOAD} if not is_known(text))
    assert not unknown, f"add these to DETAILS in wan_ui/i18n/english.py, and to the other languages: {unknown}"
    assert others == ELSEWHERE, f"say which texts these are: {others ^ ELSEWHERE}"


def test_nothing_is_listed_that_nobody_reports():
    said = reported()[0] | program_names() | parts() | {DOWNLOAD}
    assert {text for text in DETAILS if "{" not in text} <= said | {"Starting the worker", "The worker has not been started"}


@pytest.mark.parametrize("text", [*(text for text in DETAILS if "{" not in text), *FILLED])
def test_each_is_said_in_every_language(text):
    assert translate_detail(text, ENGLISH) == text
    for texts in LANGUAGES.values():
        said = translate_detail(text, texts)
        assert texts is ENGLISH or (said != text and "{" not in said), text
    chinese = re.sub(r"`app\.py member`|CFG-Zero\*|LoRA|\d+x\d+|MB(/s)?|transformer", "", translate_detail(text, CHINESE))
    assert not re.search("[A-Za-z]", chinese), chinese


def test_an_unknown_text_stays_english_and_a_model_has_its_own_title():
    assert translate_detail("Polishing the lens", CHINESE) == "Polishing the lens"
    assert translate_detail("Compiling the lens", CHINESE) == "正在编译the lens"
    titled = next(preset for preset in list_presets() if "zh" in preset.translations)
    assert translate_detail(f"Loading {titled.title}", CHINESE) == f"正在载入{titled.words('zh').title}"


def test_the_page_says_it_in_its_language():
    view = StageView(phase="compiling", what="the prompt's keys")
    assert progress_texts(view, CHINESE)[0] == "正在编译提示词的键"
    assert progress_texts(StageView(phase="loading", what="text encoder"), CHINESE)[1] == "文本编码器"
    assert "提示词的键" in stage_html(view, a_job(), CHINESE)

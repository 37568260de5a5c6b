"""Tests that the page names presets, and captions their examples, in the browser's preferred language."""

import json
import re
import secrets
import urllib.request
from typing import Any

from presets import load_preset
from tests.wan_ui.builders import CHINESE
from wan_ui.i18n.english import ENGLISH

DEMO = load_preset("wan-tiny")
HERE = [
    [load_preset(name).words("zh").title, name] for name in ("wan-tiny", "wan-tiny-turbo", "wan-tiny-vace", "wan-live-tiny")
]  # embedded in the project


def answers(url: str, language: str, handler: str, query: str = "", **given: Any) -> dict[str, Any]:
    """Call a handler of the page as a new visitor with a browser in this language. Return its outputs by element id.

    `given` has values by element id. Other inputs have the values of the built page.
    """
    config = json.loads(ask(f"{url}config", language))
    props = {component["id"]: component["props"] for component in config["components"]}
    called = next(found for found in config["dependencies"] if found["api_name"] == handler)
    values = [given.get(props[each].get("elem_id"), props[each].get("value")) for each in called["inputs"]]
    body = {"data": values, "fn_index": called["id"], "session_hash": secrets.token_hex(6)}
    answer = json.loads(ask(f"{url}gradio_api/run/predict{query}", language, json.dumps(body).encode()))
    return dict(zip([props[output].get("elem_id") for output in called["outputs"]], answer["data"], strict=True))


def ask(address: str, language: str, body: bytes | None = None) -> bytes:
    request = urllib.request.Request(address, body, {"accept-language": language, "content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.read()


def test_a_chinese_page_names_the_presets_in_chinese(url):
    page, zh = answers(url, "zh-CN,zh;q=0.9,en;q=0.8", "open"), DEMO.words("zh")
    assert page["preset"]["choices"] == HERE and page["preset"]["value"] == "wan-tiny"
    assert page["compare-presets"]["choices"] == page["preset"]["choices"]
    assert page["library-preset"]["choices"][:2] == [["全部模型", ""], [zh.title, "wan-tiny"]]
    other = load_preset("wan2.2-t2v-a14b-480p")
    assert other.words("zh").description in page["preset-note"] and other.description not in page["preset-note"]


def test_a_chinese_page_has_chinese_forms(url):
    page = answers(url, "zh", "open")
    assert CHINESE.storyboard in page["shots-editor"] and ENGLISH.storyboard not in page["shots-editor"]
    assert CHINESE.batch_file in page["batch-plan"] and ENGLISH.batch_file not in page["batch-plan"]
    assert CHINESE.live_image_choose in page["live"] and ENGLISH.live_image_choose not in page["live"]


def test_a_chinese_page_captions_examples_whose_prompts_stay_english(url):
    page, zh = answers(url, "zh-TW", "open"), DEMO.words("zh")
    assert page["examples"]["sample_labels"] == list(zh.examples)
    assert page["examples"]["samples"] == [[prompt] for prompt in DEMO.examples]
    assert all(caption in page["image-examples"] for caption in zh.image_examples)


def test_somebody_elses_comparison_opens_in_the_visitors_language(url):
    started = answers(url, "en", "start", prompt="a red circle", steps=2)
    shown = re.search(r'data-comparison="([^"]+)"', started["compare"])[1]
    page = answers(url, "zh", "open", query=f"?compare={shown}")
    assert ["步数", "steps"] in page["compare-what"]["choices"] and page["compare-what"]["value"] == "seed"
    assert page["compare-presets"]["choices"] == HERE


def test_an_english_page_stays_as_it_was_built(url):
    page = answers(url, "en-GB,zh;q=0.5", "open")
    for name in ("preset", "preset-note", "examples", "image-examples", "compare-presets", "library-preset"):
        assert set(page[name]) <= {"__type__", "props"}, name  # an update with nothing in it

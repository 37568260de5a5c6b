"""Tests of the cards of models: their texts in each state, and their buttons for visitors and the operator."""

import dataclasses

import pytest

from backend.catalog.catalog import Entry
from backend.catalog.compatibility import judge_compatibility
from backend.catalog.downloads import Download
from backend.catalog.models import ModelRow
from presets import list_presets
from tests.wan_ui.builders import CHINESE
from wan_ui.i18n.english import ENGLISH
from wan_ui.models.html import models_html, short_name
from wan_ui.services.caller import Caller

BIG = "Wan-AI/Wan2.1-T2V-14B-Diffusers"
LORA = "lightx2v/Wan2.1-Distill-Loras:wan2.1_t2v_14b_lora_rank64_lightx2v_4step.safetensors"


def caller(is_operator: bool = True, texts=ENGLISH) -> Caller:
    return Caller(owner="me", scope=None, is_operator=is_operator, texts=texts, queue_limits=None)


def row(num_bytes=None, begun=0, total=0, download=None, source=BIG) -> ModelRow:
    users = tuple(preset for preset in list_presets() if source in (preset.model, *(lora.source for lora in preset.loras)))
    kind = "lora" if ":" in source and not source.startswith("embedded") else "model"
    return ModelRow(
        entry=Entry(kind=kind, source=source, presets=users, num_bytes=num_bytes, begun_bytes=begun),
        download=download,
        total_bytes=total,
        weight_bytes=40_000_000_000 if kind == "model" else 0,
        outlook=judge_compatibility(users, []) if kind == "model" else None,
    )


def buttons(html: str) -> list[str]:
    return [part.partition('"')[0] for part in html.split('data-act="model:')[1:]]


def download(phase, **values) -> Download:
    return Download(source=BIG, phase=phase, **values)


@pytest.mark.parametrize(
    ("given", "state", "offered", "said"),
    [
        (row(), "elsewhere", ["fetch"], "at least 40.0 GB"),
        (row(num_bytes=57_000_000_000), "here", ["ask"], "57.0 GB"),
        (row(begun=5_000_000_000), "paused", ["fetch", "ask"], "Paused at 5.0 GB"),
        (row(begun=5_000_000_000, total=57_000_000_000), "paused", ["fetch", "ask"], "Paused at 5.0 GB of 57.0 GB"),
        (row(download=download("waiting")), "waiting", ["pause"], "Waiting for another download"),
        (row(download=download("asking")), "asking", ["pause"], "Requesting the list of files"),
        (row(download=download("pausing")), "pausing", [], "Pausing"),
        (
            row(download=download("running", bytes_done=19_000_000_000, bytes_total=57_000_000_000, bytes_per_second=1e8)),
            "running",
            ["pause"],
            "19.0 GB of 57.0 GB · 100.0 MB/s · 6 min 20 s left",
        ),
        (
            row(begun=1, download=download("failed", cause="The disk is full", fix="free some space in /home/me/hub")),
            "failed",
            ["fetch", "pause", "ask"],
            "The disk is full; free some space in hub",
        ),
    ],
)
def test_a_card_says_its_state_and_offers_what_can_be_done(given, state, offered, said):
    html = models_html([given], caller())
    assert f'data-state="{state}"' in html and buttons(html) == offered and said in html
    assert buttons(models_html([given], caller(False))) == []


def test_a_card_says_disk_memory_slice_and_licence():
    html = models_html([row()], caller())
    assert "40.0 GB of weights, over all devices" in html
    assert "v6e:2x2 for wan2.1-t2v-14b-720p: 23.6 GiB per chip, 5.4 s per step (predicted)" in html
    assert "see its page on the Hub" in html and "devices not known yet" in html
    tencent = row(source="hunyuanvideo-community/HunyuanVideo-1.5-Diffusers-480p_i2v")
    html = models_html([tencent], caller())
    assert "does not cover the European Union" in html and "app.py check-tpu --preset hunyuanvideo-1.5-i2v-480p" in html


def test_visitors_see_only_what_is_here():
    rows = [row(num_bytes=5, source="embedded:wan-tiny"), row(), row(begun=5, source=LORA)]
    html = models_html(rows, caller(False))
    assert 'data-model="embedded:wan-tiny"' in html and BIG not in html and LORA not in html
    assert all(source in models_html(rows, caller()) for source in (BIG, LORA))


def test_a_group_counts_models_and_loras_apart():
    rows = [row(), row(source=LORA), row(source=LORA)]
    assert "Models: 1, LoRAs: 2" in models_html(rows, caller())
    assert "模型：1，LoRA：2" in models_html(rows, caller(texts=CHINESE))


def test_what_came_with_the_studio_has_no_buttons():
    assert buttons(models_html([row(num_bytes=5, source="embedded:wan-tiny")], caller())) == []


def test_the_page_looks_often_only_while_something_comes():
    assert 'data-busy="true"' in models_html([row(download=download("running"))], caller())
    assert 'data-busy="false"' in models_html([row(begun=5), row(download=download("failed"))], caller())


def test_a_name_is_without_its_owner():
    assert short_name(LORA) == "wan2.1_t2v_14b_lora_rank64_lightx2v_4step.safetensors"
    assert short_name("embedded:wan-tiny") == "wan-tiny"


def test_chinese_visitors_read_chinese():
    html = models_html([row(begun=5_000_000_000)], caller(texts=CHINESE))
    assert "已暂停，5.0 GB" in html and "继续下载" in html and "Wan 2.1 文生视频" in html


@pytest.mark.parametrize(("texts", "words"), [(ENGLISH, "best for this machine: wan2.1"), (CHINESE, "最适合本机：wan2.1")])
def test_the_recommended_preset_is_named_on_its_models_card(texts, words):
    best = dataclasses.replace(row(num_bytes=5), recommended="wan2.1-t2v-14b-720p")
    assert f">{words}-t2v-14b-720p</span>" in models_html([best], caller(texts=texts))
    assert words not in models_html([row(num_bytes=5)], caller(texts=texts))


@pytest.mark.parametrize(("texts", "words"), [(ENGLISH, "estimated from v6e:1x1"), (CHINESE, "根据 v6e:1x1 估计")])
def test_a_recommendation_from_another_chips_figures_is_an_estimate(texts, words):
    best = dataclasses.replace(row(num_bytes=5), recommended="wan2.1-t2v-14b-720p", estimated_from="v6e:1x1")
    assert words in models_html([best], caller(texts=texts))

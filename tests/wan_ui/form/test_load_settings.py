"""Tests of loaded settings: a draft at full quality, lines of LoRAs, user presets."""

from html import escape
from pathlib import Path
from unittest.mock import Mock

import pytest

from backend.errors import RequestError
from backend.schemas.prompt_cues import Cue
from backend.schemas.request import GenerationRequest
from presets import list_presets, load_preset
from tests.wan_ui.builders import a_job, a_request
from wan_ui.components.toast import Message
from wan_ui.form.controls import describe_controls, format_loras, parse_loras
from wan_ui.form.load_settings import LoadHandlers, decode_settings, encode_settings
from wan_ui.form.own_presets import check_settings, preset_settings
from wan_ui.form.settings import control_updates
from wan_ui.i18n.english import ENGLISH
from wan_ui.i18n.languages import LANGUAGES
from wan_ui.services.presets import full_preset


def test_a_draft_leads_to_its_full_preset_and_nothing_else_does():
    drafts = [preset for preset in list_presets() if preset.draft_of]
    assert drafts
    for draft in drafts:
        request = GenerationRequest.from_stored(a_request().to_json() | {"preset": draft.name})
        assert full_preset(request) == load_preset(draft.draft_of)
    assert full_preset(a_request()) is None
    assert full_preset(GenerationRequest.from_stored(a_request().to_json() | {"preset": "gone"})) is None


def test_loras_survive_as_lines():
    text = "style.safetensors = 0.8\nowner/name:file.safetensors = 1.5 high"
    assert format_loras(parse_loras(text)) == text
    assert parse_loras("style.safetensors")[0].scale == 1.0 and parse_loras(" \n") == () == parse_loras(None)


@pytest.mark.parametrize("line", ["../x.safetensors", "/etc/passwd", "a.safetensors = x", "a.safetensors = 1 both more", "a.txt"])
def test_a_line_that_cannot_be_read_is_refused(line):
    with pytest.raises(RequestError, match="loras="):
        parse_loras(line)


def test_own_presets_keep_nothing_personal():
    kept = preset_settings(a_request(prompt="a secret", seed=5))
    assert not {"prompt", "seed", "image", "last_image"} & kept.keys() and kept["steps"] == 20
    assert check_settings(kept | {"image": "/etc/passwd", "prompt": "x"}).image is None
    with pytest.raises(RequestError):
        check_settings(kept | {"steps": "many"})


def test_values_that_a_preset_does_not_offer_are_shown_all_the_same():
    preset = load_preset("wan-tiny")
    request = a_request(width=128, height=128, num_frames=21, guidance=(0.5,), flow_shift=20.0, steps=90)
    shown = control_updates(preset, ENGLISH, request)
    assert shown["resolution"]["value"] == "128x128" and ("128 × 128", "128x128") in shown["resolution"]["choices"]
    assert shown["length"]["value"] == 21 in [value for _, value in shown["length"]["choices"]]
    assert shown["guidance"]["minimum"] == 0.5 and shown["flow_shift"]["maximum"] == 20.0 and shown["steps"]["value"] == 90


def test_settings_survive_a_link_and_rubbish_does_not():
    request = a_request(prompt="圆 & <b>", steps=3)
    assert decode_settings(encode_settings(request)) == request
    for code in ("", "x", "e30", encode_settings(request)[:-9]):
        with pytest.raises(RequestError):
            decode_settings(code)


def test_the_samplers_are_the_presets_own_and_the_one_that_settings_bring():
    preset = load_preset("wan-tiny").model_copy(update={"solvers": ("unipc", "euler")})
    offered = describe_controls(preset, ENGLISH)["solver"]
    assert (offered.choices, offered.value) == ((("unipc", "unipc"), ("euler", "euler")), "unipc")
    brought = describe_controls(preset, ENGLISH, a_request(solver="euler-distilled"))["solver"]
    assert (brought.choices[2:], brought.value) == ((("euler-distilled", "euler-distilled"),), "euler-distilled")


def test_what_the_form_cannot_hold_of_a_live_video_is_said():
    def said(request: GenerationRequest) -> str:
        handlers = LoadHandlers(
            context=Mock(), form=Mock(show_settings=lambda *_: {}, show_prompt=lambda *_, **__: {}), message="message"
        )
        return handlers.show_request(request, ENGLISH, Message(text="Settings loaded."))["message"]

    request = GenerationRequest.from_preset(load_preset("wan2.1-live-1.3b-480p"), prompt="a circle")
    assert ENGLISH.loaded_cues not in said(request)
    assert escape(ENGLISH.loaded_cues) in said(request.with_changes(cues=[Cue(block=1, prompt="a square")]))


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_dropped_videos_own_sound_must_be_given_again(language):
    texts, loaded = LANGUAGES[language], []
    form = Mock(show_settings=lambda *_: {}, show_prompt=lambda *_, **__: {}, editing="editing")
    form.sound.load_audio = lambda request, path: loaded.append((request.sound_start, path)) or {}
    handlers = LoadHandlers(context=Mock(), form=form, message="message")

    def said(request: GenerationRequest) -> str:
        handlers.context.engine.jobs.list_jobs.return_value = []
        opening = handlers._load_video_file(Path("dropped.mp4"), Mock(texts=texts))
        next(opening)
        with pytest.raises(StopIteration) as done:
            opening.send(request.for_sharing())
        return done.value.value["message"]

    preset = load_preset("ltx-2.3-704p")
    silent = GenerationRequest.from_preset(preset, prompt="waves")
    assert escape(texts.loaded_own_sound) not in said(silent) and not loaded
    heard = silent.with_changes(sound="/data/song.mp3", sound_start=1.5)
    assert escape(texts.loaded_own_sound) in said(heard) and loaded == [(1.5, None)]


def test_what_would_fit_fills_the_form_and_nothing_else_does():
    loaded = []
    form = Mock(
        show_settings=lambda request, *_: loaded.append(request) or {}, show_prompt=lambda *_, **__: {}, editing="editing"
    )
    form.sound.load_audio.return_value = form.prompt.shots.load_job.return_value = {}
    handlers = LoadHandlers(context=Mock(), form=form, message="message")
    job = a_job(num_frames=33, width=128)
    said = handlers._load_proposal(job, "96x96x17", ENGLISH)
    assert (loaded[0].width, loaded[0].height, loaded[0].num_frames, loaded[0].seed) == (96, 96, 17, job.request.seed)
    assert loaded[0].prompt == job.request.prompt and escape(ENGLISH.loaded_fits) in said["message"]
    for wrong in ("", "96x96", "96x96x17x1", "1e3x96x17", "95x96x17", "96x96x18", "x" * 999):
        with pytest.raises(RequestError):
            handlers._load_proposal(job, wrong, ENGLISH)
    assert len(loaded) == 1

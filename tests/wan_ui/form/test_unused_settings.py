"""Tests that a view names the settings which it cannot show, with their values, in both languages."""

from html import escape
from pathlib import Path
from unittest.mock import Mock, patch

import pytest

from backend.errors import RequestError
from backend.schemas.prompt_cues import Cue
from backend.schemas.request import GenerationRequest
from backend.schemas.settings import FIELDS, SETTINGS, Character, Setting, Shot
from presets import LoraChoice, load_preset
from tests.wan_ui.builders import a_job, a_request
from wan_ui.compare.handlers import CompareHandlers
from wan_ui.compare.variations import SAME_FOR_MODELS
from wan_ui.components.toast import Message
from wan_ui.edit.handlers import EditHandlers, page_settings
from wan_ui.edit.modes import loaded_settings
from wan_ui.form.batch import batch_plan_html
from wan_ui.form.form import Draft
from wan_ui.form.load_settings import LoadHandlers
from wan_ui.form.own_presets import OwnPresetHandlers
from wan_ui.form.unused_settings import FILES_OF_SHOTS, changed_settings, setting_label, shown_by_form, unused_settings_text
from wan_ui.i18n.english import ENGLISH
from wan_ui.i18n.languages import LANGUAGES

FIXED = {"preset", "task", "mag_ratios", "is_open", "finished_video"}  # not chosen by the visitor, or shown in another way
OTHER = {
    "guidance": (3.0,),
    "guidance_interval": (0.0, 0.5),
    "trim": (0.5, 1.5),
    "margins": (8, 0, 8, 0),
    "perturbed_guidance": (2.0, 1.0),
    "modality_guidance": (3.0, 3.0),
    "guidance_rescale": (0.7, 0.7),
    "image_focus": (0.2, 0.8),
    "loras": (LoraChoice(source="style.safetensors", scale=0.8),),
    "cues": (Cue(block=1, prompt="a square"),),
    "shots": (Shot(prompt="a"), Shot(prompt="b")),
    "figures": (Character(name="Mia"),),
    "keyframe_at": (3,),
    "solver": "euler",
    "strength": 0.35,
}


def changed(setting: Setting) -> GenerationRequest:
    """Return a stored request with another value of this setting."""
    values, old = a_request().model_dump(), setting.value_in(a_request())
    other = OTHER.get(setting.name)
    if other is None and setting.media:
        other = ("/data/a.png",) if setting.is_list else "/data/a.png"
    elif other is None and setting.choices:
        other = next(choice for choice in setting.choices if choice != old)
    elif other is None:
        number = old if isinstance(old, float | int) else 0
        other = {bool: not old, int: number + 4, float: number + 0.25, str: "animevideov3"}[setting.type]
    return GenerationRequest.from_stored(values | {setting.name: other})


def load_handlers(found: list | None = None) -> LoadHandlers:
    form = Mock(show_settings=lambda *_: {}, show_prompt=lambda *_, **__: {}, editing="editing")
    form.sound.load_audio.return_value = form.prompt.shots.load_job.return_value = {}
    handlers = LoadHandlers(context=Mock(), form=form, message="message")
    handlers.context.engine.jobs.list_jobs.return_value = found or []
    return handlers


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("setting", [one for one in FIELDS if one.name not in FIXED], ids=lambda one: one.name)
def test_every_setting_is_shown_kept_or_named(setting, language):
    request, texts = changed(setting), LANGUAGES[language]
    label = setting_label(setting.name, texts)
    assert setting.name in {one.name for one in changed_settings(request)}
    for taken in (shown_by_form(request), loaded_settings(request), SAME_FOR_MODELS):
        assert setting.name in taken or label in unused_settings_text(request, taken, texts)
    assert label in unused_settings_text(request, (), texts), "with nothing shown, all of it is named"
    of_control = getattr(texts, SETTINGS[setting.name].label, "")
    own = getattr(texts, f"setting_{setting.name}", None), of_control[:1].lower() + of_control[1:]
    assert label in own, "a label is a text of the language"


def test_values_are_written_as_people_write_them():
    values = {"solver": "euler", "flow_shift": 5.0, "loras": OTHER["loras"], "cfg_zero": True, "upscale": 2}
    request = GenerationRequest.from_stored(a_request(flow_shift=3.5).model_dump() | values)
    said = unused_settings_text(request, {"prompt", "seed"}, ENGLISH)
    assert said == "Not used here: flow shift 5, sampler euler, LoRA style.safetensors × 0.8, CFG-Zero* on, upscaling factor 2."
    assert unused_settings_text(a_request(), {"prompt", "seed"}, ENGLISH) == ""


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_preview_of_a_batch_names_what_each_row_changes(language):
    texts, base = LANGUAGES[language], a_request()
    html = batch_plan_html([a_request(prompt="b", flow_shift=5.5, cfg_zero=True)], [None], base, texts)
    changed = f"{setting_label('flow_shift', texts)} 5.5{texts.list_separator}{texts.setting_cfg_zero} {texts.setting_on}"
    assert f"<td>b</td><td>{escape(changed)}</td>" in html


@pytest.mark.parametrize("language", LANGUAGES)
def test_create_names_what_it_cannot_show(language):
    texts, request = LANGUAGES[language], changed(next(one for one in FIELDS if one.name == "perturbed_guidance"))
    said = load_handlers().show_request(request, texts, Message(text="loaded"))["message"]
    assert escape(f"loaded {unused_settings_text(request, shown_by_form(request), texts)}") in said
    assert f"{texts.setting_perturbed_guidance} 2{texts.list_separator}1" in said


def test_a_dropped_storyboard_names_the_files_that_it_does_not_hold():
    shots = {"shots": (Shot(prompt="a", image=0),), "shot_images": ("/data/hat.png",), "track": "/data/song.mp3"}
    request = GenerationRequest.from_stored(a_request().model_dump() | shots)
    opening = load_handlers()._load_video_file(Path("dropped.mp4"), Mock(texts=ENGLISH))
    next(opening)
    with pytest.raises(StopIteration) as done:
        opening.send(request.for_sharing())
    assert escape("Not used here: images of shots hat.png, soundtrack song.mp3.") in done.value.value["message"]
    assert {"shot_images", "track"} <= FILES_OF_SHOTS


def test_a_next_video_of_another_model_names_the_settings_that_stay_behind():
    handlers, job = load_handlers(), a_job(solver="euler", negative_prompt="text", num_frames=17)
    handlers.context.can_run = lambda preset: preset.name == "wan2.2-i2v-a14b-480p"
    going = handlers._continue_video(job, Mock(texts=ENGLISH))
    Path(next(going).arguments[-1]).write_bytes(b"a frame")
    with pytest.raises(StopIteration) as done:
        going.send(None)
    said = done.value.value["message"]
    assert escape(ENGLISH.loaded_continue) in said and "sampler euler" in said and "negative prompt text" in said


def test_the_full_preset_of_a_draft_names_the_settings_that_stay_behind():
    draft = load_preset("wan2.1-t2v-1.3b-480p-draft")
    request = GenerationRequest.from_preset(draft, prompt="a red circle", seed=7, negative_prompt="text")
    handlers = load_handlers()
    handlers.form.image.by_setting = {}
    handlers.form.sound.load_audio.return_value = {}
    said = handlers._load_full_quality(Mock(request=request), ENGLISH)["message"]
    assert "Not used here: negative prompt text." in said


@pytest.mark.parametrize("what", ["use", "full", "continue"])
def test_edit_names_what_it_cannot_load(what, monkeypatch):
    changes = {"video": "/data/a.mp4", "strength": 0.5, "fps": 8, "solver": "euler", "image_crf": 33}
    preset = load_preset("wan2.1-t2v-1.3b-480p-draft" if what == "full" else "wan2.1-t2v-1.3b-480p")
    request = GenerationRequest.from_stored(GenerationRequest.from_preset(preset, prompt="a").model_dump() | changes)
    handlers = EditHandlers(context=Mock(), panel="panel", stage=Mock(), message="message")
    handlers.context.identify_caller.return_value, handlers.context.find_job.return_value = (
        Mock(texts=ENGLISH),
        Mock(request=request),
    )

    def filled(*_):
        return page_settings(request)
        yield

    for name, stub in {"_load_settings": filled, "_load_as_clip": filled, "_choose_preset": Mock(), "_render": Mock()}.items():
        monkeypatch.setattr(EditHandlers, name, stub)
    with pytest.raises(StopIteration) as done:
        next(EditHandlers.act.__wrapped__(handlers, {}, Mock(), Mock(_data={"what": what, "job": "job-1"})))
    said = done.value.value["message"]
    assert "Not used here: " in said and "compression of the first frame, CRF 33." in said
    assert ("frames per second 8, sampler euler" in said) is (what == "full"), "the other model has its own values"


def test_a_comparison_of_models_names_the_settings_that_each_model_has_itself():
    handlers = CompareHandlers(context=Mock(), form=Mock(), panel=Mock(), message="message")
    handlers.form.read.return_value.to_request.return_value = a_request(solver="euler")
    handlers.context.identify_caller.return_value = Mock(texts=ENGLISH)
    handlers.context.submit_all_steps.return_value = iter(())
    with (
        patch.object(CompareHandlers, "_requested_videos", return_value=([], [])),
        patch.object(CompareHandlers, "_show_comparison") as shown,
    ):
        for what in ("preset", "steps"):
            shown.return_value = {}
            with pytest.raises(StopIteration):
                next(CompareHandlers.start.__wrapped__(handlers, {handlers.panel.what: what}, Mock()))
    assert [call.args[2] for call in shown.call_args_list] == ["Not used here: sampler euler.", ""]


def test_an_own_preset_that_says_more_than_the_form_shows():
    settings = changed(next(one for one in FIELDS if one.name == "guidance_rescale")).for_sharing()
    handlers = OwnPresetHandlers(context=Mock(), form=Mock(show_settings=lambda *_: {}), loading=Mock(), message="message")
    assert "guidance rescale 0.7, 0.7" in handlers._load(settings, ENGLISH)["message"]
    assert "message" not in handlers._load(a_request().for_sharing(), ENGLISH)


def test_a_link_names_the_files_that_it_does_not_hold():
    handlers = OwnPresetHandlers(context=Mock(), form=Mock(), loading=Mock(), message="message")
    draft = handlers.form.read.return_value
    draft.to_settings.return_value, draft.given = a_request(), {"image": "/uploads/hat.png", "sound": None}
    link = Mock(what="link")
    said = handlers._handle(link, {}, "visitor", ENGLISH)["message"]
    assert escape(ENGLISH.settings_linked_without.format(settings="first frame")) in said
    draft.given = {"shots": ({"prompt": "a", "job": "job-1"}, {"prompt": "b", "image": "/x.png"}), "figures": ({"name": "Mia"},)}
    said = handlers._handle(link, {}, "visitor", ENGLISH)["message"]
    assert "images of shots, finished shots." in said and "characters" not in said


def test_a_link_refuses_characters_that_the_page_does_not_send():
    """`Draft.to_settings` checks the characters, before anything else reads them."""
    given = a_request().model_dump() | {"figures": [1]}
    form = Mock(read=lambda values: Draft(given=given))
    handlers = OwnPresetHandlers(context=Mock(), form=form, loading=Mock(), message="message")
    with pytest.raises(RequestError):
        handlers._handle(Mock(what="link"), {}, "visitor", ENGLISH)


def test_a_shared_comparison_names_differences_that_the_bar_cannot_vary():
    handlers, caller = CompareHandlers(context=Mock(), form=Mock(), panel=Mock(), message="message"), Mock(texts=ENGLISH)
    one, other = a_request(steps=4), a_request(steps=8)
    assert handlers._unsupported_differences_text([one, other], 0, caller) == ""
    assert "sampler" in handlers._unsupported_differences_text([one, other.with_changes(solver="euler")], 0, caller)

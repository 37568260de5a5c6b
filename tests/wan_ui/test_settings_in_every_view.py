"""Tests that every setting with a control can be set in every view that shows it, and that its value comes back.

The value comes back from the stored request, a video, a link and "My presets".
"""

import asyncio
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradio as gr
import pytest

from backend.engine.engine import Engine
from backend.errors import RequestError
from backend.media.mp4 import read_comment
from backend.schemas.batch_table import build_requests, read_table
from backend.schemas.request import GenerationRequest
from backend.schemas.settings import FIELDS, GUIDED_STEPS, SETTINGS
from presets import Preset, list_presets, load_preset
from tests.clip_files import counting_clip
from wan_ui.compare.variations import varied_requests
from wan_ui.edit.handlers import page_settings
from wan_ui.edit.html import clip_presets, edit_html
from wan_ui.edit.modes import MODE_FIELDS, MODES, loaded_settings, read_request, request_mode, supported_modes
from wan_ui.form.controls import (
    NAMES,
    SETTINGS_WITH_CONTROL,
    Control,
    control_values,
    describe_controls,
    is_shown,
    read_controls,
    shown_settings,
)
from wan_ui.form.form import Form
from wan_ui.form.load_settings import decode_settings, encode_settings, link_values
from wan_ui.form.own_presets import check_settings, preset_settings
from wan_ui.form.panel import build_form
from wan_ui.form.settings_html import own_preset_values
from wan_ui.form.unused_settings import shown_by_form, unused_settings_text
from wan_ui.gateway.access import Access
from wan_ui.i18n.english import ENGLISH
from wan_ui.live.html import live_html, live_presets
from wan_ui.live.routes import to_request as live_request
from wan_ui.services.studio_context import StudioContext

LIVE = {"is_open"}
NEEDED = {
    "upscaler": {"upscale": 2},
    "nag": {"negative_prompt": "text"},
    "cfg_zero": {"step_cache": 0.0},
    "mag_cache": {"step_cache": 0.0},
    "sparse": {"step_cache": 0.0},
}
"""Values of other controls that a control needs."""

INPUTS: dict[str, dict[str, Any]] = {
    "anew": {"strength": 0.5},
    "follow": {"control_kind": "edges"},
    "paint": {"mask": "/uploads/mask.png"},
    "widen": {"margins": [64, 0, 0, 0]},
    "extend": {"extend": "after"},
    "keys": {"keyframes": [{"frame": 0, "image": "/uploads/a.png"}]},
    "sound": {},
    "animate": {"figure": "/uploads/a.png"},
}


def other_value(control: Control) -> Any:
    """Return a value that the control offers, and that differs from its value."""
    texts = {"loras": "style.safetensors = 0.8", "upscaler": "animevideov3", "negative_prompt": "no text"}
    if control.name in texts:
        return texts[control.name]
    if control.kind == "choice":
        return next(value for _, value in control.choices if value not in (control.value, ""))
    if control.kind == "check":
        return not control.value
    if control.limits is None:
        return 2.5 if control.value is None else control.value + 1
    smallest, largest, step = control.limits
    steps = 10 if largest == 100 else 1
    value = control.value + steps * step if control.value + steps * step <= largest else control.value - steps * step
    return round(max(value, smallest), 6)


def changed_values(name: str, preset: Preset, given: set[str]) -> dict[str, Any]:
    """Return all values that a view sends for this preset, in the mode that sets `given`, with another value of one control."""
    controls = describe_controls(preset, ENGLISH, given=given)
    values = {one: control.value for one, control in controls.items() if control.is_shown and one != "length"}
    values |= {one: value for one, value in NEEDED.get(name, {}).items() if one in values}
    return sent_values(values | {name: other_value(controls[name])})


def sent_values(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values without the interval of guidance if guided first steps replace it, as `settings.js` does."""
    interval = {"guidance_start", "guidance_end"} if values.get("guided_steps") else set()
    return {name: value for name, value in values.items() if name not in interval} | {"seed": 5}


def expected_settings(name: str, values: dict[str, Any], preset: Preset) -> dict[str, Any]:
    """Return the settings of the control `name` in the request."""
    settings = read_controls(values)
    if name == "guided_steps":
        return {"guidance": (preset.first_guidance,) * preset.num_experts}
    names = {"resolution": ("width", "height"), "length": ("num_frames",), "guidance_low": ("guidance",)}
    names |= {"guidance_start": ("guidance_interval",), "guidance_end": ("guidance_interval",)}
    own = names.get(name, (name.removesuffix("_sound") if name not in SETTINGS else name,))
    return {one: settings[one] for one in own}


def check_stored(request: GenerationRequest, expected: dict[str, Any]) -> None:
    """Check that a request has these settings, also after it was stored and in the comment of an mp4 file."""
    assert {name: getattr(request, name) for name in expected} == expected
    for stored in (request.to_json(), request.for_sharing()):
        again = GenerationRequest.from_stored(json.loads(json.dumps(stored)))
        assert {name: getattr(again, name) for name in expected} == expected


def edit_values(preset: Preset, mode: str, values: dict[str, Any]) -> dict[str, Any]:
    face = {"face": "/uploads/face.mp4"} if mode == "animate" and "face" in preset.inputs else {}
    own = {"preset": preset.name, "prompt": "a red square", "way": mode, "settings": values}
    return own | {"clip": "/uploads/clip.mp4", "start": 0.0, "num_frames": preset.num_frames} | INPUTS[mode] | face


@pytest.fixture
def any_upload(monkeypatch):
    """Accept every path as an upload."""
    for module in ("edit.modes", "live.routes"):
        monkeypatch.setattr(f"wan_ui.{module}.check_upload_path", lambda path, *_: path)


def test_every_setting_of_a_video_has_a_control():
    fixed = {"preset", "task", "prompt", "seed", "image_focus", "mag_ratios"}
    assert {one.name for one in FIELDS if one.subject == "core"} - fixed == SETTINGS_WITH_CONTROL


@pytest.mark.parametrize("mode", INPUTS)
def test_edit_sends_every_setting_and_loads_it_again(mode, any_upload):
    assert INPUTS.keys() == set(MODES)
    given, presets = set(MODE_FIELDS[mode]), [one for one in clip_presets(lambda _: True) if mode in supported_modes(one)]
    for name in NAMES:
        able = [preset for preset in presets if name != "length" and is_shown(name, preset, given)]
        tried = list(islice(_edit_requests(name, able, mode, given), 3))
        assert bool(tried) is bool(able), name
        for preset, values, request in tried:
            check_stored(request, expected_settings(name, values, preset))
            assert request_mode(request) == mode
            assert unused_settings_text(request, loaded_settings(request), ENGLISH) == ""
            page = page_settings(request)["settings"]
            again = {one: page[one] for one in page if one == "seed" or (one in values.keys() | set(NAMES) - {"length"})}
            again = sent_values({one: value for one, value in again.items() if one == "seed" or is_shown(one, preset, given)})
            assert GenerationRequest.from_preset(preset, **read_request(edit_values(preset, mode, again))[1]) == request


def _edit_requests(
    name: str, presets: list[Preset], mode: str, given: set[str]
) -> Iterator[tuple[Preset, dict[str, Any], GenerationRequest]]:
    """Yield the requests with another value of a control."""
    for preset in presets:
        values = changed_values(name, preset, given)
        yield preset, values, GenerationRequest.from_preset(preset, **read_request(edit_values(preset, mode, values))[1])


def test_what_a_mode_cannot_use_is_not_shown(any_upload):
    for preset in clip_presets(lambda _: True):
        for mode in supported_modes(preset):
            hidden = {"progressive", "step_cache"} - shown_settings(preset, MODE_FIELDS[mode])
            for name in hidden:
                with pytest.raises(RequestError):
                    values = edit_values(preset, mode, {name: 1 if name == "progressive" else 0.1})
                    GenerationRequest.from_preset(preset, **read_request(values)[1])


def test_live_sends_every_setting_and_loads_it_again():
    presets = live_presets(lambda preset: "t2v" in preset.tasks)
    names = [name for name in NAMES if name != "length" and any(is_shown(name, one, LIVE) for one in presets)]
    assert {"resolution", "steps", "flow_shift", "fps", "loras"} <= {*names}
    for name in names:
        for preset in presets:
            controls = describe_controls(preset, ENGLISH, given=LIVE)[name]
            if not controls.is_shown or (controls.kind == "choice" and len(controls.choices) < 2):
                continue
            values = changed_values(name, preset, LIVE)
            request = live_request({"preset": preset.name, "prompt": "a circle", "settings": values})
            check_stored(request, expected_settings(name, values, preset))
            page = link_values(encode_settings(request), presets)
            again = sent_values({one: page["settings"][one] for one in values})
            assert live_request({"preset": page["preset"], "prompt": page["prompt"], "settings": again}) == request


@pytest.fixture(scope="module")
def engine(tmp_path_factory) -> Iterator[Engine]:
    engine = Engine(tmp_path_factory.mktemp("settings"), "square", pipeline="tests.fake_pipeline")
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def context(engine) -> StudioContext:
    return StudioContext(engine=engine, access=Access("key"), can_run=lambda preset: True)


@pytest.fixture(scope="module")
def form(context) -> Form:
    async def build() -> Form:
        with gr.Blocks():
            return build_form(context, ENGLISH, ENGLISH)

    return asyncio.run(build())  # without a running event loop Gradio creates a loop and never closes it


def read_form(form: Form, *updates: dict) -> GenerationRequest:
    """Return the request of the form after these updates."""
    values = {one: getattr(one, "value", None) for one in form.inputs}
    for update in updates:
        given = {one: value["value"] if isinstance(value, dict) else value for one, value in update.items() if _has_value(value)}
        values |= {one: value for one, value in given.items() if one in values}
    return form.read(values).to_request()


def _has_value(update: Any) -> bool:
    return not isinstance(update, dict) or "value" in update


def form_presets(name: str) -> list[Preset]:
    """Return presets that show a control in the form, from prompts."""
    return [preset for preset in list_presets() if "t2v" in preset.tasks and is_shown(name, preset)]


@pytest.mark.parametrize("name", NAMES)
def test_create_storyboard_batch_and_compare_send_it_and_load_it_again(form, name):
    found = _form_requests(form, name)
    preset, values, request = found
    expected = expected_settings(name, {one: value for one, value in values.items() if is_shown(one, preset)}, preset)
    if name == "guided_steps":
        return  # a shortcut, which the form's handlers convert
    check_stored(request, expected)
    assert unused_settings_text(request, shown_by_form(request), ENGLISH) == ""
    prompt = {form.prompt.prompt: request.prompt, form.settings.seed: request.seed, form.settings.is_seed_random: False}
    own_preset = check_settings(preset_settings(request))
    for loaded in (request, decode_settings(encode_settings(request)), own_preset):
        assert read_form(form, form.show_settings(loaded, ENGLISH, lambda _: True), prompt) == request
    (row,) = build_requests(read_table("prompt\nanother circle"), request, is_seed_new=False)
    for one in (row, *varied_requests(request, "seed", "1, 2", [])):
        check_stored(one, expected)
    if name != "progressive":
        lines = json.dumps({"shots": [{"prompt": "a"}, {"prompt": "b", "cut": True}]})
        film = read_form(form, form.show_settings(request, ENGLISH, lambda _: True), prompt, {form.prompt.shots.timeline: lines})
        check_stored(film, expected)
        assert len(film.shots) == 2


def test_every_control_updates_the_estimate(form):
    assert {form.settings.preset, *form.settings.controls.values()} == {*form.settings.estimate_inputs}


@pytest.mark.parametrize(
    "name, ignored", [("ltx-2.3-704p", {"step_cache": 0.1}), ("turbowan2.1-t2v-1.3b-480p", {"flow_shift": 3.5})]
)
def test_a_stored_value_that_the_model_ignores_opens_and_is_left_out(form, name, ignored):
    own = GenerationRequest.from_preset(load_preset(name), prompt="a red circle", seed=5)
    stored = GenerationRequest.from_stored(own.to_json() | ignored)
    prompt = {form.prompt.prompt: own.prompt, form.settings.seed: own.seed, form.settings.is_seed_random: False}
    for loaded in (stored, decode_settings(encode_settings(stored)), check_settings(preset_settings(stored))):
        assert read_form(form, form.show_settings(loaded, ENGLISH, lambda _: True), prompt) == own


def _form_requests(form: Form, name: str) -> tuple[Preset, dict[str, Any], GenerationRequest]:
    """Return the first preset that shows a control, the form's values with another value of the control, and their request."""
    preset = next(iter(form_presets(name)))
    base = GenerationRequest.from_preset(preset, prompt="a red circle", seed=5)
    controls = describe_controls(preset, ENGLISH)
    values = control_values(base) | NEEDED.get(name, {}) | {name: other_value(controls[name])}
    update = {form.settings.controls[one]: value for one, value in values.items()}
    seed = {form.prompt.prompt: "a red circle", form.settings.seed: 5, form.settings.is_seed_random: False}
    return preset, values, read_form(form, form.show_settings(base, ENGLISH, lambda _: True), seed, update)


def test_an_edited_video_has_its_settings_in_its_file(engine, any_upload, tmp_path):
    clip = counting_clip(tmp_path / "clip.mp4", 48, 16, (128, 96))
    settings = {"resolution": "96x96", "steps": 2, "solver": "euler", "flow_shift": 5.5, "loras": "", "guidance_start": 0}
    settings |= {"guidance_end": 60, "fps": 8, "upscale": 2, "upscaler": "animevideov3", "mag_cache": 0, "keeps_sound": False}
    given = edit_values(load_preset("wan-tiny"), "anew", settings) | {"clip": str(clip)}
    preset, values = read_request(given)
    job = engine.submit(GenerationRequest.from_preset(preset, **values))
    *_, (_, final) = engine.event_log.follow(job.id)
    stored = json.loads(read_comment(Path(final.result.path)))["request"]
    expected = {"solver": "euler", "flow_shift": 5.5, "guidance_interval": [0.0, 0.6], "fps": 8, "upscale": 2}
    assert stored | expected == stored and stored["keeps_sound"] is False
    page = page_settings(engine.jobs.find(job.id).request)["settings"]
    assert page | settings == page


def test_own_presets_are_offered_to_the_views_whose_models_they_name(context, engine):
    clip, live = (GenerationRequest.from_preset(load_preset(name), prompt="x") for name in ("wan-tiny", "wan-live-tiny"))
    caller = SimpleNamespace(owner="visitor")
    for name, request in {"mine": clip.with_changes(solver="euler", steps=7), "steered": live.with_changes(fps=8)}.items():
        engine.user_presets.save_presets(caller.owner, {name: preset_settings(request)})
    (mine,) = own_preset_values(context, caller, clip_presets(lambda _: True))
    assert (mine["name"], mine["preset"], mine["settings"]["solver"], mine["settings"]["steps"]) == (
        "mine",
        "wan-tiny",
        "euler",
        7,
    )
    (steered,) = own_preset_values(context, caller, live_presets(lambda _: True))
    assert (steered["name"], steered["settings"]["fps"]) == ("steered", 8)


def test_every_view_has_a_labelled_field_for_each_control():
    edit, live = edit_html(clip_presets(lambda _: True), ENGLISH), live_html(live_presets(lambda _: True), "", ENGLISH)
    in_edit = [(preset, MODE_FIELDS[mode]) for preset in clip_presets(lambda _: True) for mode in supported_modes(preset)]
    in_live = [(preset, LIVE) for preset in live_presets(lambda _: True)]
    for view, html, used in (("edit", edit, in_edit), ("live", live, in_live)):
        for name in {*NAMES} - {"length"}:
            element, is_used = f"{view}-{name.replace('_', '-')}", any(is_shown(name, *one) for one in used)
            assert (f'for="{element}"' in html) is (f'id="{element}"' in html) is is_used
    assert GUIDED_STEPS.name in NAMES

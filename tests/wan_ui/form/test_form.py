import pytest

from backend.errors import RequestError
from backend.schemas.step_plan import plan_steps
from presets import Preset, list_presets, load_preset
from wan_ui.form.controls import describe_controls, parse_size
from wan_ui.form.form import Draft
from wan_ui.form.handlers import FormHandlers
from wan_ui.form.settings import control_updates
from wan_ui.i18n.english import ENGLISH

FAST = "wan2.2-t2v-a14b-480p-fast"


def a_draft(**changes) -> Draft:
    return Draft(
        given=dict(
            task="t2v",
            preset="wan-tiny",
            prompt="a red circle",
            negative_prompt="",
            width=128,
            height=128,
            num_frames=33,
            steps=20,
            guidance=(4.0, 2.0),
            flow_shift=3.0,
            seed=5,
            image=None,
            image_focus=(0.5, 0.5),
        )
        | changes
    )


def test_a_draft_becomes_the_request_that_it_says():
    request = a_draft(seed=9, steps=8, guidance=(2.5, 2.0)).to_request()
    assert (request.seed, request.steps, request.guidance, request.fps) == (9, 8, (2.5,), 16)


def test_the_negative_prompts_strength_goes_with_the_presets_that_take_it():
    fast = dict(preset="wan2.2-t2v-a14b-480p-fast", width=832, height=480, guidance=(1.0, 1.0), negative_prompt="text")
    assert a_draft(**fast).to_request().nag == 0 and a_draft(**fast, nag=11.0).to_request().uses_nag
    with pytest.raises(RequestError, match="^nag was given, and wan-tiny does not support it"):
        a_draft(nag=11.0).to_request()


def test_steps_are_reused_by_plan_where_a_preset_takes_it():
    assert sum(step.reuses for step in plan_steps(a_draft(steps=20, mag_cache=0.12).to_request())) == 10
    with pytest.raises(RequestError, match="^mag_cache cannot be combined with step_cache; set step_cache to 0$"):
        a_draft(mag_cache=0.12, step_cache=0.1).to_request()
    shown = control_updates(load_preset("wan-tiny"), ENGLISH, a_draft(mag_cache=0.12).to_request())["mag_cache"]
    assert (shown["value"], shown["maximum"], shown["visible"]) == (0.12, 0.3, True)
    for name in ("wan2.2-t2v-a14b-480p-fast", "ltx-tiny", "wan-live-tiny"):
        assert not control_updates(load_preset(name), ENGLISH)["mag_cache"]["visible"]


def test_samplers_with_fixed_levels_are_offered_with_their_steps_and_without_settings_that_have_no_effect():
    facts = load_preset("wan-tiny").model_dump() | dict(guidance=(1.0,), steps=3, max_steps=3)

    def controls(*solvers, **own):
        return describe_controls(Preset(**facts | dict(solver=solvers[0], solvers=solvers) | own), ENGLISH)

    rcm, dmd = controls("rcm", "rcm-ode"), controls("dmd")
    assert rcm["solver"].is_shown and rcm["solver"].choices == (("rcm", "rcm"), ("rcm-ode", "rcm-ode"))
    assert rcm["steps"].limits == (1, 3, 1) and not dmd["solver"].is_shown
    for name in ("flow_shift", "progressive", "mag_cache"):
        assert not rcm[name].is_shown and not dmd[name].is_shown
    mixed = controls("rcm", "unipc", max_steps=50)
    assert mixed["flow_shift"].is_shown and mixed["progressive"].is_shown


def test_the_form_keeps_what_it_was_told_of_windows():
    assert a_draft(num_frames=65).to_request().window_frames == 33
    for wanted in (None, True, False):
        assert a_draft(num_frames=65, context_windows=wanted).to_request().context_windows is wanted
    shown = {value: text for text, value in control_updates(load_preset("wan-tiny"), ENGLISH)["length"]["choices"]}
    assert (shown[33], shown[65]) == ("2.1 s · 33 frames", "4.1 s · 65 frames · in windows")
    for wanted, value in ((None, ""), (True, "on"), (False, "off")):
        request = a_draft(num_frames=65, context_windows=wanted).to_request()
        assert control_updates(load_preset("wan-tiny"), ENGLISH, request)["context_windows"]["value"] == value
    assert not control_updates(load_preset("hunyuan-tiny"), ENGLISH)["context_windows"]["visible"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((1, FAST, 4, 1.0, 1.0), (3.5, 3.5, 0, 25)),
        ((2.0, FAST, 4.0, 2.5, 1.0), (2.5, 1.0, 0, 50)),
        ((0, FAST, 4, 3.5, 3.5), (1.0, 1.0, 0, 100)),
        ((1, "wan2.2-ti2v-5b-720p-turbo", 4, 1.0, 1.0), (3.5, 3.5, 0, 25)),
    ],
)
def test_first_steps_with_guidance_become_its_strength_and_its_end(given, expected):
    assert FormHandlers(context=None, form=None, message=None).apply_guided_steps(*given) == expected


def test_what_a_stranger_sends_in_its_place_changes_nothing():
    handlers = FormHandlers(context=None, form=None, message=None)
    for given in ((9, FAST, 4, 1.0, 1.0), (1, "nothing", 4, 1.0, 1.0), (1, None, 4, 1.0, 1.0), (None, FAST, None, None, None)):
        assert all("value" not in update for update in handlers.apply_guided_steps(*given))
    for given in (
        (None, None, None),
        (1, "nothing", 8),
        (20, "wan-tiny", 60),
    ):  # wan-tiny guides every step, for any number of steps
        assert "value" not in handlers.keep_guided_steps(*given)
    assert handlers.keep_guided_steps(1, FAST, 8) == 13


def test_text_to_video_leaves_a_picture_of_the_other_tab_alone():
    assert a_draft(image="/tmp/a.png").to_request().image is None


def test_image_to_video_takes_picture_and_crop_along():
    request = a_draft(task="i2v", image="/tmp/a.png", image_focus=(0.2, 1.0)).to_request()
    assert (request.task, request.image, request.image_focus) == ("i2v", "/tmp/a.png", (0.2, 1.0))


@pytest.mark.parametrize("changes", [{"prompt": " "}, {"seed": -1}, {"preset": "nothing"}, {"task": "i2v"}])
def test_what_is_wrong_is_refused_in_the_engines_words(changes):
    with pytest.raises(RequestError):
        a_draft(**changes).to_request()


def test_sizes_are_width_first():
    assert parse_size("832x480") == (832, 480)


@pytest.mark.parametrize("choice", ["832", "axb", None, "1x2x3", "999999x1", ["a"]])
def test_a_size_that_was_not_offered_is_refused(choice):
    with pytest.raises(RequestError, match="resolution"):
        parse_size(choice)


@pytest.mark.parametrize("choice", ["1x99999", "99999x96", "0x96", "96x0", "²²x96"])
def test_a_size_that_no_preset_makes_is_refused_before_a_picture_is_cropped_to_it(choice):
    with pytest.raises(RequestError, match="resolution"):
        parse_size(choice)


def test_every_size_that_a_preset_offers_can_be_read():
    sizes = {size for preset in list_presets() for size in preset.sizes}
    assert {parse_size(f"{width}x{height}") for width, height in sizes} == sizes


@pytest.mark.parametrize("changes", [{"steps": 999}, {"steps": None}, {"seed": 1.5}, {"guidance": ("x", "x")}, {"flow_shift": 0}])
def test_numbers_that_were_typed_past_the_controls_are_refused(changes):
    with pytest.raises(RequestError):
        a_draft(**changes).to_request()


def test_settings_without_pictures_are_whole_settings():
    settings = a_draft(task="i2v", image="/tmp/a.png", steps=7).to_settings()
    assert settings.inputs() == {} and settings.steps == 7

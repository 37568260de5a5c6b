from presets import load_preset
from wan_ui.form.controls import length_text
from wan_ui.form.settings import control_updates, unavailable_presets_html
from wan_ui.i18n.english import ENGLISH
from wan_ui.services.presets import preset_choices


def test_only_what_can_run_is_offered_and_the_rest_is_explained():
    choices = preset_choices("t2v", lambda preset: preset.name == "wan-tiny")
    assert choices.dropdown_choices("en") == [("Demo model trained on synthetic shapes", "wan-tiny")]
    html = unavailable_presets_html(choices, ENGLISH)
    assert "Wan 2.1" in html and "not on this machine" in html


def test_a_choice_is_kept_where_it_can_be_and_replaced_where_not():
    choices = preset_choices("t2v", lambda preset: True)
    assert choices.pick_preset("wan2.1-t2v-14b-480p").name == "wan2.1-t2v-14b-480p"
    assert choices.pick_preset("nothing").name == "wan-tiny"
    assert preset_choices("t2v", lambda preset: False).pick_preset("wan-tiny") is None


def test_the_demo_model_is_never_called_wan():
    preset = load_preset("wan-tiny")
    assert "wan" not in preset.title.lower() and "synthetic shapes" in preset.title


def test_the_controls_offer_only_what_the_preset_allows():
    preset = load_preset("wan-tiny")
    offered = control_updates(preset, ENGLISH)
    assert all((count - 1) % 4 == 0 for _, count in offered["length"]["choices"])
    assert (f"{preset.width} × {preset.height}", f"{preset.width}x{preset.height}") in offered["resolution"]["choices"]
    assert offered["guidance_low"]["visible"] is False


def test_a_length_is_said_in_seconds_first():
    assert length_text(33, 16, ENGLISH) == "2.1 s · 33 frames"

"""Render the live view before a video runs. Its script updates the view later. The functions have no side effects."""

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from presets import Preset, list_presets
from wan_ui.form.settings_html import Modes, data_attribute, preset_controls, settings_html
from wan_ui.i18n.english import Texts

KEYS = {  # action -> keys; the button shows the first key; actions that are missing here have only a button
    "left": ("ArrowLeft", "a"),
    "right": ("ArrowRight", "d"),
    "up": ("ArrowUp", "w"),
    "down": ("ArrowDown", "s"),
    "forward": ("ArrowUp", "w"),
    "back": ("ArrowDown", "s"),
    "grow": ("+", "="),
    "shrink": ("-", "_"),
}
_SHOWN = {"ArrowLeft": "←", "ArrowRight": "→", "ArrowUp": "↑", "ArrowDown": "↓", "+": "+", "-": "−"}


def live_presets(can_run: Callable[[Preset], bool]) -> list[Preset]:
    return [preset for preset in list_presets() if preset.live and can_run(preset)]


def live_html(presets: Sequence[Preset], job_id: str, texts: Texts, fill: Mapping[str, Any] | None = None) -> str:
    """Render the view for a visitor who may use these presets.

    `job_id` is the visitor's running live video, "" for none. `fill` is a model, a prompt and settings to start with.
    """
    if not presets:
        empty = f'<p class="hint">{escape(texts.live_none)}</p>'
        return f'<section class="live" data-job="" aria-label="{escape(texts.live_on)}">{empty}</section>'
    options = ""
    for preset in presets:
        named, controls = preset.words(texts.language), data_attribute("controls", preset_controls(preset, _modes(preset), texts))
        options += (
            f'<option value="{escape(preset.name)}" data-actions="{escape(" ".join(preset.actions))}"'
            f' data-tasks="{escape(" ".join(preset.tasks))}" data-combines="{str(preset.combines_actions).lower()}"'
            f' data-reads="{str(preset.reads_prompt).lower()}" data-example="{escape(preset.examples[0])}"'
            f' data-caption="{escape(named.examples[0])}" {controls}>'
            f"{escape(named.title)}</option>"
        )
    words = texts.with_prefix("live_")
    return (
        f'<section class="live" data-job="{escape(job_id)}" {data_attribute("words", words)}'
        f" {data_attribute('fill', fill)}"
        f' aria-label="{escape(texts.live_on)}">'
        f'<div class="screen"><canvas id="live-canvas" width="96" height="96"></canvas>'
        f'<p class="veil">{escape(texts.live_start_hint)}</p><i class="dot" hidden title="{escape(texts.live_on)}"></i></div>'
        f'<p class="line"><b class="headline"></b><span class="numbers"></span></p>'
        f'<div class="keys">{_action_buttons(presets, texts)}</div>'
        f'<div class="asked"><label>{escape(texts.preset)}<select id="live-preset">{options}</select></label>'
        f'<label class="wide">{escape(texts.prompt)}<input id="live-prompt" maxlength="2000"></label>'
        f'<label class="picture"><span></span><input type="file" id="live-picture" accept="image/*">'
        f"<b>{escape(texts.live_image_choose)}</b></label>"
        f'<button type="button" id="live-start" class="primary">{escape(texts.live_start)}</button>'
        f'<button type="button" id="live-say" hidden>{escape(texts.live_apply)}</button>'
        f'<button type="button" id="live-stop" hidden>{escape(texts.stop)}</button></div>'
        f'<p class="note" role="alert" hidden></p>{settings_html("live", presets, _modes, texts, ())}</section>'
    )


def _modes(preset: Preset) -> Modes:
    return {"live": {"is_open"}}


def _action_buttons(presets: Sequence[Preset], texts: Texts) -> str:
    """Render a button for each action of any preset. The script shows the buttons of the selected preset."""
    buttons = []
    for action in dict.fromkeys(action for preset in presets for action in preset.actions):
        words, keys = escape(dict(texts.live_actions).get(action, action)), KEYS.get(action, ())
        buttons.append(
            f'<button type="button" data-steer="{escape(action)}" data-keys="{escape(" ".join(keys))}" aria-label="{words}"'
            f' title="{words}">{escape(_SHOWN[keys[0]]) if keys else words}</button>'
        )
    return "".join(buttons)

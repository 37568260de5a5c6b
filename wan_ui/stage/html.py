"""Render a `StageView` as HTML. The functions have no side effects: the same view gives the same text.

Gradio's HTML component updates the page node by node, by position. Therefore the elements and their order never change, only
attributes and texts. The image then changes without flicker, the progress bar moves smoothly, and a playing video continues. All
texts from visitors are escaped here.
"""

import json
from dataclasses import dataclass
from html import escape
from pathlib import PurePath

from backend.engine.job import Job
from backend.errors import RequestError
from backend.schemas.events import Proposal, VideoResult
from backend.schemas.guidance_steps import count_guided_steps
from backend.schemas.request import GenerationRequest
from backend.schemas.shots import needs_only_cutting
from backend.schemas.upscaling import FOREIGN, upscaler_name
from wan_ui.components.buttons import icon_button, play_button, quiet_button, sound_button, text_button
from wan_ui.components.field_errors import shorten_paths
from wan_ui.components.icons import icon
from wan_ui.components.naming import video_name
from wan_ui.components.progress import StageView, format_duration, progress_texts, queue_position_texts
from wan_ui.components.values import NO_PICTURE, pairs_html
from wan_ui.i18n.details import translate_detail
from wan_ui.i18n.english import Texts
from wan_ui.services.exports import export_menu
from wan_ui.services.media import POSTER, media_url
from wan_ui.services.presets import can_extend_with_audio
from wan_ui.services.sound import sound_url
from wan_ui.services.upscaling import UpscaleOffer, upscale_menu

_GLYPH = (
    '<svg class="glyph" viewBox="0 0 64 64" aria-hidden="true"><rect x="6" y="12" width="52" height="40" rx="8"/>'
    '<path d="M27 24.5v15l13-7.5z"/></svg>'
)
_PLAYS = 'data-player="play"'


@dataclass(frozen=True, kw_only=True)
class Model:
    """The model of the video on the stage: its title, the title of the full-quality model of a draft, and the upscalers."""

    title: str = ""
    full_title: str = ""
    offers: tuple[UpscaleOffer, ...] = ()


def stage_html(view: StageView, job: Job | None, texts: Texts, model: Model = Model()) -> str:
    """Render the stage for a view. Before the first video there is no `job`."""
    ratio = f"{job.request.width / job.request.height:.4f}" if job else "1.3333"
    return (
        f'<section class="stage" data-phase="{view.phase}" data-active="{_true_or_false(view.is_active)}"'
        f' data-job="{escape(job.id if job else "")}">'
        f'<div class="viewport"><div class="screen" style="--ratio: {ratio}">'
        f"{_preview_html(view, job, texts)}{_video_html(view, job, texts)}{_veil_html(view, texts)}</div></div>"
        f'<div class="foot">{_progress_html(view, job, texts)}{_player_html(view, texts)}{_actions_html(view, job, texts, model)}'
        f'{_facts_html(view, job, texts)}<p class="caption">{escape(model.title)}</p></div></section>'
    )


def _preview_html(view: StageView, job: Job | None, texts: Texts) -> str:
    is_shown = bool(job and view.preview and not view.result)
    source = media_url(job, view.preview) if is_shown else NO_PICTURE
    return f'<img class="preview" alt="{escape(texts.preview_label)}" src="{source}"{_hidden_attribute(not is_shown)}>'


def _video_html(view: StageView, job: Job | None, texts: Texts) -> str:
    if not job or not view.result:
        return "<video muted loop playsinline hidden></video>"
    label = escape(texts.video_label.format(prompt=video_name(job.request, texts)))
    source = media_url(job, view.result.path)
    return f'<video muted loop playsinline autoplay tabindex="0" aria-label="{label}" src="{source}"></video>'


def _veil_html(view: StageView, texts: Texts) -> str:
    title, detail = _veil_texts(view, texts)
    role = "alert" if view.phase == "failed" else "note"
    hidden = _hidden_attribute(not title)
    return (
        f'<div class="veil" role="{role}"{hidden}>{_GLYPH}<p class="title">{escape(title)}</p>'
        f'<p class="detail">{escape(detail)}</p></div>'
    )


def _veil_texts(view: StageView, texts: Texts) -> tuple[str, str]:
    """Return the title and the detail that are shown while no image exists."""
    match view.phase:
        case "idle":
            return texts.idle_title, texts.idle_detail
        case "queued" if view.interrupted_at:
            return texts.interrupted, texts.held_detail if view.is_held else texts.interrupted_detail
        case "queued":
            return queue_position_texts(view.ahead, texts)
        case "failed":
            return shorten_paths(view.cause) or texts.failed, shorten_paths(view.fix)
        case "cancelled" if not view.result and not view.preview:
            return texts.cancelled, texts.cancelled_nothing
        case "starting":
            return texts.starting, translate_detail(view.what, texts)
        case "compiling" if not view.preview:
            return texts.compiling.format(what=translate_detail(view.what, texts)), texts.compiling_detail
    return "", ""


def _progress_html(view: StageView, job: Job | None, texts: Texts) -> str:
    headline, detail, numbers = progress_texts(view, texts)
    if job and view.phase == "finished":
        detail = video_name(job.request, texts)
    percent = round(view.fraction * 100)
    is_waiting = view.phase in ("queued", "starting", "loading", "compiling", "encoding")
    return (
        f'<div class="readout"{_hidden_attribute(view.phase == "idle")}>'
        f'<p class="line"><span class="headline" role="status">{escape(headline)}</span>'
        f'<span class="detail" title="{escape(detail)}">{escape(detail)}</span>'
        f'<span class="numbers">{escape(numbers)}</span></p>'
        f'<div class="bar" role="progressbar" aria-label="{escape(headline)}" aria-valuemin="0" aria-valuemax="100"'
        f' aria-valuenow="{percent}" data-waiting="{_true_or_false(is_waiting)}"><i style="width: {percent}%"></i></div></div>'
    )


def _facts_html(view: StageView, job: Job | None, texts: Texts) -> str:
    if not job or not view.result:
        return '<div class="facts" hidden></div>'
    pairs = settings_pairs(view.result, job.request, texts)
    timings = [
        (name, format_duration(view.result.seconds[key]))
        for key, name in texts.stage_names
        if view.result.seconds.get(key, 0.0) >= 0.005
    ]
    lists = f'<dl class="settings">{pairs_html(pairs)}</dl><dl class="timings">{pairs_html(timings)}</dl>'
    return f'<div class="facts">{lists}</div>'


def settings_pairs(result: VideoResult, request: GenerationRequest, texts: Texts) -> list[tuple[str, str]]:
    """Return the most important settings as (name, value)."""
    seconds = result.num_frames / result.fps
    if request.preset == FOREIGN:
        length = texts.length_choice.format(seconds=seconds, frames=result.num_frames)
        size = (texts.fact_size, f"{result.width} × {result.height}")
        return [size, (texts.length, length), *upscaling_fact(request, texts)]
    first = count_guided_steps(request.guidance, request.guidance_interval, request.num_steps)
    return [
        (texts.seed, str(request.seed)),
        (texts.fact_size, f"{result.width} × {result.height}"),
        (texts.length, texts.length_choice.format(seconds=seconds, frames=result.num_frames)),
        (texts.steps, str(request.num_steps)),
        *([(texts.fact_strength, f"{request.strength:g}")] if request.strength is not None else []),
        (texts.fact_guidance, " / ".join(f"{value:g}" for value in request.guidance)),
        *([(texts.fact_guided_steps, str(first))] if first is not None and 0 < first < request.num_steps else []),
        *([(texts.fact_nag, f"{request.nag:g}")] if request.uses_nag else []),
        *_window_facts(request, texts),
        *([(texts.fact_shots, str(len(request.shots)))] if request.shots else []),
        *([(texts.characters, ", ".join(figure.name for figure in request.figures))] if request.figures else []),
        (texts.flow_shift, f"{request.flow_shift:g}"),
        *upscaling_fact(request, texts),
    ]


def upscaling_fact(request: GenerationRequest, texts: Texts) -> list[tuple[str, str]]:
    """Return one (name, value) pair with the upscaler, the scale and the original size. Return [] without upscaling."""
    if not request.upscale:
        return []
    facts = {"scale": request.upscale, "name": upscaler_name(request), "width": request.width, "height": request.height}
    return [(texts.fact_upscaled, texts.fact_upscaled_by.format(**facts))]


def _window_facts(request: GenerationRequest, texts: Texts) -> list[tuple[str, str]]:
    """Return one (name, value) pair with the length of the context windows. Return [] without windows or without the preset."""
    try:
        length = request.window_frames
    except RequestError:
        return []
    return [(texts.fact_windows, texts.fact_window_frames.format(frames=length))] if length else []


def _player_html(view: StageView, texts: Texts) -> str:
    """Render the player: play, previous and next frame, position over the audio waveform, loop and volume.

    The page's script updates the player.
    """
    result = view.result
    facts = f'data-fps="{result.fps}" data-frames="{result.num_frames}"' if result else ""
    has_sound = bool(result and result.has_sound)
    return (
        f'<div class="player" {facts} data-sound="{_true_or_false(has_sound)}"{_hidden_attribute(not result)}>'
        f"{_player_button('back', texts.frame_back)}{play_button(texts, _PLAYS)}{_player_button('forward', texts.frame_forward)}"
        f'<span class="scrubber"><canvas class="wave" aria-hidden="true"{_hidden_attribute(not has_sound)}></canvas>'
        f'<input type="range" min="0" max="{result.num_frames - 1 if result else 1}" step="1"'
        f' value="0" data-player="scrub" aria-label="{escape(texts.scrub)}"></span><output></output>'
        f"{_player_button('loop', texts.loop, is_pressed=True)}{_volume_html(has_sound, texts)}</div>"
    )


def _volume_html(has_sound: bool, texts: Texts) -> str:
    """Render the buttons for audio and volume. The page's script stores both settings."""
    words = escape(texts.sound), escape(texts.sound_refused)
    attributes = f'data-player="sound" data-words="{words[0]}" data-refused-words="{words[1]}"{_hidden_attribute(not has_sound)}'
    return (
        f"{sound_button(texts.sound, attributes)}"
        f'<input type="range" class="volume" min="0" max="100" step="1" data-player="volume"'
        f' aria-label="{escape(texts.volume)}"{_hidden_attribute(not has_sound)}>'
    )


def _player_button(name: str, label: str, is_pressed: bool = False) -> str:
    pressed = ' aria-pressed="true"' if is_pressed else ""
    return quiet_button(name, label, f'data-player="{name}"{pressed}')


def _actions_html(view: StageView, job: Job | None, texts: Texts, model: Model) -> str:
    """Render the buttons for the job's state."""
    if job and view.is_held:
        return f'<div class="actions">{text_button("queue:go_on", texts.resume_job, name="play", job=job.id)}</div>'
    if not job or view.is_active or view.phase == "idle":
        return '<div class="actions" hidden></div>'
    one = {"job": job.id}
    buttons = [
        text_button("again:same", texts.same_again, name="again", **one),
        text_button("again:seed", texts.new_seed, name="dice", **one),
    ]
    if job.request.preset == FOREIGN:
        buttons = buttons[:1]
    if view.proposals:
        buttons = [*(_proposal_button(proposal, job, texts) for proposal in view.proposals), *buttons]
    if view.result:
        buttons = [
            _download_html(view, job, texts),
            upscale_menu(job, model.offers, texts),
            *buttons,
            *_video_buttons(job, view.result, texts, model),
        ]
    return f'<div class="actions">{"".join(buttons)}</div>'


def _proposal_button(proposal: Proposal, job: Job, texts: Texts) -> str:
    """Render a button for settings that fit into memory. A press copies the settings to the form and queues no video."""
    words = texts.fits.format(width=proposal.width, height=proposal.height, frames=proposal.num_frames)
    value = f"{proposal.width}x{proposal.height}x{proposal.num_frames}"
    group = "fill" if job.request.is_from_pictures else "edit"
    return text_button(f"{group}:fits", words, name="use", hint=texts.fits_hint, job=job.id, value=value)


def _download_html(view: StageView, job: Job, texts: Texts) -> str:
    result = view.result
    assert result is not None, "called only for a finished video"
    name = f"{job.request.preset}-{job.request.seed}{PurePath(result.path).suffix}"
    return (
        f'<a id="download" href="{media_url(job, result.path)}" download="{escape(name)}">'
        f"{icon('download')}<span>{escape(texts.download)}</span></a>{sound_download(job, result, texts)}"
        f"{export_menu(job, texts)}"
    )


def sound_download(job: Job, result: VideoResult, texts: Texts) -> str:
    """Render the link to the video's audio file, "" for a silent video."""
    if not result.has_sound:
        return ""
    name = f"{job.request.preset}-{job.request.seed}.wav"
    return (
        f'<a class="sound-download" href="{sound_url(job)}" download="{escape(name)}">{icon("sound")}'
        f"<span>{escape(texts.download_sound)}</span></a>"
    )


def _video_buttons(job: Job, result: VideoResult, texts: Texts, model: Model) -> list[str]:
    one, group = {"job": job.id}, "fill" if job.request.is_from_pictures else "edit"
    is_ours = job.request.preset != FOREIGN
    hint = texts.full_quality_hint.format(title=model.full_title)
    full = [text_button(f"{group}:full", texts.full_quality, name="quality", hint=hint, **one)] if model.full_title else []
    original = (
        [text_button("compare:original", texts.compare_original, name="compare", **one)] if job.request.has_original else []
    )
    numbers = () if needs_only_cutting(job.request) else range(2, len(job.request.shots) + 1)
    words = {"name": "dice", "hint": texts.from_shot_hint, "job": job.id}
    return [
        *original,
        *full,
        *[text_button("again:shot", texts.from_shot.format(index=number), value=str(number), **words) for number in numbers],
        *([continue_button(job, texts)] if is_ours else []),
        add_to_storyboard_button(job, result, texts),
        text_button("edit:clip", texts.edit_this, name="edit", hint=texts.edit_this_hint, **one),
        f'<span class="small">{"".join(_small_buttons(job, texts, group))}</span>',
    ]


def continue_button(job: Job, texts: Texts) -> str:
    """Render the button that continues the video. If the model cannot extend audio, the new video starts at the last frame."""
    act, hint = ("edit", texts.continue_sound_hint) if can_extend_with_audio(job.request) else ("fill", texts.continue_hint)
    return text_button(f"{act}:continue", texts.continue_video, name="go_on", hint=hint, job=job.id)


def add_to_storyboard_button(job: Job, result: VideoResult, texts: Texts) -> str:
    """Render the button that adds the video to the storyboard as a finished shot. `storyboard.js` reads its `data-take`."""
    shot = {"job": job.id, "frames": result.num_frames, "fps": result.fps, "first": 0, "prompt": job.request.prompt}
    shot |= {"video": media_url(job, result.path), "poster": media_url(job, POSTER)}
    return (
        f'<button type="button" data-view="create" data-take="{escape(json.dumps(shot, ensure_ascii=False))}"'
        f' title="{escape(texts.add_to_storyboard_hint)}">{icon("list")}<span>{escape(texts.add_to_storyboard)}</span></button>'
    )


def _small_buttons(job: Job, texts: Texts, group: str) -> list[str]:
    """Render the buttons with only an icon. They stay together when the row wraps."""
    one, starred = {"job": job.id}, _true_or_false(job.is_starred)
    settings = [
        quiet_button("pin", texts.keep_seed, 'data-action="keep_seed"'),
        icon_button(f"{group}:use", "use", texts.use_settings, **one),
    ]
    return [
        *(settings if job.request.preset != FOREIGN else []),
        icon_button("queue:star", "star", texts.star, **one, on=starred),
        icon_button("compare:add", "compare", texts.add_compare, **one),
        icon_button("queue:delete", "bin", texts.delete, **one),
    ]


def _true_or_false(value: bool) -> str:
    return "true" if value else "false"


def _hidden_attribute(is_hidden: bool) -> str:
    return " hidden" if is_hidden else ""

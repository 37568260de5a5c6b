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
from backend.schemas.control import extend_directions
from backend.schemas.events import VideoResult
from backend.schemas.guidance_steps import count_guided_steps
from backend.schemas.shots import needs_only_cutting
from backend.schemas.upscaling import FOREIGN, upscaler_name
from wan_ui.components.buttons import icon_button, play_button, quiet_button, sound_button, text_button
from wan_ui.components.field_errors import shorten_paths
from wan_ui.components.icons import icon
from wan_ui.components.progress import StageView, format_duration, progress_texts, queue_position_texts
from wan_ui.components.values import NO_PICTURE, pairs_html, video_name
from wan_ui.i18n.details import translate_detail
from wan_ui.i18n.english import Texts
from wan_ui.services.exports import export_menu
from wan_ui.services.media import POSTER, media_url
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
    has_preview = bool(job and view.preview and not view.result)
    source = media_url(job, view.preview) if has_preview else NO_PICTURE
    preview = f'<img class="preview" alt="{escape(texts.preview_label)}" src="{source}"{_hidden_attribute(not has_preview)}>'
    video = "<video muted loop playsinline hidden></video>"
    if job and view.result:
        label, source = texts.video_label.format(prompt=video_name(job.request, texts)), media_url(job, view.result.path)
        video = f'<video muted loop playsinline autoplay tabindex="0" aria-label="{escape(label)}" src="{source}"></video>'
    return (
        f'<section class="stage" data-phase="{view.phase}" data-active="{str(view.is_active).lower()}"'
        f' data-job="{escape(job.id if job else "")}">'
        f'<div class="viewport"><div class="screen" style="--ratio: {ratio}">{preview}{video}{_veil_html(view, texts)}</div>'
        f'</div><div class="foot">{_progress_html(view, job, texts)}{_player_html(view, texts)}'
        f"{_actions_html(view, job, texts, model)}{_facts_html(view, job, texts)}"
        f'<p class="caption">{escape(model.title)}</p></div></section>'
    )


def _veil_html(view: StageView, texts: Texts) -> str:
    """Render the title and the detail that are shown while no image exists."""
    title = detail = ""
    match view.phase:
        case "idle":
            title, detail = texts.idle_title, texts.idle_detail
        case "queued" if view.interrupted_at:
            title, detail = texts.interrupted, texts.held_detail if view.is_held else texts.interrupted_detail
        case "queued":
            title, detail = queue_position_texts(view.ahead, texts)
        case "failed":
            title, detail = shorten_paths(view.cause) or texts.failed, shorten_paths(view.fix)
        case "cancelled" if not view.result and not view.preview:
            title, detail = texts.cancelled, texts.cancelled_nothing
        case "starting":
            title, detail = texts.starting, translate_detail(view.what, texts)
        case "compiling" if not view.preview:
            title, detail = texts.compiling.format(what=translate_detail(view.what, texts)), texts.compiling_detail
    return (
        f'<div class="veil" role="{"alert" if view.phase == "failed" else "note"}"{_hidden_attribute(not title)}>{_GLYPH}'
        f'<p class="title">{escape(title)}</p><p class="detail">{escape(detail)}</p></div>'
    )


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
        f' aria-valuenow="{percent}" data-waiting="{str(is_waiting).lower()}"><i style="width: {percent}%"></i></div></div>'
    )


def _facts_html(view: StageView, job: Job | None, texts: Texts) -> str:
    if not job or not view.result:
        return '<div class="facts" hidden></div>'
    request, result = job.request, view.result
    length = texts.length_choice.format(seconds=result.num_frames / result.fps, frames=result.num_frames)
    pairs = [(texts.fact_size, f"{result.width} × {result.height}"), (texts.length, length)]
    if request.preset != FOREIGN:
        first = count_guided_steps(request.guidance, request.guidance_interval, request.num_steps)
        try:
            window = request.window_frames
        except RequestError:  # the preset no longer exists
            window = None
        pairs = [
            (texts.seed, str(request.seed)),
            *pairs,
            (texts.steps, str(request.num_steps)),
            *([(texts.fact_strength, f"{request.strength:g}")] if request.strength is not None else []),
            (texts.fact_guidance, " / ".join(f"{value:g}" for value in request.guidance)),
            *([(texts.fact_guided_steps, str(first))] if first is not None and 0 < first < request.num_steps else []),
            *([(texts.fact_nag, f"{request.nag:g}")] if request.uses_nag else []),
            *([(texts.fact_windows, texts.fact_window_frames.format(frames=window))] if window else []),
            *([(texts.fact_shots, str(len(request.shots)))] if request.shots else []),
            *([(texts.characters, ", ".join(figure.name for figure in request.figures))] if request.figures else []),
            (texts.flow_shift, f"{request.flow_shift:g}"),
        ]
    if request.upscale:
        facts = {"scale": request.upscale, "name": upscaler_name(request), "width": request.width, "height": request.height}
        pairs.append((texts.fact_upscaled, texts.fact_upscaled_by.format(**facts)))
    seconds = [(name, result.seconds.get(key, 0.0)) for key, name in texts.stage_names]
    timings = [(name, format_duration(count)) for name, count in seconds if count >= 0.005]
    lists = f'<dl class="settings">{pairs_html(pairs)}</dl><dl class="timings">{pairs_html(timings)}</dl>'
    return f'<div class="facts">{lists}</div>'


def _player_html(view: StageView, texts: Texts) -> str:
    """Render the player: play, previous and next frame, position over the audio waveform, loop and volume.

    The page's script updates the player, and stores the volume and whether the audio is on.
    """
    result = view.result
    facts = f'data-fps="{result.fps}" data-frames="{result.num_frames}"' if result else ""
    has_sound = bool(result and result.has_sound)
    hidden, words, refused = _hidden_attribute(not has_sound), escape(texts.sound), escape(texts.sound_refused)
    sound = sound_button(texts.sound, f'data-player="sound" data-words="{words}" data-refused-words="{refused}"{hidden}')
    return (
        f'<div class="player" {facts} data-sound="{str(has_sound).lower()}"{_hidden_attribute(not result)}>'
        f"{_player_button('back', texts.frame_back)}{play_button(texts, _PLAYS)}{_player_button('forward', texts.frame_forward)}"
        f'<span class="scrubber"><canvas class="wave" aria-hidden="true"{hidden}></canvas>'
        f'<input type="range" min="0" max="{result.num_frames - 1 if result else 1}" step="1"'
        f' value="0" data-player="scrub" aria-label="{escape(texts.scrub)}"></span><output></output>'
        f"{_player_button('loop', texts.loop, is_pressed=True)}{sound}"
        f'<input type="range" class="volume" min="0" max="100" step="1" data-player="volume"'
        f' aria-label="{escape(texts.volume)}"{hidden}></div>'
    )


def _player_button(name: str, label: str, is_pressed: bool = False) -> str:
    pressed = ' aria-pressed="true"' if is_pressed else ""
    return quiet_button(name, label, f'data-player="{name}"{pressed}')


def _actions_html(view: StageView, job: Job | None, texts: Texts, model: Model) -> str:
    if job and view.is_held:
        return f'<div class="actions">{text_button("queue:go_on", texts.resume_job, name="play", job=job.id)}</div>'
    if not job or view.is_active or view.phase == "idle":
        return '<div class="actions" hidden></div>'
    buttons = [text_button("again:same", texts.same_again, name="again", job=job.id)]
    if job.request.preset != FOREIGN:
        buttons.append(text_button("again:seed", texts.new_seed, name="dice", job=job.id))
    group = "fill" if job.request.is_from_pictures else "edit"
    proposals = []
    for one in view.proposals:  # settings that fit into memory; a press copies them to the form and queues no video
        words = texts.fits.format(width=one.width, height=one.height, frames=one.num_frames)
        value = f"{one.width}x{one.height}x{one.num_frames}"
        proposals.append(text_button(f"{group}:fits", words, name="use", hint=texts.fits_hint, job=job.id, value=value))
    buttons = proposals + buttons
    if result := view.result:
        file = escape(f"{job.request.preset}-{job.request.seed}{PurePath(result.path).suffix}")
        download = f'<a id="download" href="{media_url(job, result.path)}" download="{file}">{icon("download")}'
        buttons = [
            f"{download}<span>{escape(texts.download)}</span></a>{sound_download(job, result, texts)}{export_menu(job, texts)}",
            upscale_menu(job, model.offers, texts),
            *buttons,
            *_video_buttons(job, result, group, texts, model),
        ]
    return f'<div class="actions">{"".join(buttons)}</div>'


def sound_download(job: Job, result: VideoResult, texts: Texts) -> str:
    """Render the link to the video's audio file, "" for a silent video."""
    if not result.has_sound:
        return ""
    name = f"{job.request.preset}-{job.request.seed}.wav"
    return (
        f'<a class="sound-download" href="{sound_url(job)}" download="{escape(name)}">{icon("sound")}'
        f"<span>{escape(texts.download_sound)}</span></a>"
    )


def _video_buttons(job: Job, result: VideoResult, group: str, texts: Texts, model: Model) -> list[str]:
    one, is_ours = {"job": job.id}, job.request.preset != FOREIGN
    hint = texts.full_quality_hint.format(title=model.full_title)
    full = [text_button(f"{group}:full", texts.full_quality, name="quality", hint=hint, **one)] if model.full_title else []
    original = text_button("compare:original", texts.compare_original, name="compare", **one) if job.request.has_original else ""
    numbers = () if needs_only_cutting(job.request) else range(2, len(job.request.shots) + 1)
    words = {"name": "dice", "hint": texts.from_shot_hint, "job": job.id}
    small = [  # the buttons with only an icon stay together when the row wraps
        icon_button("queue:star", "star", texts.star, **one, on=str(job.is_starred).lower()),
        icon_button("compare:add", "compare", texts.add_compare, **one),
        icon_button("queue:delete", "bin", texts.delete, **one),
    ]
    if is_ours:
        seed = quiet_button("pin", texts.keep_seed, 'data-action="keep_seed"')
        small = [seed, icon_button(f"{group}:use", "use", texts.use_settings, **one), *small]
    return [
        original,
        *full,
        *[text_button("again:shot", texts.from_shot.format(index=number), value=str(number), **words) for number in numbers],
        *([continue_button(job, texts)] if is_ours else []),
        add_to_storyboard_button(job, result, texts),
        text_button("edit:clip", texts.edit_this, name="edit", hint=texts.edit_this_hint, **one),
        f'<span class="small">{"".join(small)}</span>',
    ]


def continue_button(job: Job, texts: Texts) -> str:
    """Render the button that continues the video. If the model cannot extend audio, the new video starts at the last frame."""
    try:
        preset = job.request.resolved_preset
        extends_audio = preset.makes_sound and "after" in extend_directions(preset)
    except RequestError:
        extends_audio = False
    act, hint = ("edit", texts.continue_sound_hint) if extends_audio else ("fill", texts.continue_hint)
    return text_button(f"{act}:continue", texts.continue_video, name="go_on", hint=hint, job=job.id)


def add_to_storyboard_button(job: Job, result: VideoResult, texts: Texts) -> str:
    """Render the button that adds the video to the storyboard as a finished shot. `storyboard.js` reads its `data-take`."""
    shot = {"job": job.id, "frames": result.num_frames, "fps": result.fps, "first": 0, "prompt": job.request.prompt}
    shot |= {"video": media_url(job, result.path), "poster": media_url(job, POSTER)}
    return (
        f'<button type="button" data-view="create" data-take="{escape(json.dumps(shot, ensure_ascii=False))}"'
        f' title="{escape(texts.add_to_storyboard_hint)}">{icon("list")}<span>{escape(texts.add_to_storyboard)}</span></button>'
    )


def _hidden_attribute(is_hidden: bool) -> str:
    return " hidden" if is_hidden else ""

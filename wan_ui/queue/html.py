"""Render the queue: running jobs, waiting jobs grouped by compiled shape, and recently ended jobs. Without side effects."""

from dataclasses import dataclass
from html import escape
from itertools import groupby

from backend.engine.disk import Shortage
from backend.engine.estimate import Estimate
from backend.engine.job import ListedJob
from backend.schemas.shape import Shape
from wan_ui.components.buttons import icon_button
from wan_ui.components.progress import StageView, format_duration, interruption_place_text
from wan_ui.components.values import video_name
from wan_ui.i18n.details import translate_detail
from wan_ui.i18n.english import Texts
from wan_ui.services.media import media_url


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A job in the queue. Only waiting jobs have a `shape` and an estimate.

    `wait` is the estimated seconds until the job ends, None if unknown. `place` is its position in the whole queue, from 1.
    """

    job: ListedJob
    view: StageView
    shape: Shape | None = None
    is_warm: bool = False
    place: int = 0
    wait: float | None = None
    estimate: Estimate | None = None


@dataclass(frozen=True, kw_only=True)
class Queue:
    """The queue, or the part that one visitor sees. `others` is the number of waiting videos of other visitors.

    `shortage` is the missing disk space for which the queue waits.
    """

    running: tuple[Entry, ...] = ()
    waiting: tuple[Entry, ...] = ()
    recent: tuple[Entry, ...] = ()
    others: int = 0
    shortage: Shortage | None = None


def queue_html(queue: Queue, texts: Texts) -> str:
    is_empty = not (queue.running or queue.waiting)
    empty = f'<p class="hint">{escape(texts.queue_empty)}</p>' if is_empty and not queue.recent else ""
    pause = ""
    if queue.shortage:
        free, needed = (f"{size / 1e9:.1f} GB" for size in (queue.shortage.free, queue.shortage.needed))
        words = texts.disk_short.format(free=free, needed=needed) if queue.shortage.needed else texts.disk_full
        pause = f'<p class="pause" role="alert">{escape(words)}</p>'
    words = texts.queue_others_one if queue.others == 1 else texts.queue_others.format(count=queue.others)
    others = f'<p class="hint">{escape(words)}</p>' if queue.others else ""
    groups = []
    for shape, entries in groupby(queue.waiting, key=lambda entry: entry.shape):
        entries = tuple(entries)
        assert shape is not None, "a waiting job has a shape"
        size = texts.queue_group.format(width=shape.width, height=shape.height, frames=shape.num_frames)
        state = texts.queue_warm if entries[0].is_warm else texts.estimate_compiles_unknown
        waits = [entry.wait for entry in entries if entry.wait is not None]
        known = len(waits) == len(entries)
        wait = f" · {texts.queue_wait.format(seconds=format_duration(max(waits)))}" if known else ""
        groups.append(
            f'<h3 class="group" data-warm="{"true" if entries[0].is_warm else "false"}"><b>{escape(size)}</b>'
            f"<span>{escape(state + wait)}</span></h3>{_list_html(entries, texts)}"
        )
    count = len(queue.running) + len(queue.waiting)
    recent = f"<h3>{escape(texts.queue_recent)}</h3>" + _list_html(queue.recent, texts) if queue.recent else ""
    return (
        f'<section class="queue" data-count="{count}" aria-label="{escape(texts.queue_title)}">'
        f"<h2>{escape(texts.queue_title)}</h2>{pause}{empty}{_list_html(queue.running, texts)}"
        f"{''.join(groups)}"
        f"{others}{recent}</section>"
    )


def _list_html(entries: tuple[Entry, ...], texts: Texts) -> str:
    return f"<ol>{''.join(_item_html(entry, texts) for entry in entries)}</ol>" if entries else ""


def _item_html(entry: Entry, texts: Texts) -> str:
    job, request = entry.job, entry.job.summary
    label = escape(texts.queue_show.format(prompt=video_name(request, texts)))
    steps = texts.queue_steps_one if request.num_steps == 1 else texts.queue_steps
    facts = steps.format(steps=request.num_steps, seed=request.seed)
    percent = round(entry.view.fraction * 100)
    bar = f'<div class="bar"><i style="width: {percent}%"></i></div>' if job.state == "running" else ""
    thumbnail = f'<i class="thumb">{entry.place or ""}</i>'
    if job.state == "running" and entry.view.preview:
        thumbnail = f'<img src="{media_url(job, entry.view.preview)}" alt="">'
    elif job.has_video:
        thumbnail = f'<img src="{media_url(job, "poster.webp")}" alt="" loading="lazy">'
    match job.state:
        case "queued":
            buttons = [icon_button("queue:go_on", "play", texts.resume_job, job=job.id)] if entry.view.is_held else []
            buttons.append(icon_button("queue:up", "up", texts.queue_up, job=job.id))
            buttons.append(icon_button("queue:down", "down", texts.queue_down, job=job.id))
            if request.is_from_pictures and not request.is_upscaling:
                buttons.append(icon_button("fill:edit", "edit", texts.queue_edit, job=job.id))
            buttons.append(icon_button("again:same", "copy", texts.queue_duplicate, job=job.id))
            buttons.append(icon_button("queue:cancel", "cross", texts.queue_cancel, job=job.id))
        case "running":
            buttons = [icon_button("again:same", "copy", texts.queue_duplicate, job=job.id)]
            buttons.append(icon_button("queue:cancel", "stop", texts.queue_stop, job=job.id))
        case _:
            buttons = [icon_button("again:same", "again", texts.same_again, job=job.id)]
    return (
        f'<li data-job="{escape(job.id)}" data-state="{job.state}">'
        f'<button type="button" class="main" data-act="show:show" data-job="{escape(job.id)}" title="{label}">'
        f'{thumbnail}<span class="words"><b>{escape(video_name(request, texts))}</b>'
        f"<small>{escape(_state_text(entry, texts) or facts)}</small>"
        f'{bar}</span></button><span class="buttons">{"".join(buttons)}</span></li>'
    )


def _state_text(entry: Entry, texts: Texts) -> str:
    """Return the job's state in a few words, "" for a waiting job."""
    view = entry.view
    match entry.job.state:
        case "queued" if view.interrupted_at:
            return f"{texts.interrupted} · {interruption_place_text(view.interrupted_at, texts)}"
        case "running":
            if view.phase == "denoising":
                left = f" · {texts.time_left.format(seconds=format_duration(view.seconds_left))}" if view.seconds_left else ""
                return texts.denoising_step.format(index=view.index, total=view.total) + left
            words = {"loading": texts.loading, "encoding": texts.encoding, "decoding": texts.decoding, "live": texts.live_on}
            words["upscaling"] = texts.upscaling
            words["compiling"] = texts.compiling.format(what=translate_detail(view.what, texts))
            return words.get(view.phase, texts.starting)
        case "finished":
            return texts.finished.format(seconds=format_duration(entry.job.made_seconds or 0.0)) if entry.job.has_video else ""
        case "cancelled":
            return texts.cancelled
        case "failed":
            return texts.failed
    return ""

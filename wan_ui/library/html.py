"""Render the library: a grid of videos, and the details of the selected video. The functions have no side effects."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import PurePath

from backend.engine.job import Job, ListedJob
from backend.engine.projects import Project
from backend.schemas.events import VIDEO_FILE, VideoResult
from backend.schemas.upscaling import FOREIGN
from wan_ui.components.buttons import icon_button, text_button
from wan_ui.components.icons import icon
from wan_ui.components.progress import format_duration
from wan_ui.components.values import format_rate, format_value, pairs_html, video_name
from wan_ui.i18n.english import Texts
from wan_ui.library.projects import project_and_tags_html
from wan_ui.services.exports import export_menu
from wan_ui.services.media import media_url
from wan_ui.services.upscaling import UpscaleOffer, upscale_menu
from wan_ui.stage.html import add_to_storyboard_button, continue_button, sound_download


@dataclass(frozen=True, kw_only=True)
class LibraryContent:
    """The grid's content. `count` is the number of all fitting videos, `chosen` the selected job, `sounding` jobs with audio."""

    jobs: tuple[ListedJob, ...]
    count: int
    chosen: str = ""
    is_filtered: bool = False
    sounding: frozenset[str] = frozenset()


def library_html(content: LibraryContent, texts: Texts) -> str:
    count = texts.library_count_one if content.count == 1 else texts.library_count.format(count=content.count)
    if not content.jobs:
        words = texts.library_none if content.is_filtered else texts.library_empty
        return f'<section class="library"><p class="hint empty">{escape(words)}</p></section>'
    cards = "".join(_card_html(job, content, texts) for job in content.jobs)
    more = f'<p class="more">{text_button("choose:more", texts.library_more)}</p>' if content.count > len(content.jobs) else ""
    return (
        f'<section class="library"><p class="count">{escape(count)}</p>'
        f'<ul aria-label="{escape(count)}">{cards}</ul>{more}</section>'
    )


def _card_html(job: ListedJob, content: LibraryContent, texts: Texts) -> str:
    request, one, is_chosen, sounds = job.summary, {"job": job.id}, job.id == content.chosen, job.id in content.sounding
    named = video_name(request, texts)
    label = f"{named}{texts.list_separator}{texts.with_sound}" if sounds else named
    ratio, words = f"{request.width / request.height:.4f}", escape(texts.with_sound)
    mark = f'<span class="sound-mark" role="img" aria-label="{words}" title="{words}">{icon("sound")}</span>' if sounds else ""
    if job.deleted:
        buttons = icon_button("queue:restore", "again", texts.restore, **one)
    else:
        buttons = (
            icon_button("queue:star", "star", texts.star, **one)
            + icon_button("compare:add", "compare", texts.add_compare, **one)
            + icon_button("queue:delete", "bin", texts.delete, **one)
        )
    return (
        f'<li data-job="{escape(job.id)}" data-starred="{"true" if job.is_starred else "false"}">'
        f'<button type="button" class="card" aria-pressed="{"true" if is_chosen else "false"}" data-act="choose:choose"'
        f' data-job="{escape(job.id)}" aria-label="{escape(label)}"><span class="tile" style="--ratio: {ratio}">'
        f'<img src="{media_url(job, "poster.webp")}" alt="" loading="lazy">'
        f'<video muted loop playsinline preload="none" data-src="{media_url(job, VIDEO_FILE)}"></video>{mark}</span>'
        f'<span class="name">{escape(named)}</span></button><span class="buttons">{buttons}</span></li>'
    )


def detail_html(
    job: Job | None,
    result: VideoResult | None,
    texts: Texts,
    owner: str = "",
    projects: Sequence[Project] = (),
    offers: Sequence[UpscaleOffer] = (),
) -> str:
    """Render the details of one video. `owner` is the video's owner, "" unless the visitor is the operator."""
    if job is None or result is None:
        return f'<aside class="detail"><p class="hint empty">{escape(texts.library_choose)}</p></aside>'
    label = escape(texts.video_label.format(prompt=video_name(job.request, texts)))
    created = datetime.fromtimestamp(job.created, UTC)
    owned = f"<p>{escape(texts.library_owner.format(owner=owner))}</p>" if owner else ""
    rates = [(name, format_rate(result.rates[key], texts)) for key, name in texts.stage_names if key in result.rates]
    arithmetic = f"<h2>{escape(texts.compare_rates)}</h2><dl>{pairs_html(rates)}</dl>" if rates else ""
    seconds = [(name, format_duration(result.seconds[key])) for key, name in texts.stage_names if key in result.seconds]
    # All fields of the request, with the names that files and the API use
    fields = [(name, value) for name, value in job.request.for_sharing().items() if name != "prompt"]
    wanted = [(name, format_value(value)) for name, value in fields if value not in (None, "", [])]
    return (
        f'<aside class="detail" data-job="{escape(job.id)}"><video controls muted loop playsinline autoplay'
        f' src="{media_url(job, result.path)}" aria-label="{label}"></video>'
        f'<p class="prompt">{escape(video_name(job.request, texts))}</p>'
        f"{_action_buttons_html(job, result, texts, bool(owner), offers)}"
        f"<p>{escape(texts.library_made.format(when=f'{created:%Y-%m-%d %H:%M}'))}</p>{owned}"
        f"{project_and_tags_html(job, projects, texts)}"
        f"<h2>{escape(texts.library_request)}</h2><dl>{pairs_html(wanted)}</dl>"
        f"<h2>{escape(texts.shot_seconds)}</h2><dl>{pairs_html(seconds)}</dl>{arithmetic}"
        f"<h2>{escape(texts.library_versions)}</h2><dl>{pairs_html(sorted(result.versions.items()))}</dl></aside>"
    )


def _action_buttons_html(job: Job, result: VideoResult, texts: Texts, is_operator: bool, offers: Sequence[UpscaleOffer]) -> str:
    one, group = {"job": job.id}, "fill" if job.request.is_from_pictures else "edit"
    name = f"{job.request.preset}-{job.request.seed}{PurePath(result.path).suffix}"
    if job.deleted:
        return f'<div class="actions">{text_button("queue:restore", texts.restore, name="again", **one)}</div>'
    made_here = (
        f"{text_button(f'{group}:use', texts.use_settings, name='use', **one)}"
        f"{text_button('again:seed', texts.new_seed, name='dice', **one)}{continue_button(job, texts)}"
        if job.request.preset != FOREIGN
        else ""
    )
    return (
        f'<div class="actions">{text_button("show:show", texts.show, name="show", **one)}'
        f"{made_here}"
        f"{text_button('edit:clip', texts.edit_this, name='edit', hint=texts.edit_this_hint, **one)}"
        f"{add_to_storyboard_button(job, result, texts)}"
        f'<a href="{media_url(job, result.path)}" download="{escape(name)}">{icon("download")}'
        f"<span>{escape(texts.download)}</span></a>{sound_download(job, result, texts)}{export_menu(job, texts)}"
        f"{upscale_menu(job, offers, texts)}"
        f"{text_button('choose:folder', texts.open_folder, name='show', **one) if is_operator else ''}</div>"
    )

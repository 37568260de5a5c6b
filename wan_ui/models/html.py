"""Render the models as cards. Only the operator sees models that can be downloaded, and buttons. Without side effects."""

from collections.abc import Sequence
from html import escape

from backend.catalog.catalog import required_licences
from backend.catalog.models import ModelRow
from presets import Preset
from presets.loader import VARIANTS
from wan_ui.components.buttons import text_button
from wan_ui.components.field_errors import shorten_paths
from wan_ui.components.progress import format_duration
from wan_ui.components.values import format_bytes, pairs_html
from wan_ui.i18n.english import Texts
from wan_ui.services.caller import Caller


def models_html(rows: Sequence[ModelRow], caller: Caller) -> str:
    texts, groups = caller.texts, {"here": list[ModelRow](), "elsewhere": list[ModelRow](), "coming": list[ModelRow]()}
    for row in rows:
        groups.get(_model_state(row), groups["coming"]).append(row)
    titled = [(texts.models_here, groups["here"])]
    if caller.is_operator:
        coming, others = (texts.models_downloading, groups["coming"]), (texts.models_available, groups["elsewhere"])
        titled = [coming, *titled, others]
    drawn = ""
    for title, members in titled:
        models = sum(row.entry.kind == "model" for row in members)
        count = texts.models_count.format(models=models, loras=len(members) - models)
        if members:
            cards = "".join(_card_html(row, caller) for row in members)
            drawn += f"<h2>{escape(title)} <small>{escape(count)}</small></h2><ul>{cards}</ul>"
    hint = texts.models_operator if caller.is_operator else texts.models_visitor
    busy = "true" if any(row.download and row.download.is_active for row in rows) else "false"
    # A visitor's cards have no buttons, so the keyboard can scroll them only if the section takes the focus.
    attributes = f'class="models" tabindex="0" aria-label="{escape(texts.view_models)}" data-busy="{busy}"'
    return f'<section {attributes}><p class="hint">{escape(hint)}</p>{drawn}</section>'


def short_name(source: str) -> str:
    return source.rpartition("/")[2].rpartition(":")[2]


def _card_html(row: ModelRow, caller: Caller) -> str:
    entry, texts, verdict = row.entry, caller.texts, ""
    title = short_name(entry.source) if entry.kind == "lora" else _plain_preset(entry.presets).words(texts.language).title
    if row.outlook is not None:
        words = dict(texts.model_verdicts)[row.outlook.verdict]
        if row.recommended and row.estimated_from:
            words = texts.model_estimated.format(preset=row.recommended, slice=row.estimated_from)
        elif row.recommended:
            words = texts.model_recommended.format(preset=row.recommended)
        verdict = f'<span class="verdict" data-verdict="{row.outlook.verdict}">{escape(words)}</span>'
    return (
        f'<li data-model="{escape(entry.source)}" data-state="{_model_state(row)}">'
        f'<p class="head"><b>{escape(title)}</b>'
        f'{verdict}</p><p class="source">{escape(entry.source)}</p><dl>{pairs_html(_model_facts(row, texts))}</dl>'
        f"{_progress_html(row, texts)}{_buttons_html(row, caller)}</li>"
    )


def _plain_preset(presets: Sequence[Preset]) -> Preset:
    return next((preset for preset in presets if preset.name.rpartition("-")[2] not in VARIANTS), presets[0])


def _model_state(row: ModelRow) -> str:
    if row.download is not None and (row.download.is_active or not row.entry.is_here):
        return row.download.phase
    if row.entry.is_here:
        return "here"
    return "paused" if row.entry.begun_bytes or row.total_bytes else "elsewhere"


def _model_facts(row: ModelRow, texts: Texts) -> list[tuple[str, str]]:
    entry, outlook, disk = row.entry, row.outlook, texts.model_disk_unknown
    if entry.num_bytes is not None or row.total_bytes:
        disk = format_bytes(row.total_bytes if entry.num_bytes is None else entry.num_bytes)
    elif row.weight_bytes:
        disk = texts.model_disk_least.format(size=format_bytes(row.weight_bytes))
    facts = [(texts.model_disk, disk)]
    if entry.kind == "model":
        memory, smallest = texts.model_unknown, texts.model_anywhere
        if row.weight_bytes:
            memory = texts.model_weights.format(size=format_bytes(row.weight_bytes))
            if outlook and outlook.memory_bytes is not None:
                memory += f"; {texts.model_memory_total.format(size=format_bytes(outlook.memory_bytes))}"
        if entry.is_on_hub and outlook and (found := outlook.smallest):
            seconds = format_duration(found.step_seconds)
            smallest = texts.model_slice_found.format(slice=found.slice, preset=found.preset, gib=found.gib, seconds=seconds)
        elif entry.is_on_hub:
            smallest = texts.model_slice_unknown.format(preset=_plain_preset(entry.presets).name)
        unnamed = texts.model_licence_hub if entry.is_on_hub else texts.model_licence_ours
        licence = " ".join(required_licences(entry.source)) or unnamed
        facts += [(texts.model_memory, memory), (texts.model_slice, smallest), (texts.model_licence, licence)]
    return [*facts, (texts.model_presets, ", ".join(preset.name for preset in entry.presets))]


def _progress_html(row: ModelRow, texts: Texts) -> str:
    if _model_state(row) in ("here", "elsewhere"):
        return ""
    download, role = row.download, "status"
    done, total = row.entry.begun_bytes, row.total_bytes
    if download is not None and download.bytes_done:
        done, total = download.bytes_done, download.bytes_total
    percent = round(100 * done / total) if total else 0
    share = texts.model_share.format(done=format_bytes(done), total=format_bytes(total)) if total else format_bytes(done)
    if download is None:
        words = texts.model_paused.format(share=share)
    elif download.phase == "failed":
        role, words = "alert", shorten_paths(f"{download.cause}; {download.fix}")
    elif download.phase != "running":
        words = dict(texts.model_phases)[download.phase]
    elif speed := download.bytes_per_second:
        left = texts.time_left.format(seconds=format_duration((total - done) / speed))
        words = " · ".join([share, f"{format_bytes(speed)}/s", left])
    else:
        words = share
    return (
        f'<div class="bar" role="progressbar" aria-label="{escape(short_name(row.entry.source))}" aria-valuemin="0"'
        f' aria-valuemax="100" aria-valuenow="{percent}"><i style="width: {percent}%"></i></div>'
        f'<p class="line" role="{role}">{escape(words)}</p>'
    )


def _buttons_html(row: ModelRow, caller: Caller) -> str:
    if not caller.is_operator or not row.entry.is_on_hub:
        return ""
    texts, one = caller.texts, {"value": row.entry.source}
    remove = text_button("model:ask", texts.model_remove, name="bin", **one)
    match _model_state(row):
        case "here":
            buttons = remove
        case "waiting" | "asking" | "running":
            buttons = text_button("model:pause", texts.pause, name="pause", **one)
        case "pausing":
            buttons = ""
        case "paused":
            buttons = text_button("model:fetch", texts.model_resume, name="download", **one) + remove
        case "failed":
            buttons = text_button("model:fetch", texts.model_retry, name="again", **one)
            buttons += text_button("model:pause", texts.model_dismiss, **one)
            buttons += remove if row.entry.begun_bytes or row.total_bytes else ""
        case _:
            buttons = text_button("model:fetch", texts.download, name="download", **one)
    return f'<div class="actions">{buttons}</div>'

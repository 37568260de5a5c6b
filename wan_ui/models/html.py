"""Render the models as cards. The functions have no side effects.

Visitors see the installed models. The operator also sees models that can be downloaded, and buttons.
"""

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
    """Render the view for this visitor."""
    texts = caller.texts
    here = [row for row in rows if _model_state(row) == "here"]
    others = [row for row in rows if _model_state(row) == "elsewhere"]
    coming = [row for row in rows if _model_state(row) not in ("here", "elsewhere")]
    is_busy = any(row.download and row.download.is_active for row in rows)
    groups = [(texts.models_here, here)]
    if caller.is_operator:
        groups = [(texts.models_downloading, coming), *groups, (texts.models_available, others)]
    drawn = "".join(_group_html(title, members, caller) for title, members in groups if members)
    hint = texts.models_operator if caller.is_operator else texts.models_visitor
    busy = "true" if is_busy else "false"
    # A visitor's cards have no buttons, so the keyboard can scroll them only if the section takes the focus.
    attributes = f'class="models" tabindex="0" aria-label="{escape(texts.view_models)}" data-busy="{busy}"'
    return f'<section {attributes}><p class="hint">{escape(hint)}</p>{drawn}</section>'


def short_name(source: str) -> str:
    """Return the name of a model or LoRA without its owner."""
    return source.rpartition("/")[2].rpartition(":")[2]


def _group_html(title: str, rows: Sequence[ModelRow], caller: Caller) -> str:
    cards = "".join(_card_html(row, caller) for row in rows)
    models = sum(row.entry.kind == "model" for row in rows)
    count = caller.texts.models_count.format(models=models, loras=len(rows) - models)
    return f"<h2>{escape(title)} <small>{escape(count)}</small></h2><ul>{cards}</ul>"


def _card_html(row: ModelRow, caller: Caller) -> str:
    entry, texts = row.entry, caller.texts
    facts = pairs_html(_model_facts(row, texts))
    return (
        f'<li data-model="{escape(entry.source)}" data-state="{_model_state(row)}">'
        f'<p class="head"><b>{escape(_title(row, texts))}</b>'
        f'{_verdict_html(row, texts)}</p><p class="source">{escape(entry.source)}</p><dl>{facts}</dl>'
        f"{_progress_html(row, texts)}{_buttons_html(row, caller)}</li>"
    )


def _title(row: ModelRow, texts: Texts) -> str:
    if row.entry.kind == "lora":
        return short_name(row.entry.source)
    return _plain_preset(row.entry.presets).words(texts.language).title


def _plain_preset(presets: Sequence[Preset]) -> Preset:
    return next((preset for preset in presets if preset.name.rpartition("-")[2] not in VARIANTS), presets[0])


def _model_state(row: ModelRow) -> str:
    if row.download is not None and (row.download.is_active or not row.entry.is_here):
        return row.download.phase
    if row.entry.is_here:
        return "here"
    return "paused" if _is_partly_downloaded(row) else "elsewhere"


def _is_partly_downloaded(row: ModelRow) -> bool:
    return bool(row.entry.begun_bytes or row.total_bytes)


def _verdict_html(row: ModelRow, texts: Texts) -> str:
    if row.outlook is None:
        return ""
    words = dict(texts.model_verdicts)[row.outlook.verdict]
    if row.recommended:
        words = texts.model_recommended.format(preset=row.recommended)
        if row.estimated_from:
            words = texts.model_estimated.format(preset=row.recommended, slice=row.estimated_from)
    return f'<span class="verdict" data-verdict="{row.outlook.verdict}">{escape(words)}</span>'


def _model_facts(row: ModelRow, texts: Texts) -> list[tuple[str, str]]:
    facts = [(texts.model_disk, _disk_text(row, texts))]
    if row.entry.kind == "model":
        facts += [(texts.model_memory, _memory_text(row, texts)), (texts.model_slice, _slice_text(row, texts))]
        licence = " ".join(required_licences(row.entry.source)) or (
            texts.model_licence_hub if row.entry.is_on_hub else texts.model_licence_ours
        )
        facts += [(texts.model_licence, licence)]
    return [*facts, (texts.model_presets, ", ".join(preset.name for preset in row.entry.presets))]


def _disk_text(row: ModelRow, texts: Texts) -> str:
    if row.entry.num_bytes is not None:
        return format_bytes(row.entry.num_bytes)
    if row.total_bytes:
        return format_bytes(row.total_bytes)
    return texts.model_disk_least.format(size=format_bytes(row.weight_bytes)) if row.weight_bytes else texts.model_disk_unknown


def _memory_text(row: ModelRow, texts: Texts) -> str:
    if not row.weight_bytes:
        return texts.model_unknown
    words = texts.model_weights.format(size=format_bytes(row.weight_bytes))
    room = row.outlook.memory_bytes if row.outlook else None
    return words if room is None else f"{words}; {texts.model_memory_total.format(size=format_bytes(room))}"


def _slice_text(row: ModelRow, texts: Texts) -> str:
    if not row.entry.is_on_hub:
        return texts.model_anywhere
    found = row.outlook.smallest if row.outlook else None
    if found is None:
        return texts.model_slice_unknown.format(preset=_plain_preset(row.entry.presets).name)
    seconds = format_duration(found.step_seconds)
    return texts.model_slice_found.format(slice=found.slice, preset=found.preset, gib=found.gib, seconds=seconds)


def _progress_html(row: ModelRow, texts: Texts) -> str:
    if _model_state(row) in ("here", "elsewhere"):
        return ""
    done, total = _downloaded_bytes(row)
    percent = round(100 * done / total) if total else 0
    failed = row.download is not None and row.download.phase == "failed"
    words = shorten_paths(f"{row.download.cause}; {row.download.fix}") if failed else _progress_text(row, texts)
    role = "alert" if failed else "status"
    return (
        f'<div class="bar" role="progressbar" aria-label="{escape(short_name(row.entry.source))}" aria-valuemin="0"'
        f' aria-valuemax="100" aria-valuenow="{percent}"><i style="width: {percent}%"></i></div>'
        f'<p class="line" role="{role}">{escape(words)}</p>'
    )


def _downloaded_bytes(row: ModelRow) -> tuple[int, int]:
    if row.download is not None and row.download.bytes_done:
        return row.download.bytes_done, row.download.bytes_total
    return row.entry.begun_bytes, row.total_bytes


def _progress_text(row: ModelRow, texts: Texts) -> str:
    done, total = _downloaded_bytes(row)
    share = texts.model_share.format(done=format_bytes(done), total=format_bytes(total)) if total else format_bytes(done)
    if row.download is None:
        return texts.model_paused.format(share=share)
    if row.download.phase != "running":
        return dict(texts.model_phases)[row.download.phase]
    speed = row.download.bytes_per_second
    if not speed:
        return share
    left = format_duration((total - done) / speed)
    return " · ".join([share, f"{format_bytes(speed)}/s", texts.time_left.format(seconds=left)])


def _buttons_html(row: ModelRow, caller: Caller) -> str:
    if not caller.is_operator or not row.entry.is_on_hub:
        return ""
    texts, one = caller.texts, {"value": row.entry.source}
    remove = text_button("model:ask", texts.model_remove, name="bin", **one)
    match _model_state(row):
        case "here":
            buttons = [remove]
        case "waiting" | "asking" | "running":
            buttons = [text_button("model:pause", texts.pause, name="pause", **one)]
        case "pausing":
            buttons = []
        case "paused":
            buttons = [text_button("model:fetch", texts.model_resume, name="download", **one), remove]
        case "failed":
            again = text_button("model:fetch", texts.model_retry, name="again", **one)
            buttons = [
                again,
                text_button("model:pause", texts.model_dismiss, **one),
                *([remove] if _is_partly_downloaded(row) else []),
            ]
        case _:
            buttons = [text_button("model:fetch", texts.download, name="download", **one)]
    return f'<div class="actions">{"".join(buttons)}</div>'

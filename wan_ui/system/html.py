"""Render the state of the machine: devices, memory, model, compiled sizes, disk, versions, errors.

Visitors see no prompts and no folders of other visitors. Only the operator sees errors and the worker's log.
"""

import platform
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import gmtime, strftime, time
from typing import get_args

from backend.engine.cleaning import Category, Limits
from backend.engine.engine import Engine
from backend.engine.job import JobState
from backend.schemas.shape import Shape
from backend.schemas.worker import CacheAction, CachedModel, Device, WorkerView
from wan_ui.components.buttons import text_button
from wan_ui.components.field_errors import shorten_paths
from wan_ui.components.values import format_bytes, format_rate, pairs_html
from wan_ui.i18n.details import translate_detail
from wan_ui.i18n.english import Texts
from wan_ui.services.caller import Caller
from wan_ui.system.charts import DAY, charts_html

MOST_ERRORS = 8
LOG_LINES = 40
_LIBRARIES = ("jax", "jaxlib", "torch", "torchax", "diffusers", "transformers", "gradio")

Rows = tuple[tuple[str, str], ...]
Sections = tuple[tuple[str, Rows], ...]


@dataclass(frozen=True, kw_only=True)
class Report:
    """The content of the view: titled sections with rows, errors, and the log."""

    sections: Sections
    errors: tuple[str, ...]
    log: str = ""

    def text(self) -> str:
        """Return the whole report as one text, for a bug report."""
        parts = [f"{title}\n" + "\n".join(f"  {name}: {value}" for name, value in rows) for title, rows in self.sections]
        return "\n".join([*parts, "errors", *(f"  {error}" for error in self.errors), *([self.log] if self.log else [])])


def system_html(engine: Engine, caller: Caller) -> str:
    """Render the panel for this visitor."""
    texts = caller.texts
    report = build_report(engine, caller)
    buttons = _operator_buttons(engine.pool.workers(), texts) if caller.is_operator else {}
    sections = "".join(
        f"<section><h2>{escape(title)}</h2><dl>{pairs_html(rows)}</dl>{buttons.get(title, '')}</section>"
        for title, rows in report.sections
    )
    errors = "".join(f"<li>{escape(error)}</li>" for error in report.errors) or f"<li>{escape(texts.system_no_errors)}</li>"
    log = _log_html(report, texts)
    who = texts.system_operator if caller.is_operator else texts.system_visitor
    return (
        f'<section class="system"><p class="row"><span class="hint">{escape(who)}</span>'
        f'<button type="button" data-copy-text="{escape(report.text())}" data-said="{escape(texts.system_copied)}"'
        f' data-by-hand="{escape(texts.copy_by_hand)}">'
        f"{escape(texts.system_copy)}</button></p><div class=sections>{sections}"
        f"{charts_html(engine.history.samples_since(DAY), time(), texts)}"
        f"<section class=wide><h2>{escape(texts.system_errors)}</h2><ul>{errors}</ul></section>{log}</div></section>"
    )


def _operator_buttons(workers: Sequence[WorkerView], texts: Texts) -> dict[str, str]:
    """Return the operator's buttons by the title of their section."""
    kept = {title: _cached_models_html(worker, texts) for title, worker in _titled_workers(workers, texts)}
    return kept | {texts.system_storage: text_button("clean:now", texts.system_clean, hint=texts.system_clean_hint)}


def _cached_models_html(worker: WorkerView, texts: Texts) -> str:
    """Render the cached models with their buttons. The current model cannot be unloaded."""

    def button(how: CacheAction, label: str, hint: str, model: CachedModel) -> str:
        return text_button(f"keep:{how}", label, hint=hint, job=worker.name, value=model.model)

    rows = []
    for model in worker.facts.cached_models:
        unpin, pin = (
            (texts.system_allow_unload, texts.system_allow_unload_hint),
            (texts.system_keep_loaded, texts.system_keep_loaded_hint),
        )
        buttons = button("unpin", *unpin, model) if model.is_pinned else button("pin", *pin, model)
        if model.model != worker.facts.model:
            buttons += button("drop", texts.system_unload, texts.system_unload_hint, model)
        rows.append(f'<p class="kept"><span>{escape(Path(model.model).name)}</span>{buttons}</p>')
    return "".join(rows)


def _log_html(report: Report, texts: Texts) -> str:
    if not report.log:
        return ""
    return f"<section class=wide><h2>{escape(texts.system_log)}</h2><pre>{escape(report.log)}</pre></section>"


def build_report(engine: Engine, caller: Caller) -> Report:
    """Build the report, in the order of the view."""
    texts = caller.texts
    return Report(
        sections=(
            *_worker_sections(engine.pool.workers(), texts, caller.is_operator),
            (texts.system_storage, _storage_rows(engine, texts)),
            (texts.system_jobs, _job_rows(engine.library.counts(), texts)),
            (texts.system_versions, _version_rows()),
        ),
        errors=_recent_errors(engine) if caller.is_operator else (),
        log=_log_tails(engine.pool.workers()) if caller.is_operator else "",
    )


def _worker_sections(workers: Sequence[WorkerView], texts: Texts, is_operator: bool) -> Sections:
    """Return a section for the devices and a section for the worker.

    For several workers, return a section for each worker, with its devices. Only the operator sees the names of nodes.
    Without workers, return a section that states that no worker has connected.
    """
    if not workers:
        return ((texts.system_worker, ((texts.system_worker, texts.worker_none),)),)
    if _has_one_local_worker(workers):
        return (texts.system_devices, _device_rows(workers[0], texts)), (texts.system_worker, _worker_rows(workers[0], texts))
    return tuple(
        (title, _node_rows(worker, texts, is_operator) + _device_rows(worker, texts) + _worker_rows(worker, texts))
        for title, worker in _titled_workers(workers, texts)
    )


def _has_one_local_worker(workers: Sequence[WorkerView]) -> bool:
    return len(workers) == 1 and not workers[0].machine


def _titled_workers(workers: Sequence[WorkerView], texts: Texts) -> list[tuple[str, WorkerView]]:
    """Return each worker with the title of its section."""
    if _has_one_local_worker(workers):
        return [(texts.system_worker, workers[0])]
    return [(f"{texts.system_worker} {number}", worker) for number, worker in enumerate(workers, 1)]


def _node_rows(worker: WorkerView, texts: Texts, is_operator: bool) -> Rows:
    return ((texts.system_machine, f"{worker.machine} ({worker.name})"),) if worker.machine and is_operator else ()


def _worker_rows(worker: WorkerView, texts: Texts) -> Rows:
    facts, status = worker.facts, worker.status
    warm = tuple(sorted({_shape_text(shape, texts) for shape in facts.warm})) or (texts.system_no_shapes,)
    model = Path(facts.model).name if facts.model else texts.system_no_model
    state = getattr(texts, f"worker_{status.state}")
    detail = "" if status.state in ("ready", "busy") else f": {translate_detail(shorten_paths(status.detail), texts)}"
    without = ((texts.system_fallbacks, " ".join(f"{sentence}." for sentence in facts.refused)),) if facts.refused else ()
    names = dict(texts.stage_names)
    rates = "; ".join(f"{names[stage]} {format_rate(rate, texts)}" for stage, rate in facts.rates.items())
    last = ((texts.system_rates, rates),) if rates else ()
    rows = (texts.system_worker, state + detail), (texts.system_model, model), *_cached_model_rows(worker, texts)
    return (*rows, (texts.system_shapes, "; ".join(warm)), *last, *without)


def _cached_model_rows(worker: WorkerView, texts: Texts) -> Rows:
    """Return rows with the total memory of the cached models (shared networks counted once), and the memory of each."""
    facts = worker.facts
    if not facts.cached_models:
        return ()
    return (
        (texts.system_cached_models, _sizes_text(*facts.cached_bytes, texts)),
        *((_cached_model_name(one, texts), _sizes_text(one.chip_bytes, one.host_bytes, texts)) for one in facts.cached_models),
    )


def _cached_model_name(model: CachedModel, texts: Texts) -> str:
    name = Path(model.model).name
    return f"{name} ({texts.system_kept_loaded})" if model.is_pinned else name


def _sizes_text(chips: int, host: int, texts: Texts) -> str:
    words = texts.system_cached_both if chips and host else texts.system_cached_host if host else texts.system_cached_chips
    return words.format(chips=format_bytes(chips), host=format_bytes(host))


def _device_rows(worker: WorkerView, texts: Texts) -> Rows:
    rows = tuple((device.name, _device_text(device, texts)) for device in worker.facts.devices)
    notice = worker.facts.notice
    return rows if notice is None else (*rows, (texts.system_not_used, str(notice)))


def _device_text(device: Device, texts: Texts) -> str:
    if device.bytes_in_use is None or not device.bytes_limit:
        return f"{device.kind}, {texts.system_memory_unknown}"
    used, limit = format_bytes(device.bytes_in_use), format_bytes(device.bytes_limit)
    return f"{device.kind}, {texts.system_memory.format(used=used, limit=limit)}"


def _shape_text(shape: Shape, texts: Texts) -> str:
    guided = texts.system_guided if shape.is_guided else texts.system_unguided
    return texts.system_shape.format(
        task=shape.task, width=shape.width, height=shape.height, frames=shape.num_frames, guided=guided
    )


def _storage_rows(engine: Engine, texts: Texts) -> Rows:
    usage: dict[str, int] = {**engine.cleaner.usage()}
    return (
        *((name, format_bytes(usage[part])) for part, name in texts.system_parts),
        (texts.system_disk, format_bytes(shutil.disk_usage(engine.settings.data_dir).free)),
        (texts.system_limits, _limits_text(engine.cleaner.limits, texts)),
    )


def _limits_text(limits: Limits, texts: Texts) -> str:
    days_text = texts.system_limit_days_one if limits.days == 1 else texts.system_limit_days
    days = "" if limits.days is None else days_text.format(days=limits.days)
    size = "" if limits.gigabytes is None else texts.system_limit_size.format(gigabytes=limits.gigabytes)
    if days and size:
        return texts.system_limit_both.format(days=days, size=size)
    return days or size or texts.system_limit_none


def freed_space_text(freed: Mapping[Category, int], texts: Texts) -> str:
    """Return a sentence with the bytes that the cleaning deleted, in total and by part."""
    if not freed:
        return texts.system_cleaned_nothing
    sizes: dict[str, int] = {**freed}
    parts = [f"{name} {format_bytes(sizes[part])}" for part, name in texts.system_parts if part in sizes]
    return texts.system_cleaned.format(size=format_bytes(sum(freed.values())), parts=texts.list_separator.join(parts))


def _job_rows(counts: Mapping[str, int], texts: Texts) -> Rows:
    return tuple((getattr(texts, f"job_{state}"), str(counts[state])) for state in get_args(JobState) if state in counts)


def _version_rows() -> Rows:
    rows = [("python", platform.python_version())]
    for name in _LIBRARIES:
        try:
            rows.append((name, version(name)))
        except PackageNotFoundError:
            continue
    return tuple(rows)


def _recent_errors(engine: Engine) -> tuple[str, ...]:
    return tuple(
        f"{strftime('%Y-%m-%d %H:%M:%S', gmtime(job.ended))} {job.id}: {failed.cause}; {failed.fix}"
        for job, failed in engine.library.failures(MOST_ERRORS)
    )


def _log_tails(workers: Sequence[WorkerView]) -> str:
    """Return the end of each worker's log. With several workers, the worker's name is above each log."""
    if len(workers) == 1:
        return _log_tail(workers[0].log)
    return "\n\n".join(f"{worker.name}\n{_log_tail(worker.log)}" for worker in workers)


def _log_tail(path: Path | None) -> str:
    if path is None or not path.is_file():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 16_000))
        lines = file.read().decode(errors="replace").splitlines()
    return "\n".join(lines[-LOG_LINES:])

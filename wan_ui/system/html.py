"""Render the state of the machine: devices, memory, model, compiled sizes, disk, versions, errors.

Visitors see no prompts and no folders of other visitors. Only the operator sees errors and the worker's log.
"""

import contextlib
import platform
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import gmtime, strftime, time
from typing import get_args

from backend.engine.cleaning import Category
from backend.engine.engine import Engine
from backend.engine.history import BETWEEN_SECONDS, Sample
from backend.engine.job import JobState
from backend.schemas.worker import WorkerView
from wan_ui.components.buttons import text_button
from wan_ui.components.field_errors import shorten_paths
from wan_ui.components.progress import format_duration
from wan_ui.components.values import format_bytes, format_rate, pairs_html
from wan_ui.i18n.details import translate_detail
from wan_ui.i18n.english import Texts
from wan_ui.services.caller import Caller

MOST_ERRORS = 8
LOG_LINES = 40
_LIBRARIES = ("jax", "jaxlib", "torch", "torchax", "diffusers", "transformers", "gradio")

Rows = tuple[tuple[str, str], ...]
Sections = tuple[tuple[str, Rows], ...]

WIDTH, HEIGHT = 300, 64  # size of a chart, in SVG units
TOP_MARGIN = 22  # SVG units above the highest value, for the text
HOUR, DAY = 3600.0, 86_400.0
_GAP_SECONDS = 4 * BETWEEN_SECONDS  # a longer time without a sample breaks the line
Value = Callable[[Sample], float | None]


def charts_html(samples: Sequence[Sample], now: float, texts: Texts) -> str:
    """Render the charts of the last hour and day. A chart without values is left out."""
    rows: tuple[tuple[str, Value, Value, Callable[[float], str]], ...] = (
        (texts.chart_steps, lambda one: one.step_seconds, lambda one: None, format_duration),
        (texts.chart_queue, lambda one: float(one.waiting + one.running), lambda one: None, lambda value: f"{value:.0f}"),
        (texts.chart_memory, lambda one: one.device_bytes, lambda one: one.device_limit, format_bytes),
        (texts.chart_disk, lambda one: one.disk_bytes, lambda one: one.disk_limit, format_bytes),
    )
    shown = ""
    for title, value, limit, words in rows:
        last = next((found for one in reversed(samples) if (found := value(one)) is not None), None)
        if last is None:
            continue
        drawn = "".join(
            f"<figure>{_chart([one for one in samples if one.time > now - seconds], value, limit, words, now, seconds, title)}"
            f"<figcaption>{escape(name)}</figcaption></figure>"
            for name, seconds in ((texts.chart_hour, HOUR), (texts.chart_day, DAY))
        )
        shown += f'<div class="chart-row"><p><b>{escape(title)}</b><span>{escape(words(last))}</span></p>{drawn}</div>'
    return f'<section class="wide charts"><h2>{escape(texts.charts)}</h2>{shown}</section>' if shown else ""


def _chart(
    samples: Sequence[Sample], value: Value, limit: Value, words: Callable[[float], str], now: float, seconds: float, title: str
) -> str:
    known = [(one.time, found) for one in samples if (found := value(one)) is not None]
    highest = max([found for _, found in known] + [found for one in samples if (found := limit(one)) is not None], default=0.0)
    most = words(max((found for _, found in known), default=0.0))
    label = escape(f"{title}: {most}")
    lines, before = [], float("-inf")
    for moment, found in known:
        if moment - before > max(_GAP_SECONDS, seconds / 100):
            lines.append([])
        across, down = WIDTH * (1 - (now - moment) / seconds), HEIGHT - 2 - (HEIGHT - TOP_MARGIN) * found / (highest or 1.0)
        lines[-1].append(f"{across:.1f},{down:.1f}")
        before = moment
    drawn = "".join(
        f'<polyline points="{" ".join(line)}"/>'
        if len(line) > 1
        else f'<circle cx="{line[0].partition(",")[0]}" cy="{line[0].partition(",")[2]}" r="1.6"/>'
        for line in lines
    )
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img" aria-label="{label}"><title>{label}</title>'
        f'<path class="ground" d="M0 {HEIGHT - 1}H{WIDTH}"/>{drawn}</svg><span class="most">{escape(most)}</span>'
    )


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
    texts, buttons, log = caller.texts, {}, ""
    report = build_report(engine, caller)
    if caller.is_operator:
        workers = _titled_workers(engine.pool.workers(), texts)
        cleaning = text_button("clean:now", texts.system_clean, hint=texts.system_clean_hint)
        buttons = {title: _cached_models_html(worker, texts) for title, worker in workers} | {texts.system_storage: cleaning}
    sections = "".join(
        f"<section><h2>{escape(title)}</h2><dl>{pairs_html(rows)}</dl>{buttons.get(title, '')}</section>"
        for title, rows in report.sections
    )
    errors = "".join(f"<li>{escape(error)}</li>" for error in report.errors) or f"<li>{escape(texts.system_no_errors)}</li>"
    if report.log:
        log = f"<section class=wide><h2>{escape(texts.system_log)}</h2><pre>{escape(report.log)}</pre></section>"
    who = texts.system_operator if caller.is_operator else texts.system_visitor
    return (
        f'<section class="system"><p class="row"><span class="hint">{escape(who)}</span>'
        f'<button type="button" data-copy-text="{escape(report.text())}" data-said="{escape(texts.system_copied)}"'
        f' data-by-hand="{escape(texts.copy_by_hand)}">'
        f"{escape(texts.system_copy)}</button></p><div class=sections>{sections}"
        f"{charts_html(engine.history.samples_since(DAY), time(), texts)}"
        f"<section class=wide><h2>{escape(texts.system_errors)}</h2><ul>{errors}</ul></section>{log}</div></section>"
    )


def _cached_models_html(worker: WorkerView, texts: Texts) -> str:
    """Render the cached models with their buttons. The current model cannot be unloaded."""
    rows = ""
    for model in worker.facts.cached_models:
        one = {"job": worker.name, "value": model.model}
        if model.is_pinned:
            buttons = text_button("keep:unpin", texts.system_allow_unload, hint=texts.system_allow_unload_hint, **one)
        else:
            buttons = text_button("keep:pin", texts.system_keep_loaded, hint=texts.system_keep_loaded_hint, **one)
        if model.model != worker.facts.model:
            buttons += text_button("keep:drop", texts.system_unload, hint=texts.system_unload_hint, **one)
        rows += f'<p class="kept"><span>{escape(Path(model.model).name)}</span>{buttons}</p>'
    return rows


def build_report(engine: Engine, caller: Caller) -> Report:
    texts, workers, counts = caller.texts, engine.pool.workers(), engine.library.counts()
    jobs = tuple((getattr(texts, f"job_{state}"), str(counts[state])) for state in get_args(JobState) if state in counts)
    versions = [("python", platform.python_version())]
    for name in _LIBRARIES:
        with contextlib.suppress(PackageNotFoundError):
            versions.append((name, version(name)))
    errors, log = (), ""
    if caller.is_operator:
        errors = tuple(
            f"{strftime('%Y-%m-%d %H:%M:%S', gmtime(job.ended))} {job.id}: {failed.cause}; {failed.fix}"
            for job, failed in engine.library.failures(MOST_ERRORS)
        )
        names = [f"{worker.name}\n" if len(workers) > 1 else "" for worker in workers]
        log = "\n\n".join(f"{name}{_log_tail(worker.log)}" for name, worker in zip(names, workers, strict=True))
    return Report(
        sections=(
            *_worker_sections(workers, texts, caller.is_operator),
            (texts.system_storage, _storage_rows(engine, texts)),
            (texts.system_jobs, jobs),
            (texts.system_versions, tuple(versions)),
        ),
        errors=errors,
        log=log,
    )


def _worker_sections(workers: Sequence[WorkerView], texts: Texts, is_operator: bool) -> Sections:
    """Return the sections of the devices and of the workers. Only the operator sees the names of nodes."""
    if not workers:
        return ((texts.system_worker, ((texts.system_worker, texts.worker_none),)),)
    if len(workers) == 1 and not workers[0].machine:
        return (texts.system_devices, _device_rows(workers[0], texts)), (texts.system_worker, _worker_rows(workers[0], texts))
    sections = []
    for title, worker in _titled_workers(workers, texts):
        node = ((texts.system_machine, f"{worker.machine} ({worker.name})"),) if worker.machine and is_operator else ()
        sections.append((title, node + _device_rows(worker, texts) + _worker_rows(worker, texts)))
    return tuple(sections)


def _titled_workers(workers: Sequence[WorkerView], texts: Texts) -> list[tuple[str, WorkerView]]:
    if len(workers) == 1 and not workers[0].machine:
        return [(texts.system_worker, workers[0])]
    return [(f"{texts.system_worker} {number}", worker) for number, worker in enumerate(workers, 1)]


def _worker_rows(worker: WorkerView, texts: Texts) -> Rows:
    facts, status = worker.facts, worker.status
    detail = "" if status.state in ("ready", "busy") else f": {translate_detail(shorten_paths(status.detail), texts)}"
    rows = [
        (texts.system_worker, getattr(texts, f"worker_{status.state}") + detail),
        (texts.system_model, Path(facts.model).name if facts.model else texts.system_no_model),
    ]
    if facts.cached_models:
        rows.append((texts.system_cached_models, _sizes_text(*facts.cached_bytes, texts)))  # shared networks are counted once
    for model in facts.cached_models:
        name, kept = Path(model.model).name, f" ({texts.system_kept_loaded})" if model.is_pinned else ""
        rows.append((f"{name}{kept}", _sizes_text(model.chip_bytes, model.host_bytes, texts)))
    warm = set()
    for shape in facts.warm:
        size = {"task": shape.task, "width": shape.width, "height": shape.height, "frames": shape.num_frames}
        warm.add(texts.system_shape.format(**size, guided=texts.system_guided if shape.is_guided else texts.system_unguided))
    rows.append((texts.system_shapes, "; ".join(sorted(warm)) or texts.system_no_shapes))
    names = dict(texts.stage_names)
    if facts.rates:
        rates = "; ".join(f"{names[stage]} {format_rate(rate, texts)}" for stage, rate in facts.rates.items())
        rows.append((texts.system_rates, rates))
    if facts.refused:
        rows.append((texts.system_fallbacks, " ".join(f"{sentence}." for sentence in facts.refused)))
    return tuple(rows)


def _sizes_text(chips: int, host: int, texts: Texts) -> str:
    words = texts.system_cached_both if chips and host else texts.system_cached_host if host else texts.system_cached_chips
    return words.format(chips=format_bytes(chips), host=format_bytes(host))


def _device_rows(worker: WorkerView, texts: Texts) -> Rows:
    rows = []
    for device in worker.facts.devices:
        memory = texts.system_memory_unknown
        if device.bytes_in_use is not None and device.bytes_limit:
            used, limit = format_bytes(device.bytes_in_use), format_bytes(device.bytes_limit)
            memory = texts.system_memory.format(used=used, limit=limit)
        rows.append((device.name, f"{device.kind}, {memory}"))
    notice = worker.facts.notice
    return tuple(rows) if notice is None else (*rows, (texts.system_not_used, str(notice)))


def _storage_rows(engine: Engine, texts: Texts) -> Rows:
    usage: dict[str, int] = {**engine.cleaner.usage()}
    limits, parts = engine.cleaner.limits, dict[str, str]()
    if limits.days is not None:
        words = texts.system_limit_days_one if limits.days == 1 else texts.system_limit_days
        parts["days"] = words.format(days=limits.days)
    if limits.gigabytes is not None:
        parts["size"] = texts.system_limit_size.format(gigabytes=limits.gigabytes)
    both = texts.system_limit_both.format(**parts) if len(parts) == 2 else "".join(parts.values())
    return (
        *((name, format_bytes(usage[part])) for part, name in texts.system_parts),
        (texts.system_disk, format_bytes(shutil.disk_usage(engine.settings.data_dir).free)),
        (texts.system_limits, both or texts.system_limit_none),
    )


def freed_space_text(freed: Mapping[Category, int], texts: Texts) -> str:
    """Return a sentence with the bytes that the cleaning deleted, in total and by part."""
    if not freed:
        return texts.system_cleaned_nothing
    sizes: dict[str, int] = {**freed}
    parts = [f"{name} {format_bytes(sizes[part])}" for part, name in texts.system_parts if part in sizes]
    return texts.system_cleaned.format(size=format_bytes(sum(freed.values())), parts=texts.list_separator.join(parts))


def _log_tail(path: Path | None) -> str:
    if path is None or not path.is_file():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 16_000))
        lines = file.read().decode(errors="replace").splitlines()
    return "\n".join(lines[-LOG_LINES:])

"""Small SVG charts of the last hour and day: step times, queue, device memory and disk. The functions have no side effects."""

from collections.abc import Callable, Sequence
from html import escape

from backend.engine.history import BETWEEN_SECONDS, Sample
from wan_ui.components.progress import format_duration
from wan_ui.components.values import format_bytes
from wan_ui.i18n.english import Texts

WIDTH, HEIGHT = 300, 64  # size of a chart, in SVG units
TOP_MARGIN = 22  # SVG units above the highest value, for the text
HOUR, DAY = 3600.0, 86_400.0
_GAP_SECONDS = 4 * BETWEEN_SECONDS  # a longer time without a sample breaks the line
Value = Callable[[Sample], float | None]


def charts_html(samples: Sequence[Sample], now: float, texts: Texts) -> str:
    """Render the charts of the last hour and day. A chart without values is left out."""
    rows = (
        (texts.chart_steps, lambda one: one.step_seconds, lambda one: None, format_duration),
        (texts.chart_queue, lambda one: float(one.waiting + one.running), lambda one: None, lambda value: f"{value:.0f}"),
        (texts.chart_memory, lambda one: one.device_bytes, lambda one: one.device_limit, format_bytes),
        (texts.chart_disk, lambda one: one.disk_bytes, lambda one: one.disk_limit, format_bytes),
    )
    shown = "".join(_chart_row(*row, samples, now, texts) for row in rows if any(row[1](one) is not None for one in samples))
    return f'<section class="wide charts"><h2>{escape(texts.charts)}</h2>{shown}</section>' if shown else ""


def _chart_row(
    title: str, value: Value, limit: Value, words: Callable[[float], str], samples: Sequence[Sample], now: float, texts: Texts
) -> str:
    last = next((value(one) for one in reversed(samples) if value(one) is not None), None)
    now_words = words(last) if last is not None else ""
    drawn = "".join(
        f"<figure>{_chart([one for one in samples if one.time > now - seconds], value, limit, words, now, seconds, title)}"
        f"<figcaption>{escape(name)}</figcaption></figure>"
        for name, seconds in ((texts.chart_hour, HOUR), (texts.chart_day, DAY))
    )
    return f'<div class="chart-row"><p><b>{escape(title)}</b><span>{escape(now_words)}</span></p>{drawn}</div>'


def _chart(
    samples: Sequence[Sample],
    value: Value,
    limit: Value,
    words: Callable[[float], str],
    now: float,
    seconds: float,
    title: str,
) -> str:
    known = [(one.time, found) for one in samples if (found := value(one)) is not None]
    highest = max([found for _, found in known] + [found for one in samples if (found := limit(one)) is not None], default=0.0)
    most = words(max((found for _, found in known), default=0.0))
    label = escape(f"{title}: {most}")
    top = highest or 1.0

    def place(moment: float, found: float) -> str:
        return f"{WIDTH * (1 - (now - moment) / seconds):.1f},{HEIGHT - 2 - (HEIGHT - TOP_MARGIN) * found / top:.1f}"

    lines, before = [], float("-inf")
    for moment, found in known:
        if moment - before > max(_GAP_SECONDS, seconds / 100):
            lines.append([])
        lines[-1].append(place(moment, found))
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

"""Values as texts: names of videos, settings, sizes of files, speeds."""

from collections.abc import Iterable
from html import escape

from backend.engine.job import RequestSummary
from backend.schemas.events import Rate
from backend.schemas.settings import VideoSettings
from wan_ui.i18n.english import Texts

NO_PICTURE = "data:image/gif;base64,R0lGODlhAQABAAAAACH5BAEKAAEALAAAAAABAAEAAAICTAEAOw=="  # one transparent pixel


def video_name(request: VideoSettings | RequestSummary, texts: Texts) -> str:
    """Return the request's prompt, or a general name if the prompt is empty. The page shows this name everywhere."""
    return request.prompt or texts.animated


def format_bytes(count: float) -> str:
    """Format a number of bytes with its unit, such as "2.0 GB"."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit in ("B", "KB") else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def format_value(value: object) -> str:
    """Format a number, a text, a list or a dict on one line."""
    if isinstance(value, list):
        return ", ".join(format_value(part) for part in value)
    if isinstance(value, dict):
        return " ".join(format_value(part) for part in value.values())
    return f"{value:g}" if isinstance(value, float) else str(value)


def pairs_html(pairs: Iterable[tuple[str, str]]) -> str:
    """Render names and values as the content of a `dl` element."""
    return "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in pairs)


def format_rate(rate: Rate, texts: Texts) -> str:
    """Format the computing rate, such as "12.3 TFLOP/s", with its share of the devices' peak if that is known."""
    value, unit = rate.flops_per_second, ""
    for larger in ("k", "M", "G", "T", "P"):
        if value >= 1000:
            value, unit = value / 1000, larger
    speed = f"{value:.3g} {unit}FLOP/s"
    return speed if rate.mfu is None else f"{speed}, {texts.share_of_peak.format(percent=100 * rate.mfu)}"

"""The line above the Generate button: the expected time, its basis, and whether the model loads or compiles first."""

from html import escape

from backend.engine.estimate import Estimate
from wan_ui.components.progress import format_duration
from wan_ui.i18n.english import Texts


def estimate_html(estimate: Estimate | None, is_warm: bool, texts: Texts) -> str:
    """Render the line. `is_warm` is true if all programs are compiled. It is used only without an `estimate`."""
    hint = ""
    if estimate is not None:
        is_one = estimate.runs == 1
        words = {
            "measured": texts.estimate_measured_one if is_one else texts.estimate_measured,
            "scaled": texts.estimate_scaled_one if is_one else texts.estimate_scaled,
            "predicted": texts.estimate_predicted,
        }
        hint = words[estimate.basis].format(count=estimate.runs)
    return f'<p class="estimate" title="{escape(hint)}">{escape(" · ".join(_estimate_parts(estimate, is_warm, texts)))}</p>'


def _estimate_parts(estimate: Estimate | None, is_warm: bool, texts: Texts) -> list[str]:
    if estimate is None:
        return [texts.estimate_none, texts.estimate_warm if is_warm else texts.estimate_compiles_unknown]
    about = (texts.estimate_about_predicted if estimate.basis == "predicted" else texts.estimate_about).format(
        seconds=format_duration(estimate.seconds)
    )
    return [about, *_loading_parts(estimate.load_seconds, texts), _compiling_text(estimate, texts)]


def _loading_parts(seconds: float | None, texts: Texts) -> list[str]:
    if seconds == 0.0:
        return []
    return [texts.estimate_loads_unknown if seconds is None else texts.estimate_loads.format(seconds=format_duration(seconds))]


def _compiling_text(estimate: Estimate, texts: Texts) -> str:
    if estimate.is_warm:
        return texts.estimate_warm
    if estimate.compile_seconds is None:
        return texts.estimate_compiles_unknown
    return texts.estimate_compiles.format(seconds=format_duration(estimate.compile_seconds))

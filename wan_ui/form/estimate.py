"""The line above the Generate button: the expected time, its basis, and whether the model loads or compiles first."""

from html import escape

from backend.engine.estimate import Estimate
from wan_ui.components.progress import format_duration
from wan_ui.i18n.english import Texts


def estimate_html(estimate: Estimate | None, is_warm: bool, texts: Texts) -> str:
    """Render the line. `is_warm` is true if all programs are compiled. It is used only without an `estimate`."""
    hint, parts = "", [texts.estimate_none, texts.estimate_warm if is_warm else texts.estimate_compiles_unknown]
    if estimate is not None:
        is_one = estimate.runs == 1
        hints = {
            "measured": texts.estimate_measured_one if is_one else texts.estimate_measured,
            "scaled": texts.estimate_scaled_one if is_one else texts.estimate_scaled,
            "predicted": texts.estimate_predicted,
        }
        hint = hints[estimate.basis].format(count=estimate.runs)
        about = texts.estimate_about_predicted if estimate.basis == "predicted" else texts.estimate_about
        parts = [about.format(seconds=format_duration(estimate.seconds))]
        if estimate.load_seconds is None:
            parts.append(texts.estimate_loads_unknown)
        elif estimate.load_seconds != 0.0:
            parts.append(texts.estimate_loads.format(seconds=format_duration(estimate.load_seconds)))
        if estimate.is_warm:
            parts.append(texts.estimate_warm)
        elif estimate.compile_seconds is None:
            parts.append(texts.estimate_compiles_unknown)
        else:
            parts.append(texts.estimate_compiles.format(seconds=format_duration(estimate.compile_seconds)))
    return f'<p class="estimate" title="{escape(hint)}">{escape(" · ".join(parts))}</p>'

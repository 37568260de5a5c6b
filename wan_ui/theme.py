"""The Gradio theme. Its colours come from the scales ACCENT and GRAPHITE, and from the CSS variables of the style sheets."""

from pathlib import Path

import gradio as gr
from gradio.themes import Color

ASSETS = Path(__file__).resolve().parent / "assets"
LAYERS = ("gradio", "tokens", "base", "components", "layout", "views", "state")
"""The cascade layers of the page, weakest first. Gradio's own style sheets are in `gradio` (see `wan_ui.gradio_fixes`)."""
SHARED_STYLES = ("tokens", "base", "gradio", "components", "layout", "header", "state")
FONT = (
    "ui-sans-serif", "system-ui", "-apple-system", "Segoe UI", "Roboto", "Noto Sans", "PingFang SC", "Microsoft YaHei",
    "Noto Sans CJK SC", "sans-serif",
)  # fmt: skip
MONO = ("ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "Liberation Mono", "monospace")

# From the lightest (c50) to the darkest (c950)
LAGOON = "#effaf8 #d5f2ec #aee4da #7ccfc2 #45b3a4 #1f9788 #0f6a60 #0d5850 #0f4742 #12413d #052725"
GREYS = "#f7f7f6 #eeeeec #e0e0dd #c8c8c4 #a0a2a6 #55575c #4f5156 #34363b #212328 #17181c #0f1013"
ACCENT, GRAPHITE = Color(*LAGOON.split(), name="lagoon"), Color(*GREYS.split(), name="graphite")
_TOKENS = dict(
    body_text_color="ink",
    body_text_color_subdued="quiet",
    background_fill_primary="panel",
    border_color_primary="line",
    block_title_text_color="label",
    block_info_text_color="quiet",
    input_background_fill="field",
    input_border_color="field-line",
    input_placeholder_color="quiet",
    checkbox_border_color="field-line",
    button_secondary_background_fill="button",
    button_secondary_background_fill_hover="button-hover",
    button_secondary_border_color="button-line",
)
"""Gradio's variables -> the tokens of `tokens.css` that give their value in both themes."""
_VALUES = dict(
    body_background_fill="*neutral_100",
    body_background_fill_dark="*neutral_950",
    background_fill_secondary_dark="*neutral_950",
    block_background_fill_dark="*background_fill_primary",
    block_border_width="0px",
    block_label_background_fill="transparent",
    block_label_background_fill_dark="transparent",
    block_title_text_weight="550",
    layout_gap="12px",
    input_radius="8px",
    input_border_color_focus="*primary_500",
    input_border_color_focus_dark="*primary_400",
    input_border_width="1px",
    input_shadow_focus="0 0 0 3px *primary_100",
    input_shadow_focus_dark="0 0 0 3px color-mix(in srgb, *primary_400 22%, transparent)",
    slider_color="*primary_500",
    slider_color_dark="*primary_400",
    checkbox_background_color_selected="*primary_600",
    checkbox_background_color_selected_dark="*primary_500",
    checkbox_border_color_selected="*primary_600",
    checkbox_border_color_selected_dark="*primary_500",
    checkbox_label_background_fill="transparent",
    checkbox_label_background_fill_dark="transparent",
    checkbox_label_background_fill_hover="transparent",
    checkbox_label_background_fill_hover_dark="transparent",
    checkbox_label_border_width="0px",
    checkbox_label_padding="0",
    button_primary_background_fill="*primary_600",
    button_primary_background_fill_dark="*primary_400",
    button_primary_background_fill_hover="*primary_700",
    button_primary_background_fill_hover_dark="*primary_300",
    button_primary_text_color_dark="*neutral_950",
    button_border_width="1px",
    button_large_radius="10px",
    button_primary_border_color="transparent",
    button_primary_border_color_dark="transparent",
)


def studio_theme() -> gr.themes.Base:
    """Return the light and dark theme. It uses only system fonts, so that no page waits for a font server."""
    theme = gr.themes.Base(
        primary_hue=ACCENT,
        secondary_hue=GRAPHITE,
        neutral_hue=GRAPHITE,
        font=FONT,
        font_mono=MONO,
        radius_size=gr.themes.sizes.radius_md,
        text_size=gr.themes.sizes.text_sm,
        spacing_size=gr.themes.sizes.spacing_sm,
    )
    tokens = {f"{name}{ending}": f"var(--{token})" for name, token in _TOKENS.items() for ending in ("", "_dark")}
    return theme.set(**tokens, **_VALUES)


def read_styles() -> str:
    """Return the studio's style sheets as one text: the shared sheets, then the sheet of each package."""
    shared = [ASSETS / "styles" / f"{name}.css" for name in SHARED_STYLES]
    views = sorted(ASSETS.parent.glob("*/*.css"))
    return "\n".join([f"@layer {', '.join(LAYERS)};", *(path.read_text(encoding="utf-8") for path in (*shared, *views))])

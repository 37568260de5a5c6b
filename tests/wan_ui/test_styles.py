"""Tests that style sheets use only the values of `tokens.css`, and that its pairs of colours have enough contrast."""

import re
from itertools import product
from pathlib import Path

import gradio as gr
import pytest

from backend.settings import PROJECT_FOLDER
from wan_ui.theme import ACCENT, GRAPHITE, LAYERS, read_styles, studio_theme

PACKAGE = PROJECT_FOLDER / "wan_ui"
TOKENS_FILE = PACKAGE / "assets" / "styles" / "tokens.css"
SHEETS = sorted({*TOKENS_FILE.parent.glob("*.css"), *PACKAGE.glob("*/*.css")})
OTHERS = [path for path in SHEETS if path != TOKENS_FILE]
COLOUR = re.compile(r"#[0-9a-f]{3,8}\b|\b(rgba?|hsla?|hwb|lab|lch|oklab|oklch|color)\(|\b(white|black|red|green|blue|gr[ae]y)\b")
SCALES = {"font-size": "type", "border-radius": "round", "z-index": "depth", "gap": "space", "box-shadow": "shadow"}
PLAIN = {"0", "inherit", "none", "inset", "-2px", "1px", "2px", "var(--line)", "var(--veil)", "var(--accent)"}
FORCED = {"flex", "flex-grow", "flex-basis", "min-width", "overflow"}
"""What Gradio writes into `style` attributes, over which only `!important` wins."""

# Required contrast in WCAG 2.2: 1.4.3 for text, 1.4.11 for icons and the borders of fields.
SURFACES = ("panel", "stage", "screen", "soft", "track", "raised", "field")
TEXT = ("ink", "label", "quiet", "accent", "bad")
SIGNS = ("good", "wait", "accent", "bad")
PAIRS = [
    *((text, surface, 4.5) for text, surface in product(TEXT, SURFACES)),
    *((sign, surface, 3.0) for sign, surface in product(SIGNS, SURFACES)),
    *(("field-line", surface, 3.0) for surface in ("panel", "stage", "field")),
    ("on-primary", "primary", 4.5),
    ("on-primary", "primary-hover", 4.5),
    ("ink", "button", 4.5),
    ("ink", "button-hover", 4.5),
    ("on-brand", "brand", 4.5),
    ("on-toast", "toast", 4.5),
    ("on-toast", "toast-bad", 4.5),
    ("on-media-quiet", "letterbox", 4.5),
    ("media-ink", "on-media", 4.5),
]
TINTS = [
    ("ink", "ink", 12, "panel"),
    ("quiet", "ink", 12, "panel"),
    ("bad", "bad", 9, "panel"),
    ("accent", "accent", 14, "panel"),
]


def without_comments(text: str) -> str:
    return re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)


def declarations(path: Path) -> list[tuple[str, str]]:
    """Return the properties and values of a style sheet, without custom properties."""
    return re.findall(r"[{;\s]([a-z-]+)\s*:\s*([^;{}]+?)\s*(?=[;}])", without_comments(path.read_text(encoding="utf-8")))


def tokens(theme: str) -> dict[str, str]:
    """Return the values of `tokens.css` in the theme `light` or `dark`, with the scales of the Gradio theme resolved."""
    light, dark = re.findall(
        r"body(?:\.dark)? \{(.*?)\n  \}", without_comments(TOKENS_FILE.read_text(encoding="utf-8")), re.DOTALL
    )
    found = dict(re.findall(r"--([a-z0-9-]+):\s*([^;]+);", light if theme == "light" else light + dark))
    scales = {f"{name}-{step[1:]}": getattr(hue, step) for name, hue in (("primary", ACCENT), ("neutral", GRAPHITE))
              for step in ("c50", "c100", "c200", "c300", "c400", "c500", "c600", "c700", "c800", "c900", "c950")}  # fmt: skip
    return {
        name: re.sub(r"var\(--((?:primary|neutral)-\d+)\)", lambda match: scales[match[1]], value)
        for name, value in found.items()
    }


def channels(colour: str) -> list[float]:
    assert re.fullmatch("#[0-9a-f]{6}", colour), colour
    return [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]


def contrast(one: list[float], other: list[float]) -> float:
    """Return the contrast ratio of WCAG 2.2 between two sRGB colours."""

    def luminance(colour: list[float]) -> float:
        linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in colour]
        return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def mixed(over: list[float], under: list[float], percent: float) -> list[float]:
    return [top * percent / 100 + below * (1 - percent / 100) for top, below in zip(over, under, strict=True)]


@pytest.mark.parametrize("path", OTHERS, ids=lambda path: path.name)
def test_only_the_tokens_name_colours(path):
    raw = [f"{name}: {value}" for name, value in declarations(path) if COLOUR.search(re.sub(r"var\([^)]*\)", "", value))]
    assert raw == []


@pytest.mark.parametrize("path", OTHERS, ids=lambda path: path.name)
def test_sizes_corners_gaps_depths_and_shadows_come_from_their_scales(path):
    unknown, named = [], tokens("light")
    for name, value in declarations(path):
        scale = SCALES.get(name.removeprefix("row-").removeprefix("column-"))
        if scale is None:
            continue
        parts = re.findall(r"[a-z-]+\((?:[^()]|\([^)]*\))*\)|[^\s,]+", value)
        names = {f"var(--{one})" for one in named if one.startswith(f"{scale}-")}
        unknown += [f"{name}: {value}" for part in parts if part not in names | PLAIN and not part.startswith("color-mix(")]
    assert unknown == []


def test_there_are_few_sizes_and_corners():
    count = {scale: sum(name.startswith(f"{scale}-") for name in tokens("light")) for scale in ("type", "round")}
    assert count["type"] <= 6 and count["round"] <= 5


@pytest.mark.parametrize("path", SHEETS, ids=lambda path: path.name)
def test_every_rule_is_in_a_known_layer(path):
    text, depth, outside = without_comments(path.read_text(encoding="utf-8")), 0, ""
    for character in text:
        depth -= character == "}"
        outside += character if depth == 0 and character != "}" else ""
        depth += character == "{"
    layers = re.findall(r"@layer ([a-z]+)", outside)
    assert layers and set(layers) <= set(LAYERS)
    assert re.sub(r"@layer [a-z]+ \{", "", outside).strip() == ""


@pytest.mark.parametrize("path", OTHERS, ids=lambda path: path.name)
def test_important_is_used_only_against_style_attributes_of_gradio(path):
    forced = {name for name, value in declarations(path) if "!important" in value}
    assert forced <= FORCED | ({"display"} if path.name == "form.css" else set())


def test_every_value_that_is_used_has_a_name():
    written = "".join(without_comments(path.read_text(encoding="utf-8")) for path in SHEETS)
    named = set(re.findall(r"--([a-z0-9-]+):", written))
    from_page = {"ratio", "columns", "edge", "from", "to", "now", "at", "frame", "left", "top", "across", "down", "done"}
    from_gradio = {"font-mono"}
    used = {name for name in re.findall(r"var\(--([a-z0-9-]+)", written) if not re.fullmatch(r"(primary|neutral)-\d+", name)}
    assert used - named - from_page - from_gradio == set()


def test_the_page_gets_all_style_sheets_after_the_order_of_the_layers():
    text = read_styles()
    assert text.startswith(f"@layer {', '.join(LAYERS)};")
    assert all(path.read_text(encoding="utf-8") in text for path in SHEETS)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("front, back, least", PAIRS)
def test_colours_have_enough_contrast(theme, front, back, least):
    named = tokens(theme)
    assert contrast(channels(named[front]), channels(named[back])) >= least


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("text, tint, percent, surface", TINTS)
def test_text_has_enough_contrast_on_tinted_surfaces(theme, text, tint, percent, surface):
    named = {name: channels(value) for name, value in tokens(theme).items() if re.fullmatch("#[0-9a-f]{6}", value)}
    assert contrast(named[text], mixed(named[tint], named[surface], percent)) >= 4.5


@pytest.mark.parametrize("media", ["#ffffff", "#000000"])
def test_words_over_a_video_have_enough_contrast_whatever_it_shows(media):
    named = tokens("light")
    for veil in ("veil", "veil-hover"):
        share = float(re.search(r"/ ([\d.]+)\)", named[veil])[1])
        assert contrast(channels(named["on-media"]), mixed([0, 0, 0], channels(media), 100 * share)) >= 4.5


def test_the_theme_names_no_colours_but_its_scales():
    gradios = vars(gr.themes.Base())
    ours = {
        name: value for name, value in vars(studio_theme()).items() if value != gradios.get(name) and not name.startswith("_")
    }
    colours = {name: value for name, value in ours.items() if not re.fullmatch(r"(primary|secondary|neutral)_\d+", name)}
    assert {name: value for name, value in colours.items() if COLOUR.search(re.sub(r"var\([^)]*\)|\*\w+", "", value))} == {}
    used = {name for value in colours.values() for name in re.findall(r"var\(--([a-z0-9-]+)\)", value)}
    assert {"field", "field-line", "quiet", "line"} <= used <= set(tokens("light"))

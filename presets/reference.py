"""Writes docs/presets.md, the reference of preset fields, from the texts below the fields in `presets/loader.py`.

Run `python -m presets.reference`. A test checks that the page is up to date.
"""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from presets import loader

PAGE = Path(__file__).resolve().parent.parent / "docs" / "presets.md"
_INTRODUCTION = """# Fields of a preset

A preset is one file, `presets/NAME.toml`. [Contributing](contributing.md#a-new-preset) says how to add one.
`python app.py presets show NAME` prints a preset with all its values, an example command, and the files of its bases.

`base = "NAME"` in a file names the preset or the base file from which the file inherits. Base files are in `presets/bases`. They
have the values that the presets of a model or a series share, and are not presets themselves. A base can have a base too.

- A file has only the values that differ from the base's values. Own values replace inherited ones, also lists such as `sizes`.
- The tables `architecture`, `pipeline`, `takes` and `[zh]` merge by key: `architecture.vae = "wan2.2"` replaces one part.
- A file cannot remove an inherited field. If a preset must not have a field of another preset, both get the same base file.
- The first comments of a file state the preset's time. They state its source, hardware and licence unless the base does.

This page is written by `python -m presets.reference` from `presets/loader.py`. Change the texts there.
"""
_SECTIONS = {
    "name": "What it is",
    "width": "Defaults, and what the model can do",
    "size_multiple": "Shape of its videos",
    "min_width": "Limits, examples and translations",
}
_PARTS = {"LoraChoice": "One of the `loras`", "ImageExample": "One of the `image_examples`", "PresetWords": "A translation"}
_BOUNDS = {"ge": "at least {}", "gt": "above {}", "le": "at most {}"}
_TYPES = {"PositiveInt": "int", "PositiveFloat": "float", "Share": "float from 0 to 1"} | {
    name: " or ".join(get_args(getattr(loader, name))) for name in ("Task", "Solver", "Expert", "Need")
}


def render_page() -> str:
    """Return the page as Markdown."""
    texts = [_INTRODUCTION]
    for name, row in _field_rows(loader.Preset):
        if name in _SECTIONS:
            texts.append(_heading(_SECTIONS[name]))
        texts.append(row)
    for part, title in _PARTS.items():
        texts += [_heading(title), *(row for _, row in _field_rows(getattr(loader, part)))]
    return "".join(texts)


def _heading(title: str) -> str:
    return f"\n## {title}\n\n| field | type | default | meaning |\n|---|---|---|---|\n"


def _field_rows(model: type) -> Iterator[tuple[str, str]]:
    """Yield each field's name and its table row in Markdown. Raises: ValueError for a field without a text below it."""
    definition = ast.parse(inspect.getsource(model)).body[0]
    body = definition.body if isinstance(definition, ast.ClassDef) else []
    for field, below in zip(body, [*body[1:], None], strict=True):
        if not isinstance(field, ast.AnnAssign):
            continue
        name = ast.unparse(field.target)
        if not (isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)):
            raise ValueError(f"{model.__name__}.{name} has no description; write it below the field")
        default, bounds = _default_and_bounds(field.value)
        meaning = " ".join([inspect.cleandoc(str(below.value.value)).replace("\n", " "), *bounds])
        kind = re.sub(r"\w+", lambda word: _TYPES.get(word[0], word[0]), ast.unparse(field.annotation)).replace("|", "or")
        yield name, f"| `{name}` | {kind} | {default} | {meaning} |\n"


def _default_and_bounds(value: ast.expr | None) -> tuple[str, list[str]]:
    if value is None:
        return "required", []
    if not (isinstance(value, ast.Call) and ast.unparse(value.func) == "Field"):
        return f"`{ast.unparse(value)}`", []
    given = {keyword.arg: ast.unparse(keyword.value) for keyword in value.keywords}
    bounds = [words.format(given[name]) for name, words in _BOUNDS.items() if name in given]
    sentence = [f"Must be {' and '.join(bounds)}."] if bounds else ["Must not be empty."] if "min_length" in given else []
    return f"`{given['default']}`" if "default" in given else "required", sentence


if __name__ == "__main__":
    PAGE.write_text(render_page(), "utf-8")

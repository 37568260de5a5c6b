"""The characters of a storyboard: names, each with an image. If a shot's prompt contains a name, the shot gets that image as a
reference. This module opens no file. Names match as whole words, regardless of case. In scripts without spaces between words,
such as Chinese, they match anywhere. If names overlap, only the longest counts: "the dog" does not also name "dog".
`wan_ui/form/storyboard_characters.js` uses the same rules for the timeline."""

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from backend.errors import RequestError, shorten
from backend.schemas.control import MAX_REFERENCES
from backend.schemas.settings import Character, VideoSettings
from presets import Preset

MAX_FIGURES = MAX_REFERENCES
MAX_NAME = 40  # longest name of a storyboard's character, in Unicode characters
_FIELDS = {"name", "image"}
# Ranges of code points of scripts without spaces between words, or with endings directly after names. Next to a character of
# these scripts, a name needs no word boundary.
_SCRIPTS_WITHOUT_SPACES = (
    (0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x2E80, 0x9FFF), (0xAC00, 0xD7AF), (0xF900, 0xFAFF),
    (0x20000, 0x3FFFF),
)  # fmt: skip


def read_characters(rows: object) -> dict[str, tuple[Any, ...]]:
    """Convert the characters of a file, form or program to the request fields `figures` and `figure_images`. Each of the `rows`
    has a `name` and, as `image`, the path of the character's image. Raises: RequestError."""
    if not isinstance(rows, Sequence) or isinstance(rows, str):
        rule = "must be a list of characters, each with a name and an image"
        raise RequestError(f"figures={shorten(rows, 40)}", rule, "give a list")
    images: list[str] = []
    figures: list[dict[str, object]] = []
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping) or row.keys() - _FIELDS or not isinstance(row.get("name") or "", str):
            raise RequestError(f"character {number}, {shorten(row, 40)},", "must have a name and an image", "correct it")
        figure: dict[str, object] = {"name": plain_name(row.get("name") or "")}
        if image := row.get("image"):
            if not isinstance(image, str):
                what = f"character {number} has image={shorten(image, 40)}, which"
                raise RequestError(what, "must be the path of a file", "correct it")
            if image not in images:
                images.append(image)
            figure["image"] = images.index(image)
        figures.append(figure)
    return {"figures": tuple(figures), "figure_images": tuple(images)} if figures else {}


def plain_name(name: str) -> str:
    return " ".join(name.split())


def check_characters(request: VideoSettings, preset: Preset) -> None:
    """Check that each character has a name and an image, and that the model takes reference images. Raises: RequestError."""
    if not request.figures:
        if request.figure_images:
            raise RequestError("figure_images were given", "but need figures", "give figures too")
        return
    if "references" not in preset.inputs:
        rule = f"but {preset.name} takes no reference images"
        raise RequestError("figures were given,", rule, "leave them out, or choose a preset with control")
    check_names(request)
    without = next((figure.name for figure in request.figures if figure.image is None), None)
    if without is not None:
        raise RequestError(f"character {without!r} has no image and", "must have one", "give it an image, or leave it out")
    for number, shot in enumerate(request.shots, 1):
        named = find_characters(shot.prompt, request.figures) if shot.video is None else ()
        count = len({*character_image_paths(request, named), *request.references})
        if count > preset.max_references and named:
            beside = " beside the references" if request.references else ""
            what = f"shot {number} names {' and '.join(figure.name for figure in named)}{beside}, but"
            most = f"{preset.max_references} image{'s' if preset.max_references > 1 else ''}"
            raise RequestError(what, f"{preset.name} takes at most {most} in a video", "name fewer characters in the shot")


def check_names(request: VideoSettings) -> None:
    """Check the names and image indexes, in new and stored requests. Raises: RequestError."""
    if len(request.figures) > MAX_FIGURES:
        what = f"figures has {len(request.figures)} characters and"
        raise RequestError(what, f"may have at most {MAX_FIGURES}", "leave some out")
    known: set[str] = set()
    for number, figure in enumerate(request.figures, 1):
        name, count = figure.name, len(request.figure_images)
        if not any(map(_is_word_character, name)):
            fix = "give it a name, such as Anna"
            raise RequestError(f"character {number} has no name and", "must have a name with letters", fix)
        if len(name) > MAX_NAME or not name.isprintable() or name != plain_name(name):
            rule = f"must have a name of at most {MAX_NAME} plain characters"
            raise RequestError(f"character {number}, {shorten(name, 30)},", rule, "shorten it")
        if name.lower() in known:
            rule = "of an earlier character, and must have its own"
            raise RequestError(f"character {number} has the name {name!r}", rule, "rename one")
        known.add(name.lower())
        if figure.image is not None and not 0 <= figure.image < count:
            rule = f"and must name one of {count} images"
            raise RequestError(f"character {name!r} has image={figure.image}", rule, "correct it")


def find_characters(prompt: str, figures: Sequence[Character]) -> tuple[Character, ...]:
    """Return the characters that the prompt names, in the order of `figures`."""
    left, found = plain_name(prompt).lower(), set()
    for figure in sorted(figures, key=lambda one: len(one.name), reverse=True):
        name, start = figure.name.lower(), 0
        while name and (start := left.find(name, start)) >= 0:
            end = start + len(name)
            if _is_word_boundary(left[start - 1 : start], name[0]) and _is_word_boundary(left[end : end + 1], name[-1]):
                left = left[:start] + "\0" * len(name) + left[end:]
                found.add(figure.name)
            start += 1
    return tuple(figure for figure in figures if figure.name in found)


def character_image_paths(request: VideoSettings, figures: Sequence[Character]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(request.figure_images[figure.image] for figure in figures if figure.image is not None))


def _is_word_boundary(beside: str, edge: str) -> bool:
    """`edge` is the first or last character of a name, `beside` the prompt's character before or after the name, or ""."""
    return not beside or any(
        not _is_word_character(one) or any(first <= ord(one) <= last for first, last in _SCRIPTS_WITHOUT_SPACES)
        for one in (beside, edge)
    )


def _is_word_character(character: str) -> bool:
    return character == "_" or unicodedata.category(character)[0] in "LMN"

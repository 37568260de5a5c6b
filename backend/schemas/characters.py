"""The characters of a storyboard: names, each with an image. If a shot's prompt contains a name, the shot gets that image as a
reference. This module opens no file.

Names match as whole words, regardless of case. In scripts without spaces between words, such as Chinese, they match
anywhere. If names overlap, only the longest counts: "the dog" does not also name "dog".
`wan_ui/form/storyboard_characters.js` uses the same rules for the timeline.
"""

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
    """Convert the characters of a file, form or program to the request fields `figures` and `figure_images`.

    Each of the `rows` has a `name` and, as `image`, the path of the character's image. Raises: RequestError.
    """
    if not isinstance(rows, Sequence) or isinstance(rows, str):
        raise RequestError(
            f"figures={shorten(rows, 40)}", "must be a list of characters, each with a name and an image", "give a list"
        )
    images: list[str] = []
    figures = tuple(_read_character(row, number, images) for number, row in enumerate(rows, 1))
    return {"figures": figures, "figure_images": tuple(images)} if figures else {}


def _read_character(row: object, number: int, images: list[str]) -> dict[str, object]:
    if not isinstance(row, Mapping) or row.keys() - _FIELDS or not isinstance(row.get("name") or "", str):
        raise RequestError(f"character {number}, {shorten(row, 40)},", "must have a name and an image", "correct it")
    name, image = plain_name(row.get("name") or ""), row.get("image") or None
    if image is None:
        return {"name": name}
    if not isinstance(image, str):
        raise RequestError(
            f"character {number} has image={shorten(image, 40)}, which", "must be the path of a file", "correct it"
        )
    if image not in images:
        images.append(image)
    return {"name": name, "image": images.index(image)}


def plain_name(name: str) -> str:
    """Return the name with single spaces between its words."""
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
    """Check the names and image indexes of the characters. New and stored requests must pass this check. Raises: RequestError."""
    if len(request.figures) > MAX_FIGURES:
        what = f"figures has {len(request.figures)} characters and"
        raise RequestError(what, f"may have at most {MAX_FIGURES}", "leave some out")
    known: set[str] = set()
    for number, figure in enumerate(request.figures, 1):
        name, count = figure.name, len(request.figure_images)
        if not any(map(_is_word_character, name)):
            raise RequestError(
                f"character {number} has no name and", "must have a name with letters", "give it a name, such as Anna"
            )
        if len(name) > MAX_NAME or not name.isprintable() or name != plain_name(name):
            rule = f"must have a name of at most {MAX_NAME} plain characters"
            raise RequestError(f"character {number}, {shorten(name, 30)},", rule, "shorten it")
        if name.lower() in known:
            raise RequestError(
                f"character {number} has the name {name!r}", "of an earlier character, and must have its own", "rename one"
            )
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
    """Return the image paths of these characters, each path once."""
    return tuple(dict.fromkeys(request.figure_images[figure.image] for figure in figures if figure.image is not None))


def shot_references(request: VideoSettings, prompt: str) -> tuple[str, ...]:
    """Return the reference images of a shot with this prompt: the storyboard's own references, then the images of the characters
    in the prompt."""
    return tuple(dict.fromkeys((*request.references, *character_image_paths(request, find_characters(prompt, request.figures)))))


def _is_word_boundary(beside: str, edge: str) -> bool:
    """Return whether a word boundary is between two neighbouring characters of a prompt.

    `edge` is the first or last character of a name. `beside` is the character before or after the name, "" at the start or end of
    the prompt.
    """
    return not (beside and _joins_words(beside) and _joins_words(edge))


def _joins_words(character: str) -> bool:
    return _is_word_character(character) and not any(first <= ord(character) <= last for first, last in _SCRIPTS_WITHOUT_SPACES)


def _is_word_character(character: str) -> bool:
    return character == "_" or unicodedata.category(character)[0] in "LMN"

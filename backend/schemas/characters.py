"""The figures of a storyboard: names with a picture each. A shot whose prompt names one is shown its picture, as a reference.
Opens no file.

A name is found whatever its letters' case, as a whole word or words; in writing without blanks between words, such as Chinese,
wherever it stands. Of names within one another the longest counts: "the dog" is not also "dog".
`wan_ui/form/storyboard_characters.js` finds names in the same way, for the timeline.
"""

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from backend.errors import RequestError, short
from backend.schemas.control import MAX_REFERENCES
from backend.schemas.settings import Character, VideoSettings
from presets import Preset

MAX_FIGURES = MAX_REFERENCES
MAX_NAME = 40  # characters
_FIELDS = {"name", "image"}
_WITHOUT_BLANKS = (  # scripts that have no blanks between words, or put endings right behind names
    (0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x2E80, 0x9FFF), (0xAC00, 0xD7AF), (0xF900, 0xFAFF),
    (0x20000, 0x3FFFF),
)  # fmt: skip


def read_characters(rows: object) -> dict[str, tuple[Any, ...]]:
    """`figures` that a file, a form or a program describes, each with its `name` and the path of its picture as `image`; and
    their pictures. Raises: RequestError."""
    if not isinstance(rows, Sequence) or isinstance(rows, str):
        raise RequestError(
            f"figures={short(rows, 40)}", "must be a list of figures, each with its name and picture", "give a list"
        )
    images: list[str] = []
    figures = tuple(_read_character(row, number, images) for number, row in enumerate(rows, 1))
    return {"figures": figures, "figure_images": tuple(images)} if figures else {}


def _read_character(row: object, number: int, images: list[str]) -> dict[str, Any]:
    if not isinstance(row, Mapping) or row.keys() - _FIELDS or not isinstance(row.get("name") or "", str):
        raise RequestError(f"figure {number}, {short(row, 40)},", "must have a name and an image", "correct it")
    name, image = plain_name(row.get("name") or ""), row.get("image") or None
    if image is None:
        return {"name": name}
    if not isinstance(image, str):
        raise RequestError(f"figure {number} has image={short(image, 40)}, which", "must be the path of a file", "correct it")
    if image not in images:
        images.append(image)
    return {"name": name, "image": images.index(image)}


def plain_name(name: str) -> str:
    """The name with single blanks between its words."""
    return " ".join(name.split())


def check_characters(request: VideoSettings, preset: Preset) -> None:
    """Raises: RequestError for figures that the preset's model cannot be shown, or that lack a name or a picture."""
    if not request.figures:
        if request.figure_images:
            raise RequestError("figure_images were given", "but no figures, to which they belong", "give figures too")
        return
    if "references" not in preset.inputs:
        rule = f"but {preset.name} takes no reference pictures"
        raise RequestError("figures were given,", rule, "leave them out, or take a preset with control")
    check_names(request)
    without = next((figure.name for figure in request.figures if figure.image is None), None)
    if without is not None:
        raise RequestError(f"figure {without!r} has no picture and", "must have one", "give it one, or leave it out")
    for number, shot in enumerate(request.shots, 1):
        named = find_characters(shot.prompt, request.figures) if shot.video is None else ()
        count = len({*character_image_paths(request, named), *request.references})
        if count > preset.max_references and named:
            beside = " beside the references" if request.references else ""
            what = f"shot {number} names {' and '.join(figure.name for figure in named)}{beside}, but"
            most = f"{preset.max_references} picture{'s' if preset.max_references > 1 else ''}"
            raise RequestError(what, f"{preset.name} can be shown {most} in a video", "name fewer figures in it")


def check_names(request: VideoSettings) -> None:
    """Raises: RequestError for figures of which one has no name of its own, or the number of a picture that the request has not:
    of a stored request too."""
    if len(request.figures) > MAX_FIGURES:
        what = f"figures has {len(request.figures)} of them and"
        raise RequestError(what, f"may have at most {MAX_FIGURES}", "leave some out")
    known: set[str] = set()
    for number, figure in enumerate(request.figures, 1):
        name, count = figure.name, len(request.figure_images)
        if not any(map(_is_word_character, name)):
            raise RequestError(
                f"figure {number} has no name and", "must have one, with letters in it", "give it one, such as Anna"
            )
        if len(name) > MAX_NAME or not name.isprintable() or name != plain_name(name):
            rule = f"must have a name of at most {MAX_NAME} plain characters"
            raise RequestError(f"figure {number}, {short(name, 30)},", rule, "shorten it")
        if name.lower() in known:
            raise RequestError(f"figure {number} has the name {name!r}", "of one before it, and must have its own", "rename one")
        known.add(name.lower())
        if figure.image is not None and not 0 <= figure.image < count:
            rule = f"and must name one of {count} pictures"
            raise RequestError(f"figure {name!r} has image={figure.image}", rule, "correct it")


def find_characters(prompt: str, figures: Sequence[Character]) -> tuple[Character, ...]:
    """Those that the prompt names, in their own order."""
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
    """The paths of these figures' pictures, each once."""
    return tuple(dict.fromkeys(request.figure_images[figure.image] for figure in figures if figure.image is not None))


def shot_references(request: VideoSettings, prompt: str) -> tuple[str, ...]:
    """The references of a shot with this prompt: the storyboard's, then the pictures of the figures that it names."""
    return tuple(dict.fromkeys((*request.references, *character_image_paths(request, find_characters(prompt, request.figures)))))


def _is_word_boundary(beside: str, edge: str) -> bool:
    """Whether a name may end at `edge` where the character `beside` it, or nothing, comes."""
    return not (beside and _joins_words(beside) and _joins_words(edge))


def _joins_words(character: str) -> bool:
    return _is_word_character(character) and not any(first <= ord(character) <= last for first, last in _WITHOUT_BLANKS)


def _is_word_character(character: str) -> bool:
    return character == "_" or unicodedata.category(character)[0] in "LMN"

"""Notes below the controls, with the error that the control caused."""

import re
from html import escape
from typing import Literal, get_args

import gradio as gr

from backend.errors import ClipError, ImageError, SoundError, StudioError
from wan_ui.components.events import start_script

_PATH = re.compile(r"(?<![\w:/.])(?:/[^\s/'\":;,()]+){2,}/?")

Place = Literal["prompt", "image", "sound", "settings"]
PLACES: tuple[Place, ...] = get_args(Place)
_PLACES_OF: dict[str, Place] = {
    **dict.fromkeys(("prompt", "negative_prompt", "shot", "shots", "a", "job"), "prompt"),
    **dict.fromkeys(
        ("track", "track_start", "track_fade", "track_volume", "shot_images", "shot_videos", "shot_drives"), "prompt"
    ),
    **dict.fromkeys(("character", "characters", "figure", "figures", "figure_images"), "prompt"),
    **dict.fromkeys(("image", "last_image"), "image"),
    **dict.fromkeys(("sound", "sound_start"), "sound"),
}


def build_note(elem_id: str) -> gr.HTML:
    """Build an empty note. It becomes visible with its first text."""
    return gr.HTML(note_html(), js_on_load=start_script("note"), elem_id=elem_id)


def error_place(error: StudioError, *, is_of_shots: bool = False) -> Place:
    """Return the name of the note that must show an error. The error's type, or the setting in its first word, decides.

    Args:
        is_of_shots: True for a storyboard. The note below the prompt shows the errors in a storyboard's files.
    """
    if is_of_shots and isinstance(error, ImageError | SoundError | ClipError):
        return "prompt"
    if isinstance(error, ImageError):
        return "image"
    if isinstance(error, SoundError):
        return "sound"
    name = re.split(r"\W", error.what, maxsplit=1)[0]
    return _PLACES_OF.get(name, "settings")


def error_sentence(error: StudioError) -> str:
    """Return the error as a sentence, with a capital and a full stop, and without folders of the server."""
    text = shorten_paths(str(error))
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?", "!")) else ".")


def note_html(text: str = "") -> str:
    """Render a note. Screen readers read it when it appears."""
    return f'<p class="note" role="alert"{"" if text else " hidden"}>{escape(text)}</p>'


def shorten_paths(text: str) -> str:
    """Shorten each absolute path in the text to its file name."""
    return _PATH.sub(lambda found: found[0].rstrip("/").rpartition("/")[2], text)

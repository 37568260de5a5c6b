"""The picture that a video starts from: upload, paste or example, and a preview of the crop.

A click in the picture moves the crop there; Pad adds bars instead of cutting.
Element ids: `input-image`, `crop-preview`, `pad`, `last-image`, `image-note`, `image-examples`.
"""

import base64
import io
from dataclasses import dataclass
from html import escape
from typing import Any

import gradio as gr
from PIL import Image

from backend.errors import ImageError
from backend.media.pictures import MAX_PIXELS, crop_box, crop_to, load_checked_image
from presets import ImageExample, Preset
from wan_ui.desk.uploads import checked_upload
from wan_ui.parts.notes import build_note, note_html, sentence
from wan_ui.words.english import Texts

CENTRE = (0.5, 0.5)
PICTURES = ("image", "last_image")  # the roles (see `backend.contract.request.INPUTS`) that the panel asks for
PREVIEW_SIDE = 480  # pixels; more than the panel ever shows, and the page stays small

_CHOOSE = """
element.addEventListener('click', event => {
  const button = event.target.closest('[data-index]');
  if (button) trigger('choose', {index: Number(button.dataset.index)});
});
"""


@dataclass(frozen=True, kw_only=True)
class ImagePanel:
    """The panel's components; `focus` is the point (x, y in 0..1) that the crop keeps in view."""

    image: gr.Image
    last_image: gr.Image
    preview: gr.HTML
    pad: gr.Button
    focus: gr.State
    note: gr.HTML
    examples: gr.HTML

    @property
    def by_role(self) -> dict[str, gr.Image]:
        """The components by the role of their picture."""
        return {role: getattr(self, role) for role in PICTURES}


def build_image_panel(preset: Preset, texts: Texts, labels: Texts) -> ImagePanel:
    """Builds the panel for this preset's own size."""
    focus = gr.State(CENTRE)
    with gr.Row(elem_classes="pair", equal_height=True):
        image = gr.Image(
            label=labels.image,
            type="filepath",
            sources=["upload"],
            buttons=[],
            elem_id="input-image",
            placeholder=labels.image_placeholder,
            alt_text=texts.image,
        )
        preview = gr.HTML(empty_preview((preset.width, preset.height), texts), elem_id="crop-preview")
    last_image = gr.Image(
        label=labels.last_image,
        type="filepath",
        sources=["upload"],
        buttons=[],
        elem_id="last-image",
        height=120,
        visible="last_image" in preset.inputs,
        placeholder=labels.image_placeholder,
        alt_text=texts.last_image,
    )
    note = build_note("image-note")
    with gr.Row(elem_id="picture-row"):
        examples = gr.HTML(picture_examples_html(preset, texts), js_on_load=_CHOOSE, elem_id="image-examples")
        pad = gr.Button(labels.image_pad, size="sm", elem_id="pad", min_width=100)
    return ImagePanel(image=image, last_image=last_image, preview=preview, pad=pad, focus=focus, note=note, examples=examples)


def picture_examples_html(preset: Preset, texts: Texts) -> str:
    """The preset's example pictures as buttons, each with its caption in this language as the tooltip."""
    captions = preset.words(texts.language).image_examples
    captioned = zip(preset.image_examples, captions, strict=True)
    buttons = "".join(_example_button(index, *each) for index, each in enumerate(captioned))
    return f'<div class="pictures" role="group" aria-label="{escape(texts.image_examples)}">{buttons}</div>'


def _example_button(index: int, example: ImageExample, caption: str) -> str:
    label, source = escape(caption), _data_address(example.path.read_bytes(), example.path.suffix[1:])
    return f'<button type="button" data-index="{index}" title="{label}" aria-label="{label}"><img src="{source}" alt=""></button>'


def uploaded_picture(file: Any) -> str | None:
    """The path of an upload as the page sends it, unopened. Raises: ImageError for a path that is not an upload's.

    Events that read the picture are set up with preprocess=False: Gradio's own preprocessing opens it with Pillow and
    shows only a short toast if it cannot. Our code leaves that to `backend.media.pictures`, whose explanation is then
    shown beside the picture. Gradio checks only the paths of values that carry its `meta`, which a caller may leave
    out, so every path is checked here.
    """
    return str(checked_upload(file.get("path"))) if isinstance(file, dict) else None


def describe_picture(path: str | None, size: tuple[int, int], focus: tuple[float, float], texts: Texts) -> tuple[str, str]:
    """The crop preview and the note below it, both HTML, for an upload, which may be any file."""
    if not path:
        return empty_preview(size, texts), note_html()
    try:
        picture = load_checked_image(path)
    except ImageError as error:
        return empty_preview(size, texts), note_html(sentence(error))
    return _filled_preview(crop_to(picture, *_preview_size(size), focus), size, texts), note_html()


def focus_at(path: str, point: tuple[int, int], size: tuple[int, int]) -> tuple[float, float]:
    """The focus that brings this pixel of the picture nearest to the middle of the crop."""
    try:
        picture_size = load_checked_image(path).size
    except ImageError:
        return CENTRE
    left, top, right, bottom = crop_box(picture_size, size)
    room = (picture_size[0] - (right - left), picture_size[1] - (bottom - top))
    wanted = (point[0] - (right - left) / 2, point[1] - (bottom - top) / 2)
    return tuple(min(max(at / spare, 0.0), 1.0) if spare > 0 else 0.5 for at, spare in zip(wanted, room, strict=True))


def empty_preview(size: tuple[int, int], texts: Texts) -> str:
    """The frame of the crop with nothing in it."""
    return _preview(size, f"<p>{escape(texts.image_preview_empty)}</p>", texts)


def _filled_preview(crop: Image.Image, size: tuple[int, int], texts: Texts) -> str:
    """The crop inside the page itself: a data address leaves no file behind, and nobody else can fetch it."""
    buffer = io.BytesIO()
    crop.save(buffer, "JPEG", quality=88)
    source = _data_address(buffer.getvalue(), "jpeg")
    caption = escape(texts.image_preview.format(width=size[0], height=size[1]))
    return _preview(size, f'<img src="{source}" alt="{caption}" title="{escape(texts.image_hint)}">', texts)


def _preview(size: tuple[int, int], inside: str, texts: Texts) -> str:
    caption = escape(texts.image_preview.format(width=size[0], height=size[1]))
    ratio = f"{size[0] / size[1]:.4f}"
    return (
        f'<figure class="crop"><figcaption>{caption}</figcaption>'
        f'<div class="window"><div class="cut" style="--ratio: {ratio}">{inside}</div></div></figure>'
    )


def padded(picture: Image.Image, size: tuple[int, int]) -> Image.Image:
    """The whole picture with black bars to the aspect of this size; made smaller only to stay within MAX_PIXELS."""
    scale = max(picture.width / size[0], picture.height / size[1])
    framed_pixels = size[0] * size[1] * scale**2
    if framed_pixels > MAX_PIXELS:  # a long thin picture in a square: its width would count twice
        picture, scale = _shrunk(picture, (MAX_PIXELS / framed_pixels) ** 0.5), (MAX_PIXELS / (size[0] * size[1])) ** 0.5
    width, height = picture.size
    whole = (max(width, int(size[0] * scale)), max(height, int(size[1] * scale)))
    framed = Image.new("RGB", whole)
    framed.paste(picture, ((whole[0] - width) // 2, (whole[1] - height) // 2))
    return framed


def _shrunk(picture: Image.Image, share: float) -> Image.Image:
    """The picture with this share (0..1) of its width and height."""
    size = (max(1, int(picture.width * share)), max(1, int(picture.height * share)))
    return picture.resize(size, Image.Resampling.LANCZOS)


def _preview_size(size: tuple[int, int]) -> tuple[int, int]:
    scale = min(1.0, PREVIEW_SIDE / max(size))
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def _data_address(picture: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(picture).decode()}"

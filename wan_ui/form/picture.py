"""The first frame of a video: upload, paste or example, and a preview of the crop.

A click in the image moves the crop. A button adds bars in place of the crop. Element ids: `input-image`, `crop-preview`, `pad`,
`last-image`, `image-note`, `image-examples`.
"""

from dataclasses import dataclass
from html import escape
from typing import Any

import gradio as gr

from presets import Preset
from wan_ui.components.events import start_script
from wan_ui.components.field_errors import build_note
from wan_ui.form.crop import encode_data_url
from wan_ui.gateway.uploads import check_upload_path
from wan_ui.i18n.english import Texts

CENTRE = (0.5, 0.5)
PICTURES = ("image", "last_image")  # the settings that hold the panel's images (see `backend.schemas.settings.INPUTS`)


@dataclass(frozen=True, kw_only=True)
class ImagePanel:
    """The panel's components. `focus` is the point (x, y in 0..1) that the crop keeps visible."""

    image: gr.Image
    last_image: gr.Image
    preview: gr.HTML
    pad: gr.Button
    focus: gr.State
    note: gr.HTML
    examples: gr.HTML

    @property
    def by_setting(self) -> dict[str, gr.Image]:
        """Return the image components by the name of their setting: `image` and `last_image`."""
        return {role: getattr(self, role) for role in PICTURES}


def build_image_panel(preset: Preset, texts: Texts, labels: Texts) -> ImagePanel:
    """Build the panel for this preset's default size."""
    focus = gr.State(CENTRE)
    with gr.Row(elem_classes="pair", equal_height=True):
        image = _build_image("input-image", labels.image, texts.image, labels)
        preview = gr.HTML(empty_preview_html((preset.width, preset.height), texts), elem_id="crop-preview")
    has_last = "last_image" in preset.inputs
    last_image = _build_image("last-image", labels.last_image, texts.last_image, labels, height=120, visible=has_last)
    note = build_note("image-note")
    with gr.Row(elem_id="picture-row"):
        examples = gr.HTML(
            picture_examples_html(preset, texts), js_on_load=start_script("picture_examples", "choose"), elem_id="image-examples"
        )
        pad = gr.Button(labels.image_pad, size="sm", elem_id="pad", min_width=100)
    return ImagePanel(image=image, last_image=last_image, preview=preview, pad=pad, focus=focus, note=note, examples=examples)


def _build_image(element: str, label: str, alt: str, labels: Texts, **more: Any) -> gr.Image:
    return gr.Image(
        label=label,
        elem_id=element,
        alt_text=alt,
        type="filepath",
        sources=["upload"],
        buttons=[],
        placeholder=labels.image_placeholder,
        **more,
    )


def picture_examples_html(preset: Preset, texts: Texts) -> str:
    """Render the preset's example images as buttons. Captions in the visitor's language are their tooltips."""
    buttons = ""
    captioned = zip(preset.image_examples, preset.words(texts.language).image_examples, strict=True)
    for index, (example, caption) in enumerate(captioned):
        label, source = escape(caption), encode_data_url(example.path.read_bytes(), example.path.suffix[1:])
        button = f'<button type="button" data-index="{index}" title="{label}" aria-label="{label}">'
        buttons += f'{button}<img src="{source}" alt=""></button>'
    return f'<div class="pictures" role="group" aria-label="{escape(texts.image_examples)}">{buttons}</div>'


def uploaded_picture(file: object) -> str | None:
    """Return the path of an uploaded image from the page's value, without opening it.

    Listeners that read the image set preprocess=False. Gradio's preprocessing would open the image with Pillow and report an
    error only as a short toast. `backend.media.pictures` explains the error instead, and the page shows it beside the image.
    Gradio checks only the paths of values with `meta`, and a caller can omit `meta`. So this function checks every path.

    Raises: ImageError for a path that is no upload.
    """
    return str(check_upload_path(file.get("path"))) if isinstance(file, dict) else None


def crop_preview_html(address: str, size: tuple[int, int], texts: Texts) -> str:
    """Render the crop. `address` is the data URL of `wan_ui.form.crop.encode_preview`.

    `panel.js` shows `data-hint` as the tooltip of the uploaded image. A click in that image moves the crop.
    """
    caption = escape(texts.image_preview.format(width=size[0], height=size[1]))
    return _preview_html(size, f'<img src="{escape(address)}" alt="{caption}" data-hint="{escape(texts.image_hint)}">', texts)


def empty_preview_html(size: tuple[int, int], texts: Texts) -> str:
    return _preview_html(size, f"<p>{escape(texts.image_preview_empty)}</p>", texts)


def _preview_html(size: tuple[int, int], inside: str, texts: Texts) -> str:
    caption = escape(texts.image_preview.format(width=size[0], height=size[1]))
    ratio = f"{size[0] / size[1]:.4f}"
    return (
        f'<figure class="crop"><figcaption>{caption}</figcaption>'
        f'<div class="window"><div class="cut" style="--ratio: {ratio}">{inside}</div></div></figure>'
    )

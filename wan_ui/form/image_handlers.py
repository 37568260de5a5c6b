"""Handlers of the form's image: examples, the preview of the crop, and padding."""

import asyncio
from dataclasses import dataclass

import gradio as gr

from backend.errors import Busy, StudioError
from backend.media.sandbox import SandboxCall
from presets import load_preset
from wan_ui.components.events import LAST, QUIET, RAW
from wan_ui.components.field_errors import error_sentence, note_html
from wan_ui.form.controls import parse_size
from wan_ui.form.crop import encode_preview, focus_at_point, write_padded
from wan_ui.form.form import Form
from wan_ui.form.picture import CENTRE, crop_preview_html, empty_preview_html, uploaded_picture
from wan_ui.gateway.uploads import copy_to_cache, temporary_image_path
from wan_ui.services.sandbox_calls import requester_from_caller
from wan_ui.services.studio_context import StudioContext


@dataclass(frozen=True, kw_only=True)
class ImageHandlers:
    context: StudioContext
    form: Form

    def wire(self) -> None:
        image, size = self.form.image, self.form.settings.controls["resolution"]
        shown, inputs = [image.preview, image.note], [image.image, size, image.focus]
        image.image.input(self.show_new_image, inputs[:2], [*shown, image.focus], **RAW, **LAST)
        gr.on([size.change, image.image.change], self.show_crop, inputs, shown, **RAW, **LAST)
        moved = image.image.select(self.move_crop, inputs[:2], image.focus, **RAW, **LAST)
        moved.then(self.show_crop, inputs, shown, **RAW, **LAST)
        image.pad.click(self.pad_image, inputs[:2], image.image, **RAW)
        chosen = [image.image, self.form.prompt.prompt]
        image.examples.choose(self.choose_example_image, self.form.settings.preset, chosen, **QUIET, **LAST)

    def choose_example_image(self, name: str | None, event: gr.EventData) -> tuple[object, object]:
        """Return the image and the prompt of one of the preset's examples."""
        examples = load_preset(name).image_examples if name else ()
        if not 0 <= event.index < len(examples):
            return gr.skip(), gr.skip()
        return str(examples[event.index].path), examples[event.index].prompt

    async def show_new_image(self, file: object, resolution: str, request: gr.Request) -> tuple[object, str, tuple[float, float]]:
        """Return the preview of the crop, the note and the focus for a new image."""
        return *(await self.show_crop(file, resolution, CENTRE, request)), CENTRE

    async def show_crop(
        self, file: object, resolution: str, focus: tuple[float, float], request: gr.Request
    ) -> tuple[object, str]:
        caller = await asyncio.to_thread(self.context.identify_caller, request)
        try:
            path, size = uploaded_picture(file), parse_size(resolution)
        except StudioError as error:
            return gr.skip(), note_html(error_sentence(error))
        if path is None:
            return empty_preview_html(size, caller.texts), note_html()
        try:
            call = SandboxCall(work=encode_preview, arguments=(path, size, focus))
            address = await self.context.engine.sandbox.run_async(call, requester_from_caller(caller))
        except Busy as error:
            return gr.skip(), note_html(error_sentence(error))
        except StudioError as error:
            return empty_preview_html(size, caller.texts), note_html(error_sentence(error))
        return crop_preview_html(address, size, caller.texts), note_html()

    async def move_crop(self, file: object, resolution: str, request: gr.Request, event: gr.SelectData) -> tuple[float, float]:
        """Return the focus after a click in the image."""
        try:
            path, size = uploaded_picture(file), parse_size(resolution)
            if path is None:
                return CENTRE
            call = SandboxCall(work=focus_at_point, arguments=(path, tuple(event.index), size))
            caller = await asyncio.to_thread(self.context.identify_caller, request)
            return tuple(await self.context.engine.sandbox.run_async(call, requester_from_caller(caller)))
        except StudioError:
            return CENTRE

    async def pad_image(self, file: object, resolution: str, request: gr.Request) -> object:
        try:
            path, size = uploaded_picture(file), parse_size(resolution)
            if path is None:
                return gr.skip()
            with temporary_image_path() as part:
                call = SandboxCall(work=write_padded, arguments=(path, size, part))
                caller = await asyncio.to_thread(self.context.identify_caller, request)
                await self.context.engine.sandbox.run_async(call, requester_from_caller(caller))
                return await asyncio.to_thread(copy_to_cache, part)
        except StudioError:
            return gr.skip()

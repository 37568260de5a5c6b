"""Suggestions for the prompt, shown while a language model writes them.

The prompt changes only when the visitor presses *Use suggestion*. *Undo* restores it.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from html import escape

import gradio as gr

from backend.budget import HourlyBudget
from backend.errors import Busy, RequestError, StudioError
from backend.media.sandbox import SandboxCall
from backend.prompt_rewriting.helper import Helper, stream_suggestions
from backend.prompt_rewriting.request import RewriteRequest, has_instructions
from backend.schemas.settings import find_preset
from wan_ui.components.buttons import Act, text_button
from wan_ui.components.events import EACH, QUIET, SILENT, Listener, Updates, Values
from wan_ui.components.field_errors import error_sentence, note_html
from wan_ui.form.crop import encode_preview
from wan_ui.form.form import Draft, Form
from wan_ui.form.rewrite import partial_suggestion_html, suggestion_html
from wan_ui.gateway.limits import PROMPTS_HOURLY, PROMPTS_WRITTEN
from wan_ui.i18n.english import Texts
from wan_ui.services.caller import Caller
from wan_ui.services.sandbox_calls import requester_from_caller
from wan_ui.services.studio_context import StudioContext

SECONDS_BETWEEN = 0.15  # between two updates of a growing suggestion


@dataclass(frozen=True, kw_only=True)
class RewriteHandlers:
    """Handlers of suggestions.

    `asking` maps each page that waits for a suggestion to the event that ends the wait. `busy` counts the suggestions that each
    visitor and each address waits for. `hourly` counts the suggestions of the last hour.
    """

    context: StudioContext
    form: Form
    asking: dict[str, asyncio.Event] = field(default_factory=dict)
    busy: Counter[str] = field(default_factory=Counter)
    hourly: HourlyBudget = field(
        default_factory=lambda: HourlyBudget(PROMPTS_HOURLY.of_visitor, PROMPTS_HOURLY.of_address, PROMPTS_HOURLY.in_all)
    )

    def wire(self, act: Listener) -> None:
        """Connect the buttons to their handlers. Hide a suggestion when the prompt changes."""
        prompt, panel = self.form.prompt.prompt, self.form.prompt.rewrite
        inputs, outputs = self.form.inputs, panel.suggestion
        panel.button.click(
            self.suggest, inputs, outputs, concurrency_limit=None, trigger_mode="multiple", preprocess=False, **SILENT
        )
        prompt.change(self.clear_if_changed, [prompt, panel.put], panel.suggestion, **QUIET)
        act(self.act, {prompt}, [prompt, panel.put, panel.suggestion], **EACH)

    async def suggest(self, values: Values, request: gr.Request) -> AsyncIterator[str]:
        """Yield the growing suggestion as HTML, then the complete suggestion with its changes marked, or an error."""
        caller = await asyncio.to_thread(self.context.identify_caller, request)
        prompt = str(values[self.form.prompt.prompt] or "")
        if self.context.rewriter is None or not prompt.strip():
            yield ""
            return
        page, ended = request.session_hash or "", asyncio.Event()
        self.end_suggestion(page)
        self.asking[page] = ended
        try:
            with self._reserve_place(caller):
                yield partial_suggestion_html("", caller.texts)
                rewrite_request = await self._build_request(self.form.read(values), prompt, caller)
                async with aclosing(_stream_html(ended, self.context.rewriter, rewrite_request, caller.texts)) as stream:
                    async for html in stream:
                        yield html
                if ended.is_set():
                    yield ""
        except StudioError as error:
            yield note_html(error_sentence(error))
        finally:
            if self.asking.get(page) is ended:
                del self.asking[page]

    async def act(self, values: Values, request: gr.Request, event: gr.EventData) -> Updates:
        """Handle the suggestion's buttons: stop, use, undo."""
        act, prompt, panel = Act.from_event(event), self.form.prompt.prompt, self.form.prompt.rewrite
        if act.what == "use":
            caller = await asyncio.to_thread(self.context.identify_caller, request)
            undo = text_button("rewrite:undo", caller.texts.rewrite_undo, value=str(values[prompt] or ""))
            note = f'<p class="hint">{escape(caller.texts.rewrite_used)}</p><div class="actions">{undo}</div>'
            used = f'<div class="suggestion used">{note}</div>'
            return {prompt: act.value, panel.put: act.value, panel.suggestion: used}
        self.end_suggestion(request.session_hash or "")
        if act.what == "undo":
            return {prompt: act.value, panel.put: None, panel.suggestion: ""}
        return {panel.suggestion: ""}

    async def clear_if_changed(self, prompt: str | None, put: str | None, request: gr.Request) -> object:
        """Hide the suggestion when the prompt is no longer the inserted suggestion."""
        if put is not None and prompt == put:
            return gr.skip()
        self.end_suggestion(request.session_hash or "")
        return ""

    def end_suggestion(self, page: str) -> None:
        """End the suggestion that this page waits for, if any."""
        if (ended := self.asking.pop(page, None)) is not None:
            ended.set()

    @contextmanager
    def _reserve_place(self, caller: Caller) -> Generator[None]:
        """Count one suggestion until the `with` block ends.

        Raises: Busy if too many suggestions are being written, or were written within an hour.
        """
        # Callers with an empty address have no limit per address. The address is empty for callers without any limits. It is also
        # empty for requests from this machine, because a proxy on this machine can send the requests of many visitors.
        address = caller.queue_limits.address if caller.queue_limits else ""
        most = {f"visitor {caller.owner}": PROMPTS_WRITTEN.of_visitor, "all": PROMPTS_WRITTEN.in_all}
        if address:
            most[f"address {address}"] = PROMPTS_WRITTEN.of_address
        if any(self.busy[one] >= allowed for one, allowed in most.items()):
            raise Busy("the helper for prompts", "is writing for others, or for you on another page", "try again in a moment")
        if caller.queue_limits is not None:  # suggestions for the operator are not counted
            if self.hourly.remaining(caller.owner, address) < 1:
                rule = f"writes at most {PROMPTS_HOURLY.of_visitor} suggestions an hour for a visitor"
                raise Busy("the helper for prompts", rule, "try again later")
            self.hourly.add(caller.owner, address, 1)
        who = list(most)
        self.busy.update(who)
        try:
            yield
        finally:
            self.busy.subtract(who)
            for one in who:
                if not self.busy[one]:
                    del self.busy[one]

    async def _build_request(self, draft: Draft, prompt: str, caller: Caller) -> RewriteRequest:
        """Build the request to the language model, with the image as the video model receives it. Raises: StudioError."""
        given = draft.given
        preset = find_preset(given["preset"])
        if not has_instructions(preset):
            raise RequestError(f"preset={preset.name!r}", "has no instructions for prompts", "write it by hand")
        starts, picture = given["task"] == "i2v", None
        if starts and given["image"]:
            size = (given["width"], given["height"])
            call = SandboxCall(work=encode_preview, arguments=(given["image"], size, given["image_focus"]))
            picture = await self.context.engine.sandbox.run_async(call, requester_from_caller(caller))
        seconds = (given["num_frames"] or preset.num_frames) / (given.get("fps") or preset.fps)
        return RewriteRequest(prompt=prompt, preset=preset, seconds=seconds, starts_from_picture=starts, picture=picture)


async def _stream_html(
    ended: asyncio.Event, helper: Helper, rewrite_request: RewriteRequest, texts: Texts
) -> AsyncGenerator[str]:
    """Yield the growing suggestion as HTML, then the complete suggestion with its differences from the prompt marked.

    Raises: StudioError.
    """
    async with aclosing(_stream_until_ended(ended, helper, rewrite_request)) as growing:
        async for suggestion, is_whole in growing:
            if is_whole:
                yield await asyncio.to_thread(suggestion_html, rewrite_request.prompt, suggestion, texts)
            else:
                yield partial_suggestion_html(suggestion, texts)


async def _stream_until_ended(
    ended: asyncio.Event, helper: Helper, rewrite_request: RewriteRequest
) -> AsyncGenerator[tuple[str, bool]]:
    """Yield (suggestion, False) while the suggestion grows, then (suggestion, True). Stop early when `ended` is set.

    Raises: StudioError.
    """
    shown, suggestion, stopping = 0.0, "", asyncio.ensure_future(ended.wait())
    try:
        async with aclosing(stream_suggestions(helper, rewrite_request)) as growing:
            while True:
                piece = asyncio.ensure_future(anext(growing))
                await asyncio.wait({piece, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if stopping.done():
                    piece.cancel()
                    await asyncio.gather(piece, return_exceptions=True)
                    return
                try:
                    suggestion = piece.result()
                except StopAsyncIteration:
                    yield suggestion, True
                    return
                if time.monotonic() - shown >= SECONDS_BETWEEN:
                    shown = time.monotonic()
                    yield suggestion, False
    finally:
        stopping.cancel()

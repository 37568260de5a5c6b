"""Handlers of instant mode: request a draft of the form's video, and answer when the draft is finished."""

import asyncio
from dataclasses import dataclass

import gradio as gr

from backend.engine.instant import DraftResult, InstantDraft
from backend.errors import Busy, StudioError
from backend.media.sandbox import Steps
from backend.schemas.events import DraftFinished, Failed
from wan_ui.components.buttons import Act
from wan_ui.components.events import EACH, QUIET, Listener, Updates, Values
from wan_ui.components.field_errors import error_sentence, shorten_paths
from wan_ui.form.form import Form
from wan_ui.form.instant import result_html
from wan_ui.services.caller import Caller
from wan_ui.services.sandbox_calls import requester_from_caller
from wan_ui.services.studio_context import StudioContext

WAIT_SECONDS = 20.0  # the longest wait for a draft; then the draft is dropped, and an open page requests it again
_CHANGED = "() => studio.form.requestDraft()"


@dataclass(frozen=True, kw_only=True)
class InstantHandlers:
    context: StudioContext
    form: Form

    def wire(self, act: Listener) -> None:
        """Connect the event of the page's script to its handler. Notify the script of all changes of the form."""
        form, settings, image, instant = self.form, self.form.settings, self.form.image, self.form.prompt.instant
        changing = [form.prompt.prompt, settings.preset, *settings.follows_preset, settings.is_seed_random]
        changes = [component.change for component in (*changing, *image.by_setting.values(), image.focus)]
        # `seed.input`, not `seed.change`: a queued video changes the seed too, but the stage shows that video and needs no draft.
        gr.on([*changes, settings.seed.input, *(tab.select for tab in form.tab_items)], None, js=_CHANGED, **QUIET)
        act(self.act, form.inputs | {instant.switch, instant.seed}, [instant.result, instant.seed], **EACH)

    async def act(self, values: Values, request: gr.Request, event: gr.EventData) -> Updates:
        """Generate a draft ("draft"), or stop the visitor's draft ("stop").

        Without a prompt, only prepare the worker. If the draft was stopped or is late, the page must request it again, unless a
        newer request of the same visitor replaced it.
        """
        caller, act = await asyncio.to_thread(self.context.identify_caller, request), Act.from_event(event)
        result, texts, drafts = self.form.prompt.instant.result, caller.texts, self.context.engine.queue.drafts
        if not self.context.offers_instant or act.what != "draft":
            drafts.stop_owner(caller.owner)
            return {result: gr.skip()}
        number = int(act.value) if act.value.isdecimal() and len(act.value) < 10 else 0
        fixed = self.form.prompt.instant.fix_seed(values, self.form.settings)
        try:
            answer = await self._generate(fixed, caller)
        except Busy as error:
            note = texts.instant_waits if drafts.are_paused else error_sentence(error)
            return {result: result_html(number, note, is_waiting=True)}
        except StudioError as error:
            return {result: result_html(number, error_sentence(error))}
        seed = fixed[self.form.settings.seed]
        prompt = str(values[self.form.prompt.prompt] or "").strip()
        match answer:
            case DraftFinished(picture=picture):
                shown = result_html(number, prompt=prompt, seed=seed, picture=picture)
                return {result: shown, self.form.prompt.instant.seed: seed}
            case Failed(cause=cause, fix=fix):
                return {result: result_html(number, shorten_paths(f"{cause}; {fix}"))}
        return {result: result_html(number, is_waiting=bool(prompt) and answer is None)}

    async def _generate(self, values: Values, caller: Caller) -> DraftResult:
        """Return the draft's result, None also if the draft is late or has no prompt. Raises: StudioError."""
        sandbox, drop = self.context.engine.sandbox, self._drop
        draft = await sandbox.run_steps_async(self._start(values, caller), requester_from_caller(caller), drop)
        if draft is None:
            return None
        try:
            await asyncio.wait([asyncio.wrap_future(draft.result)], timeout=WAIT_SECONDS)
            return draft.result.result() if draft.result.done() else None
        finally:
            drop(draft)

    def _start(self, values: Values, caller: Caller) -> Steps[InstantDraft | None]:
        prompt = self.form.prompt.prompt
        has_prompt = bool(str(values[prompt] or "").strip())
        wanted = self.form.read(values if has_prompt else values | {prompt: "?"}).to_request()
        if has_prompt:
            return (yield from self.context.draft_steps(wanted, caller))
        self.context.prepare_draft(wanted, caller)
        return None

    def _drop(self, draft: InstantDraft | None) -> None:
        if draft is not None:
            self.context.engine.queue.drafts.drop(draft)

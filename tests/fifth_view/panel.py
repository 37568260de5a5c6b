"""A fifth view of the studio, added as another author would: by this folder and its name in the list of views. Tests only."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape

import gradio as gr
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from wan_ui.components.buttons import Act, text_button
from wan_ui.components.events import Updates, Values
from wan_ui.form.form import Form
from wan_ui.queue.queue_query import visible_queue
from wan_ui.services.caller import Caller
from wan_ui.services.panel import Panel
from wan_ui.services.studio_context import StudioContext
from wan_ui.view import FORM, Shell, View


@dataclass(frozen=True, kw_only=True)
class FifthHandlers(Panel):
    """Shows the contents of the form and the queue."""

    context: StudioContext
    form: Form
    queue: gr.HTML
    form_says: gr.HTML

    @property
    def inputs(self) -> set[gr.Component]:
        return self.form.inputs

    @property
    def outputs(self) -> list[gr.Component]:
        return [self.queue, self.form_says]

    @property
    def acts(self) -> Mapping[str, Callable[..., Updates]]:
        return {"fifth": self.act, "look_fifth": self.look}

    def initial_updates(self, caller: Caller, parameters: Mapping[str, str], values: Values) -> Updates:
        """Show the parameter `hello` of the page's address."""
        return {self.form_says: f'<p id="fifth-form">opened {escape(parameters.get("hello", ""))}</p>'}

    def tick(self, caller: Caller, values: Values) -> Updates:
        """Show the prompts of the visitor's queue."""
        queue = visible_queue(self.context, caller)
        prompts = [entry.job.summary.prompt for entry in (*queue.running, *queue.waiting, *queue.recent)]
        return {self.queue: f'<p id="fifth-queue">{escape("; ".join(prompts))}</p>'}

    def act(self, values: Values, request: gr.Request, event: gr.EventData) -> Updates:
        """Show the button's action and the form's current prompt."""
        prompt = self.form.read(values).given["prompt"]
        return {self.form_says: f'<p id="fifth-form">{escape(Act.from_event(event).what)} {escape(prompt)}</p>'}

    def look(self, values: Values, request: gr.Request, event: gr.EventData) -> Updates:
        """Show that the view was opened."""
        return {self.form_says: '<p id="fifth-form">seen</p>'}


def build_fifth(shell: Shell) -> FifthHandlers:
    """Build two lines and a button."""
    gr.HTML(text_button("fifth:read", "Read the form"), elem_id="fifth-button")
    return FifthHandlers(context=shell.context, form=shell.form, queue=gr.HTML(""), form_says=gr.HTML(""))


def routes(context: StudioContext) -> list[Route]:
    """Return the view's own route."""

    def count(request: Request) -> Response:
        return PlainTextResponse(f"{len(context.engine.jobs.list_jobs())} jobs")

    return [Route("/studio/fifth", count)]


RULES = {"/studio/fifth": "public"}
FIFTH = View(key="fifth", title="system_jobs", build=build_fifth, beside=(FORM,), routes=routes, rules=RULES)

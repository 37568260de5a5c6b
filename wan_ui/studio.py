"""Build the page and connect it to the engine. One page serves any number of visitors.

The state of a page is in `gr.State`, the state of a visitor in the engine, under the visitor's owner name. Each page that shows a
job has a follower, which ends with the page. Short handlers skip Gradio's queue, so that no click waits for followers. All
handlers are private. Only `wan_ui.routes` has endpoints for programs.
"""

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass

import gradio as gr

from backend.engine.engine import Engine
from backend.prompt_rewriting.helper import Helper
from wan_ui.components.events import EACH, LAST, RAW, Listener, Updates, Values, start_script
from wan_ui.components.toast import Message
from wan_ui.form.batch import BatchHandlers
from wan_ui.form.handlers import FORM_ACTS, FormHandlers
from wan_ui.form.instant_handlers import InstantHandlers
from wan_ui.form.panel import build_form
from wan_ui.form.rewrite_handlers import RewriteHandlers
from wan_ui.gateway.access import Access
from wan_ui.gateway.uploads import create_upload_folder
from wan_ui.header import status_html, title_html, tools_html
from wan_ui.i18n.english import ENGLISH, Texts
from wan_ui.i18n.labels import labels as make_labels
from wan_ui.queue.handlers import QUEUE_ACTS, QueueHandlers
from wan_ui.queue.html import Queue, queue_html
from wan_ui.routes.api import add_api
from wan_ui.services.caller import Caller
from wan_ui.services.presets import CanRun
from wan_ui.services.studio_context import StudioContext
from wan_ui.stage.handlers import StageHandlers, build_stage
from wan_ui.view import FORM, Panel, Shell, View, column_classes
from wan_ui.views import VIEWS

log = logging.getLogger(__name__)

CACHE_SECONDS = (3600, 24 * 3600)  # uploads are checked every hour and deleted after a day
_CHANGES = "changes"  # key in `seen`: the engine's change count when the page was last updated


@dataclass(frozen=True, kw_only=True)
class PageHandlers:
    """The header, the form, the queue and all views. `seen` has hashes of what a page shows: an update sends only changes."""

    context: StudioContext
    title: gr.HTML
    tools: gr.HTML
    form: FormHandlers
    queue: QueueHandlers
    views: Sequence[View]
    panels: Sequence[Panel]
    seen: gr.State

    def open(self, values: Values, request: gr.Request) -> Updates:
        """Fill a new page: texts in the visitor's language, their jobs, and the settings of a link or of the last visit.

        If the link or the settings cannot be loaded, the page opens without them and shows a message.
        """
        caller = self.context.identify_caller(request)
        try:
            return self._opening_updates(caller, dict(request.query_params), values)
        except Exception:
            log.exception("A page could not load the settings of its link or of the last visit")
        message = Message(text=f"{caller.texts.error_unexpected} {caller.texts.opened_without}", is_bad=True)
        return self._opening_updates(caller, {}, values | {self.form.form.session: None}) | {
            self.form.message: message.html(caller.texts)
        }

    def _opening_updates(self, caller: Caller, parameters: dict[str, str], values: Values) -> Updates:
        shown = self.form.initial_updates(caller, parameters, values)
        if not caller.uses_english:
            names = [(view.key, getattr(caller.texts, view.title)) for view in self.views]
            shown |= {self.title: title_html(names, caller.texts), self.tools: tools_html(names, caller.texts)}
        for panel in self.panels:
            shown |= panel.initial_updates(caller, parameters, values)
        return shown

    def tick(self, values: Values, request: gr.Request) -> Updates:
        """Send the changes of the views since the last update. The page calls this after an event of `/studio/changes`."""
        caller, seen, drawn = self.context.identify_caller(request), values[self.seen], {}
        changes = self.context.engine.event_log.count_changes()
        if seen.get(_CHANGES) != changes:
            for panel in self.panels:
                drawn |= panel.tick(caller, values)
        marks = {
            str(component._id): hashlib.blake2b(repr(update).encode(), digest_size=8).hexdigest()
            for component, update in drawn.items()
        }
        news = {one: update for one, update in drawn.items() if seen.get(str(one._id)) != marks[str(one._id)]}
        return news | {self.seen: seen | marks | {_CHANGES: changes}}


def build_page(
    engine: Engine,
    texts: Texts = ENGLISH,
    can_run: CanRun | None = None,
    rewriter: Helper | None = None,
    views: Sequence[View] = VIEWS,
    models: frozenset[str] | None = None,
    *,
    offers_instant: bool = True,
) -> gr.Blocks:
    """Build the page for an engine.

    `can_run` tells which presets are offered, by default the presets that need no download. `models` are the presets that
    visitors may use, None for all.
    """
    context = StudioContext(
        engine=engine,
        access=Access.load_or_create(engine.settings.data_dir),
        can_run=can_run or engine.has_weights,
        rewriter=rewriter,
        models=models,
        uploads=create_upload_folder(engine.settings.data_dir),
        offers_instant=offers_instant,
    )
    with gr.Blocks(title=texts.product, fill_width=True, analytics_enabled=False, delete_cache=CACHE_SECONDS) as blocks:
        page, stage = _lay_out(context, texts, views)
        # The hidden component that receives presses of buttons. A button of the group GROUP triggers the event `act_GROUP`.
        groups = ["tick", *FORM_ACTS, *QUEUE_ACTS, *(group for panel in page.panels for group in panel.acts)]
        script = start_script("act", *(f"act_{group}" for group in groups))
        act = gr.HTML("<span hidden></span>", js_on_load=script, elem_id="act")
        _wire(blocks, act, page, stage)
        add_api(context)
    return blocks


def _lay_out(context: StudioContext, texts: Texts, views: Sequence[View]) -> tuple[PageHandlers, StageHandlers]:
    labels = make_labels()
    names = [(view.key, getattr(texts, view.title)) for view in views]
    workers = context.engine.pool.workers()
    with gr.Row(elem_id="header"):
        title = gr.HTML(title_html(names, texts), elem_id="title")
        status = gr.HTML(status_html(workers, texts), js_on_load=start_script("worker_status"), elem_id="worker-status")
        tools = gr.HTML(tools_html(names, texts), js_on_load=start_script("theme"), elem_id="theme")
    message = gr.HTML('<div class="message"></div>', js_on_load=start_script("message"), elem_id="message", render=False)
    html, script = queue_html(Queue(), texts), start_script("queue")
    queue = gr.HTML(html, js_on_load=script, elem_id="queue", apply_default_css=False, render=False)
    with gr.Row(elem_id="workspace"):
        with gr.Column(elem_id="controls", elem_classes=column_classes(FORM, views), min_width=320):
            form = build_form(context, texts, labels)
        panel = build_stage(queue, status, texts)
        stage = StageHandlers(context=context, form=form, panel=panel, message=message)
        shell = Shell(context=context, texts=texts, labels=labels, form=form, stage=stage, message=message)
        panels = []
        for view in views:
            classes = ["view-column", *column_classes(view.key, views)]
            with gr.Column(elem_id=f"{view.key}-column", elem_classes=classes, min_width=320):
                panels.append(view.build(shell))
        with gr.Column(elem_id="queue-column", min_width=240):
            queue.render()
    message.render()
    page = PageHandlers(
        context=context,
        title=title,
        tools=tools,
        form=FormHandlers(context=context, form=form, message=message),
        queue=QueueHandlers(context=context, queue=queue, message=message, job_id=panel.job_id),
        views=views,
        panels=panels,
        seen=gr.State({}),
    )
    return page, stage


def _wire(blocks: gr.Blocks, act: gr.HTML, page: PageHandlers, stage: StageHandlers) -> None:
    form, queue, job_id = page.form, page.queue, stage.panel.job_id
    outputs = [component for panel in page.panels for component in panel.outputs]
    # `tick` reads and may change these components. `open` may also change the header and the form.
    inputs, ticked = {page.seen}.union(*(panel.inputs for panel in page.panels)), list(dict.fromkeys([page.seen, *outputs]))
    opening = list(dict.fromkeys([page.title, page.tools, *form.outputs, *outputs]))
    form.wire()
    for panel in page.panels:
        panel.wire()
    form.wire_choice(_act_event(act, "choose"))
    for group, handler in (("fill", form.loading.act), ("drop", form.loading.drop)):
        form.show_editing_after(_act_event(act, group)(handler, None, form.loading.outputs, **EACH))
    _act_event(act, "estimate")(form.estimate, form.form.inputs, form.form.actions.estimate, **RAW, **LAST)
    _act_event(act, "own")(form.own_presets.act, form.form.inputs, [*form.loading.outputs, form.form.own_presets], **RAW)
    stage.follow_after(_act_event(act, "again")(queue.again, None, [*queue.outputs, job_id], **EACH))
    stage.follow_after(_act_event(act, "show")(queue.show, None, [queue.message, job_id], **EACH))
    # The page is updated immediately after a change of the queue, because views may show a changed job.
    _act_event(act, "queue")(queue.act, None, queue.outputs, **EACH).then(page.tick, inputs, ticked, **EACH)
    for panel in page.panels:
        for group, handler in panel.acts.items():
            panel.after_act(_act_event(act, group)(handler, panel.inputs, panel.outputs, **EACH))
    opened = blocks.load(page.open, inputs | {form.form.session}, opening, **RAW)
    stage.follow_after(opened)
    opened.then(form.estimate, form.form.inputs, form.form.actions.estimate, **RAW, **LAST)
    _act_event(act, "tick")(page.tick, inputs, ticked, **RAW, **LAST)
    context = page.context
    RewriteHandlers(context=context, form=form.form).wire(_act_event(act, "rewrite"))
    BatchHandlers(context=context, form=form.form, message=form.message).wire(_act_event(act, "batch"))
    InstantHandlers(context=context, form=form.form).wire(_act_event(act, "instant"))


def _act_event(act: gr.HTML, group: str) -> Listener:
    return getattr(act, f"act_{group}")

"""Build the page and connect it to the engine. One page serves any number of visitors.

The state of a page is in `gr.State`. The state of a visitor is in the engine, under the visitor's owner name (see
`wan_ui.gateway.visitors`). Each page that shows a job has a follower, which ends with the page. Short handlers skip Gradio's
queue, so that no click waits for followers. All handlers are private. Only `wan_ui.routes` has endpoints for programs.
"""

from collections.abc import Sequence

import gradio as gr

from backend.engine.engine import Engine
from backend.prompt_rewriting.helper import Helper
from wan_ui.components.buttons import build_act
from wan_ui.components.events import EACH, LAST, RAW, Listener
from wan_ui.components.toast import build_message
from wan_ui.form.batch import BatchHandlers
from wan_ui.form.handlers import FORM_ACTS, FormHandlers
from wan_ui.form.instant_handlers import InstantHandlers
from wan_ui.form.panel import build_form
from wan_ui.form.rewrite_handlers import RewriteHandlers
from wan_ui.gateway.access import Access
from wan_ui.gateway.uploads import create_upload_folder
from wan_ui.header import build_header
from wan_ui.i18n.english import ENGLISH, Texts
from wan_ui.i18n.labels import labels as make_labels
from wan_ui.page import PageHandlers, view_names
from wan_ui.queue.handlers import QUEUE_ACTS, QueueHandlers
from wan_ui.queue.panel import build_queue
from wan_ui.routes.api import add_api
from wan_ui.services.presets import CanRun
from wan_ui.services.studio_context import StudioContext
from wan_ui.stage.handlers import StageHandlers, build_stage
from wan_ui.view import FORM, Panel, Shell, View, column_classes
from wan_ui.views import VIEWS

CACHE_SECONDS = (3600, 24 * 3600)  # uploads are checked every hour and deleted after a day


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

    `can_run` tells which presets are offered, by default the presets that need no download. `models` are the names of the
    presets that visitors may use, None for all. `offers_instant` is false without instant drafts.
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
        act = build_act(["tick", *FORM_ACTS, *QUEUE_ACTS, *(group for panel in page.panels for group in panel.acts)])
        _wire(blocks, act, page, stage)
        add_api(context)
    return blocks


def _lay_out(context: StudioContext, texts: Texts, views: Sequence[View]) -> tuple[PageHandlers, StageHandlers]:
    """Build the header, and below it the columns of the form, of each view and of the queue."""
    labels = make_labels()
    header = build_header(context.engine.pool.workers(), view_names(views, texts), texts)
    message, queue = build_message(), build_queue(texts)
    with gr.Row(elem_id="workspace"):
        with gr.Column(elem_id="controls", elem_classes=column_classes(FORM, views), min_width=320):
            form = build_form(context, texts, labels)
        panel = build_stage(queue, header.status, texts)
        stage = StageHandlers(context=context, form=form, panel=panel, message=message)
        shell = Shell(context=context, texts=texts, labels=labels, form=form, stage=stage, message=message)
        panels = [_build_column(view, views, shell) for view in views]
        with gr.Column(elem_id="queue-column", min_width=240):
            queue.render()
    message.render()
    page = PageHandlers(
        context=context,
        header=header,
        form=FormHandlers(context=context, form=form, message=message),
        queue=QueueHandlers(context=context, queue=queue, message=message, job_id=panel.job_id),
        views=views,
        panels=panels,
        seen=gr.State({}),
    )
    return page, stage


def _build_column(view: View, views: Sequence[View], shell: Shell) -> Panel:
    classes = ["view-column", *column_classes(view.key, views)]
    with gr.Column(elem_id=f"{view.key}-column", elem_classes=classes, min_width=320):
        return view.build(shell)


def _wire(blocks: gr.Blocks, act: gr.HTML, page: PageHandlers, stage: StageHandlers) -> None:
    page.form.wire()
    for panel in page.panels:
        panel.wire()
    _wire_form_acts(act, page.form)
    _wire_queue_acts(act, page, stage)
    for panel in page.panels:
        for group, handler in panel.acts.items():
            panel.after_act(_act_event(act, group)(handler, panel.inputs, panel.outputs, **EACH))
    opened = blocks.load(page.open, page.opening_inputs, page.opening_outputs, **RAW)
    stage.follow_after(opened)
    page.form.estimate_after(opened)
    _act_event(act, "tick")(page.tick, page.inputs, page.tick_outputs, **RAW, **LAST)
    context, form = page.context, page.form.form
    RewriteHandlers(context=context, form=form).wire(_act_event(act, "rewrite"))
    BatchHandlers(context=context, form=form, message=page.form.message).wire(_act_event(act, "batch"))
    InstantHandlers(context=context, form=form).wire(_act_event(act, "instant"))


def _wire_form_acts(act: gr.HTML, form: FormHandlers) -> None:
    form.wire_choice(_act_event(act, "choose"))
    for group, handler in (("fill", form.loading.act), ("drop", form.loading.drop)):
        form.show_editing_after(_act_event(act, group)(handler, None, form.loading.outputs, **EACH))
    _act_event(act, "estimate")(form.estimate, form.form.inputs, form.form.actions.estimate, **RAW, **LAST)
    outputs = [*form.loading.outputs, form.form.own_presets]
    _act_event(act, "own")(form.own_presets.act, form.form.inputs, outputs, **RAW)


def _wire_queue_acts(act: gr.HTML, page: PageHandlers, stage: StageHandlers) -> None:
    """Connect the queue's buttons to their handlers. The page is updated immediately, because views may show a changed job."""
    queue, job_id = page.queue, stage.panel.job_id
    stage.follow_after(_act_event(act, "again")(queue.again, None, [*queue.outputs, job_id], **EACH))
    stage.follow_after(_act_event(act, "show")(queue.show, None, [queue.message, job_id], **EACH))
    _act_event(act, "queue")(queue.act, None, queue.outputs, **EACH).then(page.tick, page.inputs, page.tick_outputs, **EACH)


def _act_event(act: gr.HTML, group: str) -> Listener:
    return getattr(act, f"act_{group}")

"""Puts the panels together and wires them to the engine. One page, any number of visitors.

What belongs to a page is in `gr.State`; what belongs to a visitor is in the engine under the visitor's owner name (see
`visitors`). Closing a page ends only its follower. Short handlers skip Gradio's queue, so that no click waits behind
the followers, of which there is one for each page that shows a job. All handlers are private: the only endpoints for
programs are those in `api`.

Element ids that tests and scripts may rely on: `generate`, `stop`, `leave`, `estimate`, `tabs`, and those that each panel's
file lists.
"""

from dataclasses import dataclass
from typing import Any

import gradio as gr

from backend.engine.engine import Engine
from presets import list_presets
from wan_ui.compare.handlers import CompareHandlers
from wan_ui.compare.panel import ComparePanel, build_compare_panel
from wan_ui.desk.access import Access
from wan_ui.desk.desk import Desk
from wan_ui.desk.presets import CanRun, PresetChoices, preset_choices
from wan_ui.desk.rewriter import PromptRewriter
from wan_ui.form.fill import FillHandlers
from wan_ui.form.form import Form
from wan_ui.form.own_presets import OwnPresetHandlers, build_own_presets
from wan_ui.form.picture import build_image_panel
from wan_ui.form.prompt import build_prompt_panel
from wan_ui.form.settings import build_settings_panel
from wan_ui.header import Header, build_header
from wan_ui.library.handlers import JobHandlers
from wan_ui.library.panel import LibraryPanel, build_library_panel
from wan_ui.page import PageHandlers
from wan_ui.parts.buttons import build_act
from wan_ui.parts.message import build_message
from wan_ui.queue.html import Queue, queue_html
from wan_ui.routes.api import add_api
from wan_ui.stage.handlers import Handlers, Stage
from wan_ui.stage.panel import build_result_panel
from wan_ui.words.english import ENGLISH, Texts
from wan_ui.words.labels import labels as make_labels

CACHE_SECONDS = (3600, 24 * 3600)  # uploads are looked through every hour and deleted after a day
_QUIET: dict[str, Any] = dict(queue=False, show_progress="hidden", api_visibility="private")

# For events that read what a person filled in: it is checked once, by the request, whose errors stand in their place.
_RAW = _QUIET | dict(preprocess=False)
_EACH = _QUIET | dict(trigger_mode="multiple")  # for buttons that may be pressed faster than the server answers


@dataclass(frozen=True, kw_only=True)
class Page:
    """All that the wiring needs."""

    header: Header
    form: Form
    tab_items: tuple[gr.Tab, gr.Tab]
    stage: Stage
    library: LibraryPanel
    compare: ComparePanel
    own: gr.HTML
    system: gr.HTML
    message: gr.HTML
    act: gr.HTML
    seen: gr.State


def build(
    engine: Engine, texts: Texts = ENGLISH, can_run: CanRun | None = None, rewriter: PromptRewriter | None = None
) -> gr.Blocks:
    """The page, wired to this engine. `can_run` says which presets it offers: without it, those that need no download."""
    access = Access.of(engine.settings.data_dir)
    desk = Desk(engine=engine, access=access, can_run=can_run or engine.has_weights, rewriter=rewriter)
    with gr.Blocks(title=texts.product, fill_width=True, analytics_enabled=False, delete_cache=CACHE_SECONDS) as blocks:
        page = _lay_out(desk, texts, make_labels())
        handlers = _handlers(desk, page)
        _wire_form(page, handlers.main)
        _wire_jobs(page, handlers)
        _wire_panels(page, handlers)
        _wire_page(blocks, page, handlers)
        add_api(desk)
    return blocks


def _handlers(desk: Desk, page: Page) -> PageHandlers:
    fill = FillHandlers(desk=desk, form=page.form, message=page.message, editing=page.stage.editing)
    return PageHandlers(
        main=Handlers(desk=desk, form=page.form, stage=page.stage),
        jobs=JobHandlers(desk=desk, queue=page.stage.queue, library=page.library, message=page.message, job_id=page.stage.job_id),
        compare=CompareHandlers(desk=desk, form=page.form, panel=page.compare, message=page.message),
        fill=fill,
        own=OwnPresetHandlers(desk=desk, form=page.form, fill=fill, panel=page.own, message=page.message),
        header=page.header,
        system=page.system,
        seen=page.seen,
    )


def _lay_out(desk: Desk, texts: Texts, labels: Texts) -> Page:
    header = build_header(desk.engine.workers(), texts)
    choices = preset_choices("t2v", desk.can_run)
    with gr.Row(elem_id="workspace"):
        with gr.Column(elem_id="controls", min_width=320):
            form, tab_items, own = _build_form(choices, texts, labels, desk.rewriter is not None)
            generate, leave, stop, estimate = _build_actions(bool(choices.available), labels)
        with gr.Column(elem_id="stage-column", min_width=320):
            view = build_result_panel(texts)
        with gr.Column(elem_id="compare-column", min_width=320):
            compare = build_compare_panel(texts, labels, desk.can_run)
        with gr.Column(elem_id="library-column", min_width=320):
            library = build_library_panel(texts, labels)
        with gr.Column(elem_id="system-column", min_width=320):
            system = gr.HTML("", elem_id="system", apply_default_css=False)
        with gr.Column(elem_id="queue-column", min_width=240):
            queue = gr.HTML(queue_html(Queue(), texts), elem_id="queue", apply_default_css=False)
    session = gr.BrowserState(None, storage_key="studio-settings", secret=desk.access.browser_secret())
    stage = Stage(
        view=view,
        job_id=gr.State(None),
        editing=gr.State(None),
        generate=generate,
        leave=leave,
        stop=stop,
        estimate=estimate,
        session=session,
        queue=queue,
    )
    return Page(
        header=header,
        form=form,
        tab_items=tab_items,
        stage=stage,
        library=library,
        compare=compare,
        own=own,
        system=system,
        message=build_message(),
        act=build_act(),
        seen=gr.State({}),
    )


def _build_actions(can_generate: bool, labels: Texts) -> tuple[gr.Button, gr.Button, gr.Button, gr.HTML]:
    with gr.Column(elem_id="actions"):
        estimate = gr.HTML("", elem_id="estimate")
        with gr.Row(elem_id="buttons"):
            generate = gr.Button(labels.generate, variant="primary", size="lg", elem_id="generate", interactive=can_generate)
            leave = gr.Button(labels.keep_as_it_is, size="lg", elem_id="leave", visible=False)
            stop = gr.Button(labels.stop, variant="stop", size="lg", elem_id="stop")
    return generate, leave, stop, estimate


def _build_form(
    choices: PresetChoices, texts: Texts, labels: Texts, has_rewriter: bool
) -> tuple[Form, tuple[gr.Tab, gr.Tab], gr.HTML]:
    preset = choices.pick(None) or list_presets()[0]
    with gr.Tabs(elem_id="tabs") as tabs:
        with gr.Tab(labels.tab_text, id="t2v") as text_tab:
            pass
        with gr.Tab(labels.tab_image, id="i2v") as image_tab:
            image = build_image_panel(preset, texts, labels)
    prompt = build_prompt_panel(preset, texts, labels, has_rewriter)
    own = build_own_presets(texts)
    settings = build_settings_panel(choices, preset, texts, labels)
    form = Form(task=gr.State("t2v"), tabs=tabs, prompt=prompt, settings=settings, image=image)
    return form, (text_tab, image_tab), own


def _wire_form(page: Page, handlers: Handlers) -> None:
    form, image, size, stage = page.form, page.form.image, page.form.settings.resolution, page.stage
    settings = form.settings
    chosen = [form.prompt.examples, form.image.examples, form.image.last_image, *settings.follows_preset]
    switched = [form.task, settings.preset, settings.preset_note, stage.generate, *chosen]
    for tab, task in zip(page.tab_items, ("t2v", "i2v"), strict=True):
        tab.select(handlers.chooser(task), settings.preset, switched, **_QUIET)
    settings.preset.input(handlers.choose_preset, [settings.preset, form.task], [form.task, *chosen], **_QUIET)
    shown, inputs = [image.preview, image.note], [image.image, size, image.focus]
    image.image.input(handlers.show_picture, inputs[:2], [*shown, image.focus], **_RAW)
    gr.on([size.change, image.image.change], handlers.show_crop, inputs, shown, **_RAW)
    moved = image.image.select(handlers.move_crop, inputs[:2], image.focus, **_RAW)
    moved.then(handlers.show_crop, inputs, shown, **_RAW)
    image.pad.click(handlers.pad, inputs[:2], image.image, **_RAW)
    image.examples.choose(handlers.choose_picture, settings.preset, [image.image, form.prompt.prompt], **_QUIET)
    asked = [form.prompt.prompt, settings.preset]
    form.prompt.rewrite.button.click(handlers.suggest, asked, form.prompt.rewrite.suggestion, api_visibility="private")
    form.prompt.prompt.change(lambda: "", None, form.prompt.rewrite.suggestion, **_QUIET)
    changes = [component.change for component in (*settings.estimated, form.task, image.image)]
    gr.on(changes, handlers.estimate, form.inputs, stage.estimate, **_RAW)


def _wire_jobs(page: Page, handlers: PageHandlers) -> None:
    main, stage, form = handlers.main, page.stage, page.form
    submitted = stage.generate.click(main.submit, form.inputs | {stage.editing, stage.job_id}, main.submitted, **_RAW)
    _follow(submitted, page, main)
    stage.stop.click(main.stop, stage.job_id, stage.stop, **_QUIET)
    stage.view.keep_seed(main.keep_seed, stage.job_id, [form.settings.seed, form.settings.is_seed_random], **_QUIET)
    left = stage.leave.click(lambda: None, None, stage.editing, **_QUIET)
    for event in (submitted, left):
        _show_editing(event, page, main)
    jobs, library = handlers.jobs, page.library
    _follow(page.act.act_again(jobs.again, None, [*jobs.outputs, stage.job_id], **_EACH), page, main)
    _follow(page.act.act_show(jobs.show, None, [stage.job_id, page.message], **_EACH), page, main)
    page.act.act_queue(jobs.act, library.inputs, jobs.outputs, **_EACH)
    page.act.act_choose(jobs.choose, library.inputs, [*jobs.outputs, library.chosen, library.most], **_EACH)
    asked = [library.search.change, library.preset.input, library.is_starred.input, library.is_deleted.input]
    gr.on(asked, jobs.search, library.inputs, library.grid, trigger_mode="always_last", **_QUIET)


def _wire_panels(page: Page, handlers: PageHandlers) -> None:
    fill, own, compare, panel = handlers.fill, handlers.own, handlers.compare, page.compare
    for event, handler in ((page.act.act_fill, fill.act), (page.act.act_drop, fill.drop)):
        _show_editing(event(handler, None, fill.outputs, **_EACH), page, handlers.main)
    page.act.act_own(own.act, page.form.inputs, own.outputs, **_RAW)
    page.act.act_compare(compare.act, [panel.chosen, panel.shown], compare.outputs, **_EACH)
    page.act.act_look(handlers.look, None, page.system, **_EACH)
    panel.start.click(compare.start, page.form.inputs | panel.inputs, compare.outputs, **_RAW)
    panel.what.input(_values_or_presets, panel.what, [panel.values, panel.presets], **_QUIET)


def _show_editing(event: gr.events.Dependency, page: Page, handlers: Handlers) -> None:
    """After this event the buttons say whether a waiting video is being changed."""
    stage = page.stage
    event.then(handlers.edit_mode, stage.editing, [stage.generate, stage.leave], **_QUIET)


def _values_or_presets(what: str) -> tuple[Any, Any]:
    """Models are chosen from a list, everything else is typed; LoRAs are on or off."""
    return gr.update(visible=what not in ("preset", "loras")), gr.update(visible=what == "preset")


def _wire_page(blocks: gr.Blocks, page: Page, handlers: PageHandlers) -> None:
    opened = blocks.load(handlers.open, {page.stage.session}, handlers.opened, **_QUIET)
    _follow(opened, page, handlers.main)
    opened.then(handlers.main.estimate, page.form.inputs, page.stage.estimate, **_RAW)
    inputs = {page.seen, page.compare.shown, *page.library.inputs}
    page.header.timer.tick(handlers.tick, inputs, handlers.ticked, **_QUIET)


def _follow(event: gr.events.Dependency, page: Page, handlers: Handlers) -> None:
    """After this event the page follows its job to the end.

    A follower holds its place in Gradio's queue as long as its job runs, so there is no limit to them.
    """
    followed = event.then(
        handlers.follow,
        page.stage.job_id,
        page.stage.view,
        concurrency_limit=None,
        show_progress="hidden",
        api_visibility="private",
        trigger_mode="multiple",
    )
    settled = followed.then(handlers.settle, None, [page.header.status, page.stage.stop, page.stage.queue], **_QUIET)
    settled.then(handlers.estimate, page.form.inputs, page.stage.estimate, **_RAW)

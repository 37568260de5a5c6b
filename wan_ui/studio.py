"""Puts the panels together and wires them to the engine. One page, any number of visitors.

What belongs to a page is in `gr.State`; what belongs to a visitor is in the engine under the visitor's owner name (see
`visitors`). Closing a page ends only its follower. Short handlers skip Gradio's queue, so that no click waits behind
the followers, of which there is one for each page that shows a job. All handlers are private: the only endpoint for
programs is the one in `api`.

Element ids that tests and scripts may rely on: `generate`, `stop`, `tabs`, and those that each panel's file lists.
"""

import sys
from dataclasses import dataclass
from functools import partial
from typing import Any

import gradio as gr
from starlette.middleware import Middleware

from backend.engine import Engine
from presets import list_presets
from presets.loader import EXAMPLES_FOLDER
from wan_ui.api import add_api
from wan_ui.form import Form
from wan_ui.handlers import Handlers
from wan_ui.header import Header, build_header
from wan_ui.image_panel import build_image_panel
from wan_ui.media import media_route
from wan_ui.preset_choices import CanRun, PresetChoices, has_weights, preset_choices
from wan_ui.prompt_panel import build_prompt_panel
from wan_ui.result_panel import build_result_panel
from wan_ui.settings_panel import build_settings_panel
from wan_ui.text import ENGLISH, Texts
from wan_ui.theme import ASSETS, favicon, studio_theme, stylesheet
from wan_ui.visitors import VisitorCookie

MOST_PAGES = 1000  # followers at once; an asynchronous one costs memory only, so this is far above any real use
CACHE_SECONDS = (3600, 24 * 3600)  # uploads are looked through every hour and deleted after a day
LARGEST_UPLOAD = "60mb"
_QUIET: dict[str, Any] = dict(queue=False, show_progress="hidden", api_visibility="private")

# For events that read what a person filled in: it is checked once, by the request, whose errors stand in their place.
_RAW = _QUIET | dict(preprocess=False)


@dataclass(frozen=True, kw_only=True)
class Page:
    """All that the wiring needs."""

    header: Header
    form: Form
    tabs: tuple[gr.Tab, gr.Tab]
    generate: gr.Button
    stop: gr.Button
    stage: gr.HTML
    job_id: gr.State


def build(engine: Engine, texts: Texts = ENGLISH, can_run: CanRun = has_weights) -> gr.Blocks:
    """The page, wired to this engine."""
    with gr.Blocks(title=texts.product, fill_width=True, analytics_enabled=False, delete_cache=CACHE_SECONDS) as blocks:
        page = _lay_out(engine, texts, preset_choices("t2v", can_run))
        handlers = Handlers(engine=engine, form=page.form, texts=texts, can_run=can_run)
        _wire_jobs(page, handlers)
        _wire_settings(page, handlers)
        _wire_picture(page, handlers)
        _wire_page(blocks, page, handlers)
        add_api(engine)
    return blocks


def launch(engine: Engine, *, host: str, port: int, share: bool, auth: tuple[str, str] | None) -> None:
    """Serves the studio until the process is interrupted."""
    blocks = build(engine)
    serve(blocks, engine, host=host, port=port, share=share, auth=auth)
    for address in filter(None, (blocks.local_url, blocks.share_url)):
        sys.stderr.write(ENGLISH.serving.format(product=ENGLISH.product, address=address) + "\n")
    blocks.block_thread()


def serve(blocks: gr.Blocks, engine: Engine, *, host: str, port: int, **options: Any) -> str:
    """Starts serving the page beside the caller; gives its address. `blocks.close()` ends it."""
    _, address, _ = blocks.launch(
        server_name=host, server_port=port, quiet=True, prevent_thread_lock=True, theme=studio_theme(),
        css_paths=[stylesheet()], js=(ASSETS / "studio.js").read_text(encoding="utf-8"), favicon_path=favicon(),
        allowed_paths=[str(EXAMPLES_FOLDER)], footer_links=[], run_history=False, enable_monitoring=False,
        max_threads=MOST_PAGES, max_file_size=LARGEST_UPLOAD, ssr_mode=False,
        app_kwargs={"middleware": [Middleware(VisitorCookie)], "routes": [media_route(engine)]}, **options,
    )  # fmt: skip
    return address


def _lay_out(engine: Engine, texts: Texts, choices: PresetChoices) -> Page:
    header = build_header(engine.worker_status(), texts)
    with gr.Row(elem_id="workspace"):
        with gr.Column(elem_id="controls", min_width=320):
            form, tabs = _build_form(choices, texts)
            with gr.Row(elem_id="actions"):
                generate = gr.Button(
                    texts.generate, variant="primary", size="lg", elem_id="generate",
                    interactive=bool(choices.available),
                )  # fmt: skip
                stop = gr.Button(texts.stop, variant="stop", size="lg", elem_id="stop")
        with gr.Column(elem_id="stage-column", min_width=320):
            stage = build_result_panel(texts, "")
    return Page(
        header=header, form=form, tabs=tabs, generate=generate, stop=stop, stage=stage, job_id=gr.State(None)
    )


def _build_form(choices: PresetChoices, texts: Texts) -> tuple[Form, tuple[gr.Tab, gr.Tab]]:
    preset = choices.pick(None) or list_presets()[0]
    with gr.Tabs(elem_id="tabs"):
        with gr.Tab(texts.tab_text, id="t2v") as text_tab:
            pass
        with gr.Tab(texts.tab_image, id="i2v") as image_tab:
            image = build_image_panel(preset, texts)
    prompt = build_prompt_panel(preset, texts)
    settings = build_settings_panel(choices, preset, texts)
    return Form(task=gr.State("t2v"), prompt=prompt, settings=settings, image=image), (text_tab, image_tab)


def _wire_jobs(page: Page, handlers: Handlers) -> None:
    form = page.form
    notes = [form.prompt.note, form.image.note, form.settings.note]
    outputs = [page.job_id, *notes, form.settings.seed, page.stage]
    submitted = page.generate.click(handlers.submit, form.inputs, outputs, **_RAW)
    _follow(submitted, page, handlers)
    page.stop.click(handlers.stop, page.job_id, page.stop, **_QUIET)
    page.stage.keep_seed(
        handlers.keep_seed, page.job_id, [form.settings.seed, form.settings.is_seed_random], **_QUIET
    )


def _wire_settings(page: Page, handlers: Handlers) -> None:
    form, settings = page.form, page.form.settings
    for tab, task in zip(page.tabs, ("t2v", "i2v"), strict=True):
        outputs = [form.task, settings.preset, settings.preset_note, form.prompt.examples, page.generate]
        tab.select(partial(handlers.choose_task, task), settings.preset, outputs, **_QUIET)
    examples = [form.prompt.examples, form.image.examples]
    outputs = [*examples, form.prompt.negative_prompt, *settings.follows_preset]
    settings.preset.change(handlers.choose_preset, [settings.preset, form.task], outputs, **_QUIET)


def _wire_picture(page: Page, handlers: Handlers) -> None:
    form, image, size = page.form, page.form.image, page.form.settings.resolution
    shown, inputs = [image.preview, image.note], [image.image, size, image.focus]
    image.image.change(handlers.show_picture, inputs[:2], [*shown, image.focus], **_RAW)
    size.change(handlers.show_crop, inputs, shown, **_RAW)
    moved = image.image.select(handlers.move_crop, inputs[:2], image.focus, **_RAW)
    moved.then(handlers.show_crop, inputs, shown, **_RAW)
    image.examples.choose(handlers.choose_picture, form.settings.preset, [image.image, form.prompt.prompt], **_QUIET)


def _wire_page(blocks: gr.Blocks, page: Page, handlers: Handlers) -> None:
    _follow(blocks.load(handlers.attach, None, page.job_id, **_QUIET), page, handlers)
    page.header.timer.tick(handlers.status, None, page.header.status, **_QUIET)


def _follow(event: gr.events.Dependency, page: Page, handlers: Handlers) -> None:
    """After this event the page follows its job to the end.

    A follower holds its place in Gradio's queue as long as its job runs, so there is no limit to them.
    """
    followed = event.then(
        handlers.follow, page.job_id, page.stage, concurrency_limit=None, show_progress="hidden",
        api_visibility="private", trigger_mode="multiple",
    )  # fmt: skip
    followed.then(handlers.settle, None, [page.header.status, page.stop], **_QUIET)

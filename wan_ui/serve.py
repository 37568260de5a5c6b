"""Serve the page: its styles, its routes, the gateway and the password."""

import os
import secrets
import sys
import webbrowser
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, fields
from html import escape
from pathlib import Path
from typing import Any, Self

import gradio as gr
from starlette.middleware import Middleware
from starlette.routing import Route

from backend.engine.engine import Engine
from backend.prompt_rewriting.helper import Helper
from backend.settings import log_file
from presets.loader import EXAMPLES_FOLDER
from wan_ui.gateway.access import Access
from wan_ui.gateway.connections import LimitedConnection
from wan_ui.gateway.gateway import Gateway, Hosts
from wan_ui.gateway.log_guard import guard_output
from wan_ui.gateway.logins import Logins
from wan_ui.gateway.uploads import upload_route
from wan_ui.gradio_fixes import (
    insert_page_head,
    install_gateway,
    keep_component_ids,
    shorten_errors,
    slow_queue_polling,
    styles_route,
)
from wan_ui.i18n.english import ENGLISH
from wan_ui.i18n.labels import translations
from wan_ui.i18n.languages import texts_for
from wan_ui.routes.changes import changes_route
from wan_ui.routes.mcp import mcp_route
from wan_ui.routes.metrics import health_route, metrics_route
from wan_ui.routes.tasks import tasks_routes
from wan_ui.routes.video_values import ALIASES
from wan_ui.routes.videos import videos_routes
from wan_ui.scripts import Scripts, scripts_route
from wan_ui.services.characters import characters_route
from wan_ui.services.exports import export_route
from wan_ui.services.finished_shots import shots_route
from wan_ui.services.media import media_route, video_route
from wan_ui.services.projects import project_route
from wan_ui.services.sending import Downloads
from wan_ui.services.sound import sound_route
from wan_ui.services.studio_context import StudioContext
from wan_ui.studio import build_page
from wan_ui.theme import ASSETS, read_styles, studio_theme
from wan_ui.view import View, collect_rules
from wan_ui.views import VIEWS

_NO_DOCS = ("openapi_url", "docs_url", "redoc_url")  # None turns each of these addresses off
MOST_PAGES = 1000  # pages that follow jobs at the same time; a high limit, because a follower takes only memory
MOST_SESSIONS = 500  # latest sessions with stored state; each takes 0.3 MB (measured), more after large requests
LARGEST_UPLOAD = "60mb"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
USER = "studio"
# Modules that open visitors' files, imported when the sandbox starts
SANDBOX_MODULES = ("backend.engine.folder", "backend.media.image_inputs", "wan_ui.edit.clip", "wan_ui.form.crop")


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """The options of `serve`: the address, the login and the visitors' presets.

    `is_open`: the operator wants no password. `allowed_hosts` are names by which visitors reach the studio, besides IP addresses
    and `localhost`. `models` are the presets that visitors may use, None for all installed ones. `model_aliases` are names and
    presets that `/v1/videos` accepts as further models.
    """

    host: str
    port: int
    share: bool
    auth: tuple[str, str] | None
    is_open: bool = False
    opens_browser: bool = False
    allowed_hosts: Sequence[str] = ()
    models: frozenset[str] | None = None
    offers_instant: bool = True
    model_aliases: Sequence[tuple[str, str]] = ()

    @classmethod
    def from_arguments(cls, arguments: Namespace) -> Self:
        return cls(**{field.name: getattr(arguments, field.name) for field in fields(cls)})

    @property
    def needs_password(self) -> bool:
        """True if a password must be created, because the studio is public and no password was given."""
        is_public = self.share or self.host not in LOOPBACK  # other machines can reach the studio
        return is_public and self.auth is None and not self.is_open


def launch(engine: Engine, server_options: ServerOptions, rewriter: Helper | None = None) -> None:
    """Serve the studio until the process is interrupted. Print its addresses, and the password if it was created here."""
    guard_output(log_file())
    auth = (USER, secrets.token_urlsafe(9)) if server_options.needs_password else server_options.auth
    blocks = build_page(engine, rewriter=rewriter, models=server_options.models, offers_instant=server_options.offers_instant)
    names = ("host", "port", "allowed_hosts", "share", "models", "model_aliases")
    serve(blocks, engine, auth=auth, **{name: getattr(server_options, name) for name in names})
    engine.sandbox.start(SANDBOX_MODULES)
    if rewriter is not None:
        rewriter.prepare()
    addresses = filter(None, (blocks.local_url, blocks.share_url))
    lines = [ENGLISH.serving.format(product=ENGLISH.product, address=address) for address in addresses]
    if server_options.needs_password and auth is not None:
        lines.append(ENGLISH.password_made.format(user=auth[0], password=auth[1]))
    assert blocks.local_url is not None, "`serve` has launched the page"
    link = Access.load_or_create(engine.settings.data_dir).link(blocks.local_url)
    sys.stderr.write("".join(f"{line}\n" for line in (*lines, ENGLISH.operator_link.format(address=link))))
    if server_options.opens_browser:
        open_operator_link(link, engine.settings.data_dir)
    blocks.block_thread()


def open_operator_link(link: str, folder: Path) -> None:
    """Open the operator link in this machine's browser, through a page in `folder` that only this account can read.

    The link on the browser's command line would show the key to all accounts of this machine.
    """
    page = folder / "operator.html"
    page.unlink(missing_ok=True)
    with os.fdopen(os.open(page, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(f'<!doctype html><meta http-equiv="refresh" content="0; url={escape(link)}">\n')
    webbrowser.open(page.resolve().as_uri())


def serve(
    blocks: gr.Blocks,
    engine: Engine,
    *,
    host: str,
    port: int,
    views: Sequence[View] = VIEWS,
    allowed_hosts: Sequence[str] = (),
    models: frozenset[str] | None = None,
    model_aliases: Sequence[tuple[str, str]] = (),
    **options: Any,
) -> str:
    """Serve the page in the background and return its address. `blocks.close()` stops serving."""
    keep_component_ids()
    shorten_errors()
    scripts = Scripts.read()
    insert_page_head(f"{scripts.head()}<style>{read_styles()}</style>", lambda headers: texts_for(headers).language)
    access, hosts = Access.load_or_create(engine.settings.data_dir), Hosts([host, *allowed_hosts])
    streams = tuple(path for view in views for path in view.streams)
    gateway = Middleware(Gateway, access=access, hosts=hosts, rules=collect_rules(views), streams=streams)
    context = StudioContext(engine=engine, access=access, can_run=engine.has_weights, models=models)
    routes = [
        scripts_route(scripts),
        *videos_routes(context, {**ALIASES, **dict(model_aliases)}),
        *_list_routes(context, views, is_open=options.get("auth") is None),
    ]
    _, address, _ = blocks.launch(
        server_name=host,
        server_port=port,
        quiet=True,
        prevent_thread_lock=True,
        theme=studio_theme(),
        js="() => studio.open()",
        favicon_path=ASSETS / "favicon.png",
        allowed_paths=[str(EXAMPLES_FOLDER)],
        footer_links=[],
        run_history=False,
        enable_monitoring=False,
        max_threads=MOST_PAGES,
        max_file_size=LARGEST_UPLOAD,
        state_session_capacity=MOST_SESSIONS,
        ssr_mode=False,
        i18n=translations(),
        app_kwargs={"routes": routes, "lifespan": install_gateway(gateway, Logins), **dict.fromkeys(_NO_DOCS)},
        **options,
    )
    slow_queue_polling(blocks)
    if blocks.share_url:
        hosts.add(blocks.share_url)
    blocks.server.config.http_protocol_class = LimitedConnection
    return address


def _list_routes(context: StudioContext, views: Sequence[View], *, is_open: bool) -> list[Route]:
    engine, access, downloads = context.engine, context.access, Downloads()
    return [
        styles_route(),
        media_route(engine, access),
        video_route(engine, access),
        sound_route(engine, access),
        export_route(engine, access, downloads),
        project_route(engine, access, downloads),
        shots_route(engine, access),
        characters_route(context),
        upload_route(),
        changes_route(context),
        health_route(engine, access, is_open=is_open),
        metrics_route(engine, access, is_open=is_open),
        mcp_route(context, is_open=is_open),
        *tasks_routes(context),
        *(route for view in views for route in view.routes(context)),
    ]

"""Print the addresses and handlers of a launched page as JSON: `python -m tests.wan_ui.list_routes DATA_DIR`. Tests only."""

import inspect
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import gradio as gr

from backend.engine.engine import Engine
from tests.fifth_view.panel import FIFTH
from tests.wan_ui.conftest import _free_port
from wan_ui.serve import serve
from wan_ui.studio import build_page
from wan_ui.views import VIEWS


def main() -> None:
    views = (*VIEWS, FIFTH)
    engine = Engine(Path(sys.argv[1]), pipeline="tests.fake_pipeline", start_worker=False)
    blocks = build_page(engine, views=views)
    serve(blocks, engine, host="127.0.0.1", port=_free_port(), share=False, auth=None, views=views)
    listed = {
        "addresses": sorted(set(_addresses(blocks.app.routes))),
        "handlers": {function.fn.__qualname__: _takes_request(function.fn) for function in blocks.fns.values() if function.fn},
        "public": [function.api_name for function in blocks.fns.values() if function.api_visibility != "private"],
        "progress": [function.api_name for function in blocks.fns.values() if function.show_progress_on != []],
        "middleware": [one.cls.__name__ for one in blocks.app.user_middleware],
        "connection": blocks.server.config.http_protocol_class.__name__,
    }
    sys.stdout.write(json.dumps(listed))
    blocks.close(verbose=False)
    engine.close()


def _takes_request(handler: Callable) -> bool:
    return any(one.annotation in (gr.Request, "gr.Request") for one in inspect.signature(handler).parameters.values())


def _addresses(routes) -> Iterator[str]:
    for route in routes:
        inner = getattr(route, "original_router", None)
        if inner is not None:
            yield from _addresses(inner.routes)
        else:
            yield route.path.rstrip("/") or "/"


if __name__ == "__main__":
    main()

"""The real studio and engine with a pretend pipeline: `python -m tests.wan_ui.serve_fake`. Tests only."""

import argparse
import functools
import pkgutil
import sys
from pathlib import Path

from backend.engine.engine import Engine
from presets import Preset
from wan_ui.gradio_fixes import import_gradio
from wan_ui.malloc_arenas import use_one_malloc_arena

HELPER = """
import json, sys, time
prompt = json.load(sys.stdin)["prompt"]
print(prompt.replace("cat", "striped cat"), end=" ", flush=True)
time.sleep(600 if "for ever" in prompt else 0)
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--auth", type=lambda text: tuple(text.split(":", 1)))
    parser.add_argument("--view", type=pkgutil.resolve_name, action="append", default=[], help="one more view: MODULE:NAME")
    parser.add_argument("--allowed-host", action="append", default=[])
    parser.add_argument("--offer", action="append", default=[], help="one more preset, as if its weights were here")
    parser.add_argument("--no-instant", dest="offers_instant", action="store_false")
    arguments = parser.parse_args()
    use_one_malloc_arena()
    import_gradio()
    from backend.prompt_rewriting.program import Program
    from wan_ui.gateway.log_guard import guard_output
    from wan_ui.serve import serve
    from wan_ui.studio import build_page
    from wan_ui.views import VIEWS

    guard_output(None)
    views = (*VIEWS, *arguments.view)
    model = "square" if arguments.offer else None  # counts as installed for every preset
    engine = Engine(arguments.data_dir, model, pipeline="tests.fake_pipeline")
    offered = functools.partial(is_offered, arguments.offer)
    rewriter, instant = Program(command=(sys.executable, "-c", HELPER)), arguments.offers_instant
    blocks = build_page(engine, can_run=offered, rewriter=rewriter, views=views, offers_instant=instant)
    names = arguments.allowed_host
    serve(
        blocks,
        engine,
        host="127.0.0.1",
        port=arguments.port,
        allowed_hosts=names,
        share=False,
        auth=arguments.auth,
        views=views,
    )
    try:
        blocks.block_thread()
    finally:
        engine.close()


def is_offered(names: list[str], preset: Preset) -> bool:
    """Return whether the pretend pipeline replaces the preset's model: the embedded model, trained or not, and the named presets."""
    return preset.series == "wan-tiny" or preset.name in names


if __name__ == "__main__":
    main()

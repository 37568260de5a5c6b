"""The real `generate` command, with the stand-in pipeline in the worker; for tests that send signals to it."""

import signal
import sys
from functools import partial

from backend.cli.command_line import parse
from backend.cli.generate import generate
from backend.engine.engine import Engine

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(generate(parse(sys.argv[1:]), partial(Engine, pipeline="tests.fake_pipeline")))
    except KeyboardInterrupt:
        sys.exit(1)

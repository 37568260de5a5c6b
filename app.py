"""The program's entry point: parse the arguments, then start the studio or run a command."""

import argparse
import contextlib
import logging
import os
import signal
import sys
from pkgutil import resolve_name

from backend.startup import announce_start, is_serving

_TITLE = "Wan TPU Studio"
_COMMANDS = {  # each function returns an exit code, or True or None for success, or False for failure
    **{name: f"{name}:{name}" for name in ("cut", "doctor", "export", "member", "models", "precompile", "upscale")},
    "smooth": "export:smooth",
    "check-tpu": "check_tpu:check_tpu",
    "keys": "keys:manage_keys",
    "presets": "presets:show_presets",
    **dict.fromkeys(("generate", "live", "storyboard"), "generate:generate"),
}


def main(words: list[str]) -> int:
    """Run one command and return its exit code: 0 for success, 2 for an invalid request, 1 for any other error."""
    if is_serving(words):  # only `serve` starts slowly enough to need an announcement
        announce_start(_TITLE, is_first=True)
    from backend.cli.command_line import FAILED, IN_A_PROCESS, OK, WRONG_REQUEST, parse, print_error
    from backend.errors import RequestError, StudioError
    from backend.settings import use_data_dir

    arguments = parse(words)
    use_data_dir(getattr(arguments, "data_dir", None))
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # closes open files and processes, as Ctrl+C does
    try:
        # Each command imports only the modules that it needs, so that the studio starts quickly.
        if arguments.command in IN_A_PROCESS:
            done = resolve_name("backend.cli.module_process:run_stage")(words)
        elif arguments.command in _COMMANDS:
            done = resolve_name(f"backend.cli.{_COMMANDS[arguments.command]}")(arguments)
        else:
            done = _serve(arguments)
        return OK if done is None or done is True else FAILED if done is False else done
    except (StudioError, OSError) as error:
        print_error(error)
        return WRONG_REQUEST if isinstance(error, RequestError) else FAILED
    except KeyboardInterrupt:
        print_error("Stopped")
        return FAILED


def _serve(arguments: argparse.Namespace) -> None:
    """Run the studio. The workers start first, so that they load the model while the page is built."""
    from backend.cli import arguments as options
    from backend.engine.cleaning import Limits
    from backend.engine.engine import Engine
    from backend.prompt_rewriting.choice import helper_from_arguments
    from backend.settings import drop_gradio_ports, from_environment
    from wan_ui.malloc_arenas import use_one_malloc_arena

    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    os.umask(0o077)  # other accounts of this machine must not read videos or the operator's key
    arguments.auth, rewriter = options.login_from_arguments(arguments), helper_from_arguments(arguments)
    use_one_malloc_arena()  # must be called before other threads start
    drop_gradio_ports()
    folder, model = from_environment(arguments.data_dir).data_dir, options.model_from_arguments(arguments)
    if model is not None:
        from backend.cli.models import print_licences

        print_licences([model], sys.stderr)
    engine = Engine(
        folder,
        model,
        limits=Limits(days=arguments.keep_days, gigabytes=arguments.keep_gb),
        has_standby=True,
        options=options.worker_options_from_arguments(arguments),
        shares=options.worker_shares(arguments),
        hosts=options.hosts_from_arguments(arguments),
        cluster=arguments.cluster,
        notify=arguments.notify,
        webhooks=arguments.webhooks,
    )
    with contextlib.suppress(PermissionError):  # the folder may belong to another account
        engine.settings.data_dir.chmod(0o700)
    try:
        from wan_ui.gradio_fixes import import_gradio

        announce_start(_TITLE, is_first=False)
        import_gradio()
        from wan_ui.serve import ServerOptions, launch

        launch(engine, ServerOptions.from_arguments(arguments), rewriter)
    finally:
        engine.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Define the commands and options of the command line, and run a command's function in a separate process."""

import argparse
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from backend.cli.options import add_setting, add_settings, parse_character
from backend.engine.keys import USUAL_LIMIT
from backend.engine.notifications import is_address
from backend.errors import RequestError, StudioError
from backend.imports import hide_unused_libraries
from backend.schemas.formats import FORMATS
from backend.schemas.settings import SETTINGS, find_preset
from backend.schemas.upscaling import SCALES
from backend.schemas.worker import AXES
from backend.startup import is_serving, project_name, project_version

OK, FAILED, WRONG_REQUEST = 0, 1, 2
STAGES = ("encode", "denoise", "decode")
IN_A_PROCESS = (*STAGES, "measure-cache")
"""Commands that run in a separate process with this process's output."""
HOSTS_PORT = 7871


class Parser(argparse.ArgumentParser):
    """An argument parser without abbreviated options.

    After an error it prints one line and exits with the code for an invalid request.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        print_error(f"{message}; `{self.prog} --help` lists what is allowed")
        raise SystemExit(WRONG_REQUEST)


def print_error(message: object) -> None:
    sys.stderr.write(f"{message}\n")


def parse(words: list[str]) -> argparse.Namespace:
    """Parse the command and its options. The default command is `serve`."""
    if is_serving(words) and words[:1] != ["serve"]:
        words = ["serve", *words]
    parser = build_parser()
    arguments, unknown = parser.parse_known_args(words)
    if unknown:  # argparse's own error would show the usage of all commands
        parser.prog = f"{parser.prog} {arguments.command}"
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    return arguments


def run_command(run: Callable[[argparse.Namespace], int]) -> int:
    """Pass the arguments of this process to `run`, for commands in separate processes. Return the exit code."""
    hide_unused_libraries()
    try:
        return run(parse(sys.argv[1:]))
    except RequestError as error:
        print_error(error)
        return WRONG_REQUEST
    except (StudioError, OSError) as error:
        print_error(error)
    except KeyboardInterrupt:
        print_error("Stopped")
    return FAILED


def build_parser() -> Parser:
    """Return a parser with all commands. Help texts name units and defaults."""
    command = Path(sys.argv[0]).name  # the installed command, app.py, or a program that runs app.py
    parser = Parser(
        prog=command if command.endswith("-studio") else "app.py", description="Generates videos from a prompt or an image."
    )
    parser.add_argument("--version", action="version", version=f"{project_name()} {project_version()}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_serve(commands)
    _add_video_commands(commands)
    _add_stage_commands(commands)
    _add_model_commands(commands)
    _add_operator_commands(commands)
    _add_file_commands(commands)
    return parser


def _add_serve(commands: argparse._SubParsersAction) -> None:
    serve = commands.add_parser("serve", help="open the studio in the browser (the default)")
    add = serve.add_argument
    add("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 for all addresses (%(default)s)")
    add("--port", type=_parse_port, default=7860, help="port to listen on (%(default)s)")
    names = "a host name by which visitors reach the studio; repeat the option for more (IP addresses always work)"
    add("--allowed-host", dest="allowed_hosts", action="append", default=[], metavar="NAME", help=names)
    models = "the presets that visitors may use, separated by commas (all installed presets); the operator may use all presets"
    add("--models", type=_parse_presets, metavar="NAME,...", help=models)
    alias = "a further name of a preset at /v1/videos; repeat for more (sora-2 and sora-2-pro are names of the default preset)"
    add("--model-alias", dest="model_aliases", action="append", type=_parse_alias, default=[], metavar="NAME=PRESET", help=alias)
    add("--share", action="store_true", help="also create a public link")
    add("--browser", dest="opens_browser", action="store_true", help="open the operator link in this machine's browser")
    login = "login that visitors need; without it, a password is created and shown if other machines can reach the studio"
    add("--auth", type=_parse_login, metavar="USER:PASSWORD", help=login)
    instant = "do not offer instant drafts, which idle workers generate while visitors type"
    add("--no-instant", dest="offers_instant", action="store_false", help=instant)
    url = "URL of a server with OpenAI's chat completions, for prompt rewriting (key: STUDIO_REWRITER_KEY); see docs/operating.md"
    add("--rewriter-url", metavar="URL", help=url)
    name = (
        "a language model for prompt rewriting on this machine: a Hub id or a folder; with --rewriter-url its name on the server"
    )
    add("--rewriter-model", metavar="ID", help=name)
    add("--rewriter", metavar="COMMAND", help="your own program for prompt rewriting; see docs/operating.md")
    what = (
        "where to send a notification when one of your videos ends: mail, chat or a webhook, as an Apprise URL; repeat for more"
    )
    add("--notify", action="append", type=_parse_notification_url, default=[], metavar="URL", help=what)
    webhooks = "hosts to which programs with a key may have the end of their videos reported, separated by commas; * for every "
    webhooks += "public host by https (off)"
    add("--webhooks", type=_parse_hosts, default=(), metavar="HOST,...", help=webhooks)
    workers = "videos generated at the same time, each with a copy of the model and a share of the machine"
    add("--workers", type=int, default=1, metavar="N", help=f"{workers} (%(default)s)")
    _add_hosts(serve)
    cluster = "generate videos on the nodes of a Ray cluster: HOST:PORT of its head, or auto; see docs/scale.md"
    add("--cluster", metavar="ADDRESS", help=cluster)
    days = "delete videos this many days after their end, except starred videos (off)"
    add("--keep-days", type=_parse_positive, metavar="N", help=days)
    gigabytes = "delete the oldest videos while all videos take more GB, except starred videos (off)"
    add("--keep-gb", type=_parse_positive, metavar="N", help=gigabytes)
    resident = "GB of unused models to keep on the devices and in host memory; 0 for none (as much as fits)"
    add("--resident-gb", type=_parse_memory_limits, metavar="CHIPS,HOST", help=resident)
    add("--open", dest="is_open", action="store_true", help="need no password, even if other machines can reach the studio")
    _add_common(serve)
    _add_profile(serve)


def _add_video_commands(commands: argparse._SubParsersAction) -> None:
    generate = commands.add_parser("generate", help="generate one video, then exit")
    add_settings(generate, "encode", "denoise", required=("preset",))
    _add_result(generate)
    _add_hosts(generate)
    _add_common(generate)
    _add_profile(generate)

    about = "generate a video block by block, with prompts and actions that change during the video"
    live = commands.add_parser("live", help=about)
    add = live.add_argument
    add("--preset", required=True, metavar="NAME", help="a live preset of `app.py presets list`")
    add("--prompt", metavar="TEXT", help="what the video shows at its start, for presets with prompts")
    add("--image", metavar="FILE", help="the first frame, for presets with a first frame")
    actions = 'actions with their number of blocks, such as "right*8,up*8"; "stay" follows; "forward+left" combines two actions'
    add("--actions", default="", metavar="ACTION*N,...", help=actions)
    prompts = "the prompt from block N on; repeat the option for more"
    add("--prompts", action="append", default=[], metavar="N:TEXT", help=prompts)
    add("--seconds", type=_parse_positive, required=True, metavar="N", help="the length in seconds, rounded up to whole blocks")
    add("--seed", type=int, metavar="N", help="same seed and settings, same video (random)")
    add_setting(live, SETTINGS["loras"])
    add_setting(live, SETTINGS["quantize"])
    _add_result(live)
    _add_common(live)

    about = "generate a video of several shots; each continues from the last frames of the previous shot"
    storyboard = commands.add_parser("storyboard", help=about)
    file = "TOML: preset, size, steps and other settings of `generate`, then [[shots]] with prompt, seconds or frames, and seed."
    file += " A shot that does not continue has cut, image or video. Optional: fade, trim."
    file += " [[figures]] has name and image of each character."
    storyboard.add_argument("file", metavar="FILE.toml", help=file)
    about = "a character's image, shown in shots whose prompts contain the name, for presets with control; repeat for more"
    add = storyboard.add_argument
    add("--figure", dest="figures", type=parse_character, action="append", default=[], metavar="NAME:FILE", help=about)
    again = "the job of an earlier storyboard in the data folder; its shots before --from-shot are kept"
    add("--again", metavar="JOB", help=again)
    add("--from-shot", type=int, metavar="N", help="the first regenerated shot, from 1")
    _add_result(storyboard)
    storyboard.set_defaults(loras=[])
    _add_common(storyboard)

    cut = commands.add_parser("cut", help="cut finished videos into one, with fades and a soundtrack; loads no model")
    about = (
        "TOML or JSON: [[shots]] with video, trim and fade, and track, track_start, track_fade, track_volume, width, height, fps"
    )
    cut.add_argument("file", metavar="FILE.toml", help=about)
    _add_result(cut)


def _add_stage_commands(commands: argparse._SubParsersAction) -> None:
    encode = commands.add_parser("encode", help="a video's first stage: encode the prompt and the images")
    denoise = commands.add_parser("denoise", help="a video's second stage: denoise the latents; a stopped run continues")
    decode = commands.add_parser("decode", help="a video's third stage: decode the latents to an mp4")
    for stage in (encode, denoise, decode):
        stage.add_argument("--run", required=True, metavar="DIR", help="the folder with the files of the stages")
        stage.add_argument("--json", action="store_true", help="print the result as one JSON object")
    add_settings(encode, "encode", "denoise")
    add_settings(denoise, "denoise")
    for stage in (encode, denoise, decode):
        _add_common(stage)

    about = "generate one video of a model to measure how its steps differ, which --mag-cache needs"
    measure = commands.add_parser("measure-cache", help=about)
    measure.add_argument("--preset", required=True, metavar="NAME", help="one of `app.py presets list`")
    for name in ("prompt", "image", "last_image", "width", "height", "num_frames", "steps", "seed"):
        add_setting(measure, SETTINGS[name])
    measure.add_argument("--output", type=Path, metavar="FILE.json", help="file for the result (in the data folder)")
    _add_common(measure)


def _add_model_commands(commands: argparse._SubParsersAction) -> None:
    presets = commands.add_parser("presets", help="list the presets, or show one preset")
    actions = presets.add_subparsers(dest="action", metavar="list|show", required=True)
    listing = actions.add_parser("list", help="one line per preset")
    showing = actions.add_parser("show", help="all settings of a preset, an example command, and the files of its bases")
    showing.add_argument("name", metavar="NAME")
    for parser in (listing, showing):
        parser.add_argument("--json", action="store_true", help="print JSON")

    about = "compile a preset for a TPU without a TPU, and report its memory and predicted time"
    check = commands.add_parser("check-tpu", help=about)
    level = "the level of progressive resolution, 1 to 4"
    check.add_argument("--preset", required=True, metavar="NAME", help="one of `app.py presets list`")
    check.add_argument("--topology", required=True, metavar="CHIP:SHAPE", help="the slice, such as v6e:2x4")
    check.add_argument("--progressive", type=int, metavar="LEVEL", help=level)
    check.add_argument("--json", metavar="FILE", help="also write the report to this file")
    check.add_argument("--instant", action="store_true", help="compile the preset's instant draft instead of its video")

    parser = commands.add_parser("models", help="list, download or verify checkpoints")
    actions = parser.add_subparsers(dest="action", metavar="list|download|verify", required=True)
    listing = actions.add_parser("list", help="the presets' models and LoRAs, and which are on this machine")
    listing.add_argument("--data-dir", type=Path, metavar="DIR", help="folder with your LoRAs (data in this project)")
    download = actions.add_parser("download", help="download a checkpoint, or its missing files")
    download.add_argument("id", metavar="ID", help="a preset's name, OWNER/NAME, or OWNER/NAME:FILE for a LoRA")
    verify = actions.add_parser("verify", help="check that a checkpoint's files are complete")
    verify.add_argument("id", metavar="ID", help="a preset's name, OWNER/NAME, or a folder")
    for action in (listing, verify):
        action.add_argument("--json", action="store_true", help="print JSON")

    about = "compile a preset's programs to files, which the studio loads instead of compiling"
    precompile = commands.add_parser("precompile", help=about)
    precompile.add_argument("--preset", required=True, metavar="NAME", help="one of `app.py presets list`")
    precompile.add_argument("--output", required=True, metavar="DIR", help="folder for the files")
    precompile.add_argument("--topology", metavar="CHIP:SHAPE", help="a slice on another machine, such as v6e:2x4 (this machine)")
    for name, what in (("width", "pixels"), ("height", "pixels"), ("frames", "number of frames, 4n+1")):
        precompile.add_argument(f"--{name}", type=int, metavar="N", help=f"{what} (the preset's value)")
    precompile.add_argument("--progressive", type=int, metavar="LEVEL", help=f"{level}; all levels use the same programs")
    instant = "also compile the preset's instant drafts, so that the first draft need not wait for a compilation"
    precompile.add_argument("--instant", action="store_true", help=instant)
    precompile.add_argument("--json", action="store_true", help="print the list of files as one JSON object")

    for parser in (check, precompile):
        parser.add_argument("--mag-cache", type=float, metavar="X", help="for videos with this --mag-cache (0)")
        parser.add_argument("--sparse", type=float, metavar="LEVEL", help="for videos with this --sparse (0)")
        formats = SETTINGS["quantize"].choices
        parser.add_argument("--quantize", choices=formats, help="for videos with this --quantize (the preset's value)")
        _add_mesh(parser)


def _add_operator_commands(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser("keys", help="create, list or revoke keys for programs")
    actions = parser.add_subparsers(dest="action", metavar="create|list|revoke", required=True)
    create = actions.add_parser("create", help="create a key and show it once")
    create.add_argument("name", metavar="NAME", help="your name for the program")
    limit = "number of videos that may be queued, 1 to 100 (%(default)s)"
    create.add_argument("--limit", type=int, default=USUAL_LIMIT, metavar="N", help=limit)
    notify = "where to send a notification when one of the key's videos ends, as an Apprise URL; repeat for more"
    create.add_argument("--notify", action="append", type=_parse_notification_url, default=[], metavar="URL", help=notify)
    listing = actions.add_parser("list", help="list names, dates and limits, without the keys")
    revoke = actions.add_parser("revoke", help="revoke a key immediately")
    revoke.add_argument("name", metavar="NAME", help="a name of `app.py keys list`")
    for action in (create, listing):
        action.add_argument("--json", action="store_true", help="print JSON")
    for action in (create, listing, revoke):
        action.add_argument("--data-dir", type=Path, metavar="DIR", help="the server's data folder (data in this project)")

    about = "check the machine, its devices and a preset, and show how to fix faults"
    command = commands.add_parser("doctor", help=about)
    command.add_argument("--preset", metavar="NAME", help="the preset to check, one of `app.py presets list` (the demo model)")
    command.add_argument("--quick", action="store_true", help="only list the devices: try no kernel and no denoising step")
    command.add_argument("--json", metavar="FILE", help="also write the findings to this file, for a bug report")
    command.add_argument("--data-dir", type=Path, metavar="DIR", help="folder of the jobs (data in this project)")


def _add_file_commands(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser("export", help="write a video as webm, gif, animated webp, or its frames in a zip")
    command.add_argument("file", metavar="FILE", help="the video")
    command.add_argument("--format", required=True, choices=FORMATS, help="webm, gif, webp, or png for a zip of its frames")
    command.add_argument("--max-mb", type=_parse_positive, metavar="N", help="largest size of a gif or webp, in megabytes")
    command.add_argument("--output", metavar="FILE", help="where to put it (beside the video)")
    command.add_argument("--json", action="store_true", help="print what was written as one JSON object")

    command = commands.add_parser("smooth", help="increase a video's frames per second by motion compensation")
    command.add_argument("file", metavar="FILE", help="the video")
    command.add_argument("--fps", type=int, required=True, metavar="N", help="frames per second, such as 24, 30, 48 or 60")
    command.add_argument("--output", metavar="FILE", help="file for the mp4 (next to the video)")
    command.add_argument("--json", action="store_true", help="print the facts of the file as one JSON object")

    command = commands.add_parser("upscale", help="enlarge a video with an upscaler model")
    command.add_argument("file", metavar="FILE", nargs="?", help="a video of the studio or any clip (mp4, webm, mov, gif)")
    command.add_argument("--scale", dest="upscale", type=int, choices=SCALES, default=SCALES[0], help="factor (%(default)s)")
    name = "a name of --list, a .safetensors or .pth file (docs/models.md), or owner/repository:FILE on the Hub (animevideov3)"
    command.add_argument("--model", dest="upscaler", default="", metavar="NAME", help=name)
    command.add_argument("--list", dest="is_list", action="store_true", help="list the installed upscalers, then exit")
    command.add_argument("--data-dir", type=Path, metavar="DIR", help="folder of jobs and upscalers (data in this project)")
    command.add_argument("--executables", type=Path, help=argparse.SUPPRESS)
    _add_result(command)
    command.set_defaults(model=None, transformer=[], loras=[], **dict.fromkeys(AXES))

    about = "run a part of a multihost worker, on each host of a slice except the first"
    command = commands.add_parser("member", help=about)
    add = command.add_argument
    where = f"the first host, where `serve --hosts N` runs (the default port is {HOSTS_PORT})"
    add("--coordinator", type=_parse_address, required=True, metavar="HOST:PORT", help=where)
    number = "this host's number, from 1; on a TPU slice its worker number (the first host is worker 0)"
    add("--process-id", type=int, required=True, metavar="I", help=number)
    add("--num-processes", type=_parse_count, required=True, metavar="N", help="number of all hosts, including the first")
    add("--data-dir", type=Path, metavar="DIR", help="folder of this host's log and LoRAs (data in this project)")


def _add_result(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", metavar="FILE", help="file for the mp4 (in the job's folder)")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", metavar="ID_OR_DIR", help="a checkpoint in place of the checkpoint of the preset")
    file = "a single-file checkpoint (safetensors, .pt or .pth) in place of the checkpoint's transformer; for two experts repeat "
    file += "the option, the high-noise expert first"
    parser.add_argument("--transformer", action="append", default=[], metavar="FILE", help=file)
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="folder of the jobs (data in this project)")
    precompiled = "the folder that `precompile` wrote; missing programs are compiled"
    parser.add_argument("--executables", type=Path, metavar="DIR", help=precompiled)
    _add_mesh(parser)


def _add_profile(parser: argparse.ArgumentParser) -> None:
    traces = "folder for traces of each video's steps and decoder, for TensorBoard and XProf"
    parser.add_argument("--profile", type=Path, metavar="DIR", help=traces)
    steps = "the denoising steps to trace (%(default)s)"
    parser.add_argument("--profile-steps", type=_parse_step_range, default="3-5", metavar="A-B", help=steps)


def _add_hosts(parser: argparse.ArgumentParser) -> None:
    hosts = "generate each video on N hosts: this host and the hosts that run `app.py member`; see docs/tpu.md"
    parser.add_argument("--hosts", type=_parse_count, metavar="N", help=hosts)
    address = "address at which the other hosts reach this host; the next port is used too (%(default)s)"
    parser.add_argument(
        "--hosts-address", type=_parse_address, default=f"0.0.0.0:{HOSTS_PORT}", metavar="HOST:PORT", help=address
    )


def _add_mesh(parser: argparse.ArgumentParser) -> None:
    for axis, what in (
        ("dp", "groups of chips for the guidance branches, 1 or 2"),
        ("sp", "chips that share the tokens"),
        ("tp", "chips that share the matrices' columns"),
    ):
        parser.add_argument(f"--{axis}", type=int, metavar="N", help=f"{what} (the studio chooses)")


def _parse_notification_url(text: str) -> str:
    """Check an Apprise URL. The error does not show the URL, because it may contain a password."""
    if not is_address(text):
        raise argparse.ArgumentTypeError("must be a URL that Apprise supports; appriseit.com lists the URLs of each service")
    return text


def _parse_alias(text: str) -> tuple[str, str]:
    alias, _, preset = text.partition("=")
    if not (preset and re.fullmatch(r"[\w.:-]{1,60}", alias, re.ASCII)):
        raise argparse.ArgumentTypeError(f"{text!r} must be NAME=PRESET, the name of at most 60 letters, digits and . _ - :")
    try:
        return alias, find_preset(preset).name
    except RequestError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _parse_hosts(text: str) -> tuple[str, ...]:
    hosts = tuple(name.strip().lower() for name in text.split(","))
    if not all(re.fullmatch(r"\*|[a-z0-9._-]+|[0-9a-f:]+", name) for name in hosts):
        raise argparse.ArgumentTypeError(f"{text!r} must be host names or IP addresses without ports, separated by commas, or *")
    return hosts


def _parse_port(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number from 1 to 65535")
    return int(text)


def _parse_address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65535:
        raise argparse.ArgumentTypeError(f"{text!r} must be HOST:PORT, the port from 1 to 65534")
    return host, int(port)


def _parse_count(text: str) -> int:
    if not text.isdecimal() or int(text) < 2:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number of at least 2")
    return int(text)


def _parse_step_range(text: str) -> str:
    first, _, last = text.partition("-")
    if not (first.isdecimal() and last.isdecimal() and 0 < int(first) <= int(last)):
        raise argparse.ArgumentTypeError(f"{text!r} must be the first and the last step, such as 3-5")
    return text


def _parse_positive(text: str) -> float:
    try:
        amount = float(text)
    except ValueError:
        amount = math.nan
    if not 0 < amount < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number above 0, such as 30 or 0.5")
    return amount


def _parse_memory_limits(text: str) -> tuple[float, float]:
    try:
        chips, host = map(float, text.split(",")) if text != "0" else (0.0, 0.0)
    except ValueError:
        chips = host = math.nan
    if not (0 <= chips < math.inf and 0 <= host < math.inf):
        raise argparse.ArgumentTypeError(f"{text!r} must be two numbers of gigabytes, such as 100,200, or 0 for none")
    return chips, host


def _parse_presets(text: str) -> frozenset[str]:
    try:
        return frozenset(find_preset(name.strip()).name for name in text.split(","))
    except RequestError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _parse_login(text: str) -> tuple[str, str]:
    user, _, password = text.partition(":")
    if not user or not password:
        raise argparse.ArgumentTypeError("must be USER:PASSWORD, neither of them empty")
    return user, password

"""The command line: its commands and options. Runs nothing."""

import argparse
import math
import sys
from pathlib import Path
from typing import Any, NoReturn

from backend.cli.options import add_setting, add_settings, parse_character
from backend.engine.keys import USUAL_LIMIT
from backend.engine.notifications import is_address
from backend.errors import RequestError
from backend.schemas.formats import FORMATS
from backend.schemas.request import find_preset
from backend.schemas.settings import SETTINGS
from backend.schemas.upscaling import SCALES
from backend.schemas.worker import AXES
from backend.startup import is_serving, project_name, project_version

OK, FAILED, WRONG_REQUEST = 0, 1, 2
STAGES = ("encode", "denoise", "decode")
IN_A_PROCESS = (*STAGES, "measure-cache")
"""Commands that run in a process of their own, on this one's output."""
HOSTS_PORT = 7871


class Parser(argparse.ArgumentParser):
    """An argument parser that takes whole options only, and whose errors are one line, with the exit code for a wrong request."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        print_error(f"{message}; `{self.prog} --help` lists what is allowed")
        raise SystemExit(WRONG_REQUEST)


def print_error(message: object) -> None:
    """One line on standard error."""
    sys.stderr.write(f"{message}\n")


def parse(words: list[str]) -> argparse.Namespace:
    """The command and its options; no command means `serve`."""
    if is_serving(words) and words[:1] != ["serve"]:
        words = ["serve", *words]
    parser = build_parser()
    arguments, unknown = parser.parse_known_args(words)
    if unknown:  # argparse would point to the help of all commands
        parser.prog = f"{parser.prog} {arguments.command}"
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    return arguments


def build_parser() -> Parser:
    """All commands, with help that names units and defaults."""
    command = Path(sys.argv[0]).name  # the installed one, or app.py, or whatever runs that
    parser = Parser(
        prog=command if command.endswith("-studio") else "app.py", description="Makes videos from a prompt or a picture."
    )
    parser.add_argument("--version", action="version", version=f"{project_name()} {project_version()}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_serve(commands)
    _add_generate(commands)
    _add_live(commands)
    _add_storyboard(commands)
    _add_cut(commands)
    _add_stages(commands)
    _add_measure_cache(commands)
    _add_presets(commands)
    _add_check_tpu(commands)
    _add_models(commands)
    _add_precompile(commands)
    _add_keys(commands)
    _add_doctor(commands)
    _add_export(commands)
    _add_smooth(commands)
    _add_upscale(commands)
    _add_member(commands)
    return parser


def _add_serve(commands: argparse._SubParsersAction) -> None:
    serve = commands.add_parser("serve", help="open the studio in the browser (the default)")
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 for every one (%(default)s)")
    serve.add_argument("--port", type=_parse_port, default=7860, help="port to listen on (%(default)s)")
    names = "a host name by which visitors reach the studio; repeat the option for more (addresses in numbers always work)"
    serve.add_argument("--allowed-host", dest="allowed_hosts", action="append", default=[], metavar="NAME", help=names)
    models = "the presets that visitors may use, with commas between them (all that are here); you may use every one"
    serve.add_argument("--models", type=_parse_presets, metavar="NAME,...", help=models)
    serve.add_argument("--share", action="store_true", help="also make a public link")
    serve.add_argument(
        "--browser", dest="opens_browser", action="store_true", help="open the operator's link in this machine's browser"
    )
    serve.add_argument(
        "--auth",
        type=_parse_login,
        metavar="USER:PASSWORD",
        help="ask visitors for these; if others can reach the studio and this is left out, a password is made and shown",
    )
    _add_rewriter(serve)
    notify = (
        "where the end of each of your own videos is told: mail, chat, a webhook, as Apprise writes addresses; repeat for more"
    )
    serve.add_argument("--notify", action="append", type=_parse_notification_url, default=[], metavar="URL", help=notify)
    workers = "videos that are made at the same time, each with its own copy of the model and its share of the machine"
    serve.add_argument("--workers", type=int, default=1, metavar="N", help=f"{workers} (%(default)s)")
    _add_hosts(serve)
    cluster = "make the videos on the machines of a Ray cluster: HOST:PORT of its head, or auto; see docs/scale.md"
    serve.add_argument("--cluster", metavar="ADDRESS", help=cluster)
    days = "remove videos this many days after their end, but for starred ones (off)"
    serve.add_argument("--keep-days", type=_parse_positive, metavar="N", help=days)
    gigabytes = "while all videos take more, remove the oldest, but for starred ones (off)"
    serve.add_argument("--keep-gb", type=_parse_positive, metavar="N", help=gigabytes)
    resident = "of models that are not in use, keep so many GB on the devices and in the host's memory; 0: none (what fits)"
    serve.add_argument("--resident-gb", type=_parse_memory_limits, metavar="CHIPS,HOST", help=resident)
    serve.add_argument(
        "--open", dest="is_open", action="store_true", help="let in everybody who can reach the studio, without a password"
    )
    _add_common(serve)
    _add_profile(serve)


def _add_rewriter(serve: argparse.ArgumentParser) -> None:
    url = "an address that writes prompts as OpenAI's chat completions do (key: STUDIO_REWRITER_KEY); see docs/operating.md"
    serve.add_argument("--rewriter-url", metavar="URL", help=url)
    model = "a language model that writes prompts on this machine: a Hub id or a folder; beside --rewriter-url its name there"
    serve.add_argument("--rewriter-model", metavar="ID", help=model)
    serve.add_argument("--rewriter", metavar="COMMAND", help="a program of yours that writes prompts; see docs/operating.md")


def _add_generate(commands: argparse._SubParsersAction) -> None:
    generate = commands.add_parser("generate", help="make one video, then end")
    add_settings(generate, "encode", "denoise", required=("preset",))
    _add_result(generate)
    _add_hosts(generate)
    _add_common(generate)
    _add_profile(generate)


def _add_live(commands: argparse._SubParsersAction) -> None:
    about = "make a video block by block, with changes of prompt and action on the way"
    live = commands.add_parser("live", help=about)
    live.add_argument("--preset", required=True, metavar="NAME", help="a live one of `app.py presets list`")
    live.add_argument("--prompt", metavar="TEXT", help="what the video shows at its beginning, for presets that read it")
    live.add_argument("--image", metavar="FILE", help="the first frame, for presets that take one")
    actions = 'what is done, for how many blocks each, such as "right*8,up*8"; then "stay"; "forward+left" is both'
    live.add_argument("--actions", default="", metavar="ACTION*N,...", help=actions)
    prompts = "the prompt from block N on; repeat the option for more"
    live.add_argument("--prompts", action="append", default=[], metavar="N:TEXT", help=prompts)
    live.add_argument("--seconds", type=_parse_positive, required=True, metavar="N", help="how long, rounded up to whole blocks")
    live.add_argument("--seed", type=int, metavar="N", help="same seed and words, same video (drawn at random)")
    add_setting(live, SETTINGS["loras"])
    _add_result(live)
    _add_common(live)


def _add_storyboard(commands: argparse._SubParsersAction) -> None:
    about = "make a video of several shots, each going on from the last frames of the one before"
    storyboard = commands.add_parser("storyboard", help=about)
    file = "TOML: preset, size, steps and what else `generate` takes, then [[shots]] with prompt, seconds or frames, and seed"
    file += "; cut, image or video for one that does not go on, fade, trim; [[figures]] with name and image"
    storyboard.add_argument("file", metavar="FILE.toml", help=file)
    about = "a picture of a figure, seen in the shots whose prompts name it, of presets with control; repeat the option for more"
    storyboard.add_argument(
        "--figure", dest="figures", type=parse_character, action="append", default=[], metavar="NAME:FILE", help=about
    )
    again = "the job of an earlier storyboard in the data folder, whose shots before --from-shot are kept as they are"
    storyboard.add_argument("--again", metavar="JOB", help=again)
    storyboard.add_argument("--from-shot", type=int, metavar="N", help="the first shot that is made anew, from 1")
    _add_result(storyboard)
    storyboard.set_defaults(loras=[])
    _add_common(storyboard)


def _add_cut(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser("cut", help="cut finished videos into one film, with fades and a sound below; loads no model")
    file = (
        "TOML or JSON: [[shots]] with video, trim and fade, and track, track_start, track_fade, track_volume, width, height, fps"
    )
    command.add_argument("file", metavar="FILE.toml", help=file)
    _add_result(command)


def _add_stages(commands: argparse._SubParsersAction) -> None:
    """The three stages of a video; each starts from the files that the one before it left in the folder."""
    encode = commands.add_parser("encode", help="a video's first stage: read the prompt and the pictures")
    denoise = commands.add_parser("denoise", help="its second stage: the latents; continues if it was stopped")
    decode = commands.add_parser("decode", help="its third stage: the mp4")
    for stage in (encode, denoise, decode):
        stage.add_argument("--run", required=True, metavar="DIR", help="the folder that holds what the stages make")
        stage.add_argument("--json", action="store_true", help="print the result as one JSON object")
    add_settings(encode, "encode", "denoise")
    add_settings(denoise, "denoise")
    for stage in (encode, denoise, decode):
        _add_common(stage)


def _add_measure_cache(commands: argparse._SubParsersAction) -> None:
    about = "make one video of a model to measure how its steps differ, which --mag-cache needs to know"
    measure = commands.add_parser("measure-cache", help=about)
    measure.add_argument("--preset", required=True, metavar="NAME", help="one of `app.py presets list`")
    for name in ("prompt", "image", "last_image", "width", "height", "num_frames", "steps", "seed"):
        add_setting(measure, SETTINGS[name])
    measure.add_argument("--output", type=Path, metavar="FILE.json", help="where to put the result (the data folder)")
    _add_common(measure)


def _add_result(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", metavar="FILE", help="where to put the mp4 (the job's folder)")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", metavar="ID_OR_DIR", help="a checkpoint in place of the preset's own")
    file = "a transformer in one file, in its makers' names (safetensors, fp8 too), in place of the checkpoint's; for two "
    file += "experts give it twice, the high-noise one first"
    parser.add_argument("--transformer", action="append", default=[], metavar="FILE", help=file)
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="where jobs are kept (data in this project)")
    precompiled = "what `precompile` wrote; a program that is not there is compiled"
    parser.add_argument("--executables", type=Path, metavar="DIR", help=precompiled)
    _add_mesh(parser)


def _add_profile(parser: argparse.ArgumentParser) -> None:
    traces = "write traces for TensorBoard and XProf of each video's steps and decoder into this folder"
    parser.add_argument("--profile", type=Path, metavar="DIR", help=traces)
    parser.add_argument(
        "--profile-steps",
        type=_parse_step_range,
        default="3-5",
        metavar="A-B",
        help="the denoising steps that are traced (%(default)s)",
    )


def _add_presets(commands: argparse._SubParsersAction) -> None:
    presets = commands.add_parser("presets", help="list the presets, or show one")
    actions = presets.add_subparsers(dest="action", metavar="list|show", required=True)
    listing = actions.add_parser("list", help="one line each")
    showing = actions.add_parser("show", help="everything about one")
    showing.add_argument("name", metavar="NAME")
    for parser in (listing, showing):
        parser.add_argument("--json", action="store_true", help="print JSON")


def _add_models(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser("models", help="list, download or verify checkpoints")
    actions = parser.add_subparsers(dest="action", metavar="list|download|verify", required=True)
    listing = actions.add_parser("list", help="the presets' models and LoRAs, and which are here")
    listing.add_argument("--data-dir", type=Path, metavar="DIR", help="where your LoRAs are (data in this project)")
    download = actions.add_parser("download", help="fetch a checkpoint, or what is missing of it")
    download.add_argument("id", metavar="ID", help="a preset's name, OWNER/NAME, or OWNER/NAME:FILE for a LoRA")
    verify = actions.add_parser("verify", help="whether a checkpoint's files are whole")
    verify.add_argument("id", metavar="ID", help="a preset's name, OWNER/NAME, or a folder")
    for action in (listing, verify):
        action.add_argument("--json", action="store_true", help="print JSON")


def _add_keys(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser("keys", help="make, list or revoke keys for programs")
    actions = parser.add_subparsers(dest="action", metavar="create|list|revoke", required=True)
    create = actions.add_parser("create", help="a new key, shown this once")
    create.add_argument("name", metavar="NAME", help="which program it is for, in your words")
    limit = "videos that it may have in line, 1 to 100 (%(default)s)"
    create.add_argument("--limit", type=int, default=USUAL_LIMIT, metavar="N", help=limit)
    told = "where the end of each of its videos is told, as Apprise writes addresses; repeat the option for more"
    create.add_argument("--notify", action="append", type=_parse_notification_url, default=[], metavar="URL", help=told)
    listing = actions.add_parser("list", help="names, dates and limits, never a key")
    revoke = actions.add_parser("revoke", help="end a key at once")
    revoke.add_argument("name", metavar="NAME", help="one of `app.py keys list`")
    for action in (create, listing):
        action.add_argument("--json", action="store_true", help="print JSON")
    for action in (create, listing, revoke):
        action.add_argument("--data-dir", type=Path, metavar="DIR", help="the server's data folder (data in this project)")


_PROGRESSIVE = "with the first steps at half the size, level 1 to 4"


def _add_check_tpu(commands: argparse._SubParsersAction) -> None:
    check = commands.add_parser("check-tpu", help="what the TPU compiler reports about a preset, without a TPU")
    check.add_argument("--preset", required=True, metavar="NAME", help="one of `app.py presets list`")
    check.add_argument("--topology", required=True, metavar="CHIP:SHAPE", help="such as v6e:2x4")
    check.add_argument("--progressive", type=int, metavar="LEVEL", help=_PROGRESSIVE)
    check.add_argument("--json", metavar="FILE", help="also write the report there")
    _add_mag_cache(check)
    _add_mesh(check)


def _add_precompile(commands: argparse._SubParsersAction) -> None:
    about = "compile a preset's programs into files, so that the studio need not"
    command = commands.add_parser("precompile", help=about)
    command.add_argument("--preset", required=True, metavar="NAME", help="one of `app.py presets list`")
    command.add_argument("--output", required=True, metavar="DIR", help="where to put the files")
    command.add_argument("--topology", metavar="CHIP:SHAPE", help="a slice that need not be here, such as v6e:2x4 (this machine)")
    for name, what in (("width", "pixels"), ("height", "pixels"), ("frames", "number of frames, 4n+1")):
        command.add_argument(f"--{name}", type=int, metavar="N", help=f"{what} (the preset's own)")
    command.add_argument("--progressive", type=int, metavar="LEVEL", help=f"{_PROGRESSIVE}; the programs of one level are all's")
    command.add_argument("--json", action="store_true", help="print what was written as one JSON object")
    _add_mag_cache(command)
    _add_mesh(command)


def _add_mag_cache(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--mag-cache", type=float, metavar="X", help="of videos with this --mag-cache (0)")


def _add_export(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser("export", help="write a video as webm, gif, animated webp, or its frames in a zip")
    command.add_argument("file", metavar="FILE", help="the video")
    command.add_argument("--format", required=True, choices=FORMATS, help="webm, gif, webp, or png for a zip of its frames")
    command.add_argument(
        "--max-mb", type=_parse_positive, metavar="N", help="make a gif or webp smaller until it has so many megabytes"
    )
    command.add_argument("--output", metavar="FILE", help="where to put it (beside the video)")
    command.add_argument("--json", action="store_true", help="print what was written as one JSON object")


def _add_smooth(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser("smooth", help="give a video more frames a second, by motion compensation")
    command.add_argument("file", metavar="FILE", help="the video")
    command.add_argument("--fps", type=int, required=True, metavar="N", help="frames a second, such as 24, 30, 48 or 60")
    command.add_argument("--output", metavar="FILE", help="where to put the mp4 (beside the video)")
    command.add_argument("--json", action="store_true", help="print what was written as one JSON object")


def _add_upscale(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser("upscale", help="make a video larger, by a model for it")
    command.add_argument("file", metavar="FILE", nargs="?", help="the video, ours or any clip (mp4, webm, mov, gif)")
    command.add_argument("--scale", dest="upscale", type=int, choices=SCALES, default=SCALES[0], help="times (%(default)s)")
    name = "one of --list, a .safetensors or .pth file (docs/models.md), or owner/repository:FILE on the Hub (animevideov3)"
    command.add_argument("--model", dest="upscaler", default="", metavar="NAME", help=name)
    command.add_argument("--list", dest="is_list", action="store_true", help="list the models that are here, then end")
    command.add_argument("--data-dir", type=Path, metavar="DIR", help="where jobs and models are kept (data in this project)")
    command.add_argument("--executables", type=Path, help=argparse.SUPPRESS)
    _add_result(command)
    command.set_defaults(model=None, transformer=[], loras=[], **dict.fromkeys(AXES))


def _add_doctor(commands: argparse._SubParsersAction) -> None:
    about = "what is here, what runs on it, what is wrong, and what mends it"
    command = commands.add_parser("doctor", help=about)
    command.add_argument("--preset", metavar="NAME", help="what shall run here, one of `app.py presets list` (the demo model)")
    command.add_argument("--json", metavar="FILE", help="also write the findings there, for a bug report")
    command.add_argument("--data-dir", type=Path, metavar="DIR", help="where jobs are kept (data in this project)")


def _add_member(commands: argparse._SubParsersAction) -> None:
    about = "take part in the work of another host, on each of the others of a slice"
    command = commands.add_parser("member", help=about)
    where = f"the first host, where `serve --hosts N` runs ({HOSTS_PORT} is the usual port)"
    command.add_argument("--coordinator", type=_parse_address, required=True, metavar="HOST:PORT", help=where)
    number = "this host's number, from 1; on a TPU slice its worker number (the first host is worker 0)"
    command.add_argument("--process-id", type=int, required=True, metavar="I", help=number)
    command.add_argument("--num-processes", type=_parse_count, required=True, metavar="N", help="all hosts, the first one too")
    command.add_argument("--data-dir", type=Path, metavar="DIR", help="where its log and LoRAs are (data in this project)")


def _add_hosts(parser: argparse.ArgumentParser) -> None:
    hosts = "spread each video over N hosts, this one and those where `app.py member` runs; see docs/tpu.md"
    parser.add_argument("--hosts", type=_parse_count, metavar="N", help=hosts)
    address = "where the other hosts reach this one; the next port is used too (%(default)s)"
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
    """An address for notices. The error does not show it: it may hold a password."""
    if not is_address(text):
        raise argparse.ArgumentTypeError("must be an address that Apprise knows; appriseit.com says how each service writes them")
    return text


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
        raise argparse.ArgumentTypeError(f"{text!r} must be a number from 2")
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
        raise argparse.ArgumentTypeError(f"{text!r} must be two numbers of gigabytes, such as 100,200, or 0 to keep none")
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

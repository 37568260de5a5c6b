"""Convert parsed arguments to a request, a model, worker options and hosts."""

import argparse
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar, cast

from backend.catalog.measured_ratios import add_measured_ratios
from backend.checkpoints.loras import is_hub_source
from backend.checkpoints.single_file import SUFFIXES, is_on_hub, parse_file_source
from backend.cli.storyboard_file import read_storyboard
from backend.errors import OutputError, RequestError
from backend.media.driving_video import settings_from_files
from backend.schemas.prompt_cues import merge_cues, parse_actions, parse_prompts
from backend.schemas.request import GenerationRequest
from backend.schemas.settings import INPUTS, SETTINGS, find_preset
from backend.schemas.worker import AXES, Hosts, WorkerOptions
from backend.settings import from_environment, read_secret, this_machine
from backend.shares import Share, shares_of
from presets import list_presets
from presets.loader import Expert

Text = TypeVar("Text", bound=str | None)
_SHORTEST_SECRET = 16


@dataclass(frozen=True, kw_only=True)
class LoraOption:
    """One `--lora`: a path, a name in the loras folder or a Hub file."""

    source: str
    scale: float = 1.0
    expert: Expert = "both"


def request_from_arguments(arguments: argparse.Namespace) -> GenerationRequest:
    """Build the request from the options of `generate` or `live`, or from the file of `storyboard`.

    LoRAs are added to the LoRAs of the preset. A live video lasts at least `--seconds` and has only whole blocks.
    Raises: RequestError.
    """
    if arguments.command == "storyboard":
        figures = [(name, absolute(image)) for name, image in arguments.figures]
        request = read_storyboard(Path(absolute(arguments.file)), figures)
        return add_measured_ratios(request, from_environment(arguments.data_dir).magnitudes_dir)
    preset = find_preset(arguments.preset)
    own = (
        {"source": one.source if is_hub_source(one.source) else Path(one.source).name, "scale": one.scale, "expert": one.expert}
        for one in arguments.loras
    )
    settings: dict[str, object] = {"loras": (*preset.loras, *own)}
    if arguments.command == "live":
        if not preset.live:
            live = ", ".join(one.name for one in list_presets() if one.live)
            raise RequestError(f"preset={preset.name}", "makes its videos in one piece", f"use `generate`, or one of {live}")
        blocks = max(0, math.ceil((arguments.seconds * preset.fps - preset.first_frames) / preset.frame_step))
        settings |= {name: getattr(arguments, name) for name in ("prompt", "seed", "quantize")}
        settings["image"] = absolute(arguments.image)
        settings["num_frames"] = preset.first_frames + blocks * preset.frame_step
        settings["cues"] = merge_cues([*parse_actions(arguments.actions, 1 + blocks), *parse_prompts(arguments.prompts)])
    else:
        # An option that was not given has the value None.
        values = {name: getattr(arguments, name) for name, one in SETTINGS.items() if one.stage and name != "preset"}
        keyframes = sorted(arguments.keyframes)
        values["keyframes"] = [path for _, path in keyframes]
        for role in (one.name for one in INPUTS if one.stage):
            given = values[role]
            values[role] = tuple(map(absolute, given)) if isinstance(given, list) else absolute(given)
        values["keyframe_at"] = tuple(number for number, _ in keyframes)
        if arguments.trim is not None and len(arguments.trim) == 1:  # the part of the clip is as long as the new video
            frames, fps = arguments.num_frames or preset.num_frames, arguments.fps or preset.fps
            values["trim"] = (arguments.trim[0], arguments.trim[0] + frames / fps)
        settings = values | settings
        settings |= settings_from_files(preset, settings)
    request = GenerationRequest.from_preset(preset, **settings)
    return add_measured_ratios(request, from_environment(arguments.data_dir).magnitudes_dir)


def model_from_arguments(arguments: argparse.Namespace, preset: str | None = None) -> str | None:
    """Return the model source: the checkpoint of --model with the files of --transformer in place of its transformers.

    Local folders and files get absolute paths. Ids on the Hub, such as OWNER/NAME or OWNER/NAME+FILE, stay unchanged. Without
    --model, the files replace the transformers of the preset's checkpoint. If neither option is given, return None.
    Raises: RequestError.
    """
    model = arguments.model
    if model is not None and os.path.isdir(model):
        model = absolute(model)
    elif model is not None and (model.startswith(("/", ".", "~")) or model.partition("+")[0].count("/") != 1):
        raise RequestError(f"model={model!r}", "must be a checkpoint folder or an id such as OWNER/NAME", "check the path")
    files = []
    for file in arguments.transformer:
        path = absolute(file)
        if os.path.isfile(path) and path.endswith(SUFFIXES):
            files.append(path)
        elif is_on_hub(file) and not os.path.exists(path) and parse_file_source(f"owner/name+{file}") is not None:
            files.append(file)
        else:
            rule = f"must be a file that ends in {' or '.join(SUFFIXES)}, or OWNER/NAME:FILE on the Hub"
            raise RequestError(f"transformer={file!r}", rule, "check the path")
    if not files:
        return model
    preset = preset or getattr(arguments, "preset", None)
    base = model or (find_preset(preset).model_source.partition("+")[0] if preset else None)
    if base is None:
        raise RequestError("--transformer was given", "without the checkpoint whose transformer it replaces", "give --model too")
    if parse_file_source(source := "+".join([base, *files])) is None or len(files) > 2:
        rule = "can replace the transformers of a folder or of OWNER/NAME, and a checkpoint has two at most"
        what = f"--transformer was given {len(files)} times together with {base}: it"
        raise RequestError(what, rule, "correct --model or --transformer")
    return source


def worker_options_from_arguments(arguments: argparse.Namespace) -> WorkerOptions:
    """Return the worker's options. Raises: RequestError if --executables is not a folder."""
    folder = arguments.executables
    if folder is not None and not folder.is_dir():
        raise RequestError(f"executables={str(folder)!r}", "must be a folder that `precompile` wrote", "check the path")
    mesh = {axis: getattr(arguments, axis) for axis in AXES}
    profile = getattr(arguments, "profile", None)
    traced = {} if profile is None else {"profile": profile.absolute(), "profile_steps": arguments.profile_steps}
    chips, host = getattr(arguments, "resident_gb", None) or (None, None)
    kept = {"resident_chips_gb": chips, "resident_host_gb": host}
    return WorkerOptions(executables=folder and folder.absolute(), **traced, **kept, **mesh)


def worker_shares(arguments: argparse.Namespace) -> tuple[Share, ...]:
    """Return the cores or chips of this machine that each worker may use. Raises: RequestError."""
    if arguments.cluster is not None and arguments.workers != 1:
        rule = "cannot be given with --cluster, whose nodes are the workers"
        raise RequestError(f"workers={arguments.workers}", rule, "leave one out")
    return shares_of(this_machine(), arguments.workers)


def hosts_from_arguments(arguments: argparse.Namespace) -> Hosts | None:
    """Return the hosts of the multihost worker, None without --hosts. Raises: RequestError."""
    if arguments.hosts is None:
        return None
    if getattr(arguments, "workers", 1) != 1:
        raise RequestError(f"workers={arguments.workers}", "must be 1 with --hosts", "leave one of the two out")
    if getattr(arguments, "cluster", None) is not None:
        raise RequestError(f"hosts={arguments.hosts}", "cannot be given with --cluster", "leave one of the two out")
    address, port = arguments.hosts_address
    return Hosts(count=arguments.hosts, address=address, port=port, secret=read_hosts_secret())


def login_from_arguments(arguments: argparse.Namespace) -> tuple[str, str] | None:
    """Return the visitors' user name and password from --auth, else from the environment. Raises: RequestError."""
    if arguments.auth:
        return arguments.auth
    user, _, password = _read_secret("STUDIO_AUTH").partition(":")
    if bool(user) != bool(password):
        raise RequestError("STUDIO_AUTH", "must be USER:PASSWORD, neither of them empty", "correct it, or leave it out")
    return (user, password) if user else None


def read_hosts_secret() -> str:
    """Read the secret that the hosts share. Raises: RequestError if it is missing or too short."""
    secret = _read_secret("STUDIO_HOSTS_SECRET")
    if len(secret) < _SHORTEST_SECRET:
        rule = f"must have at least {_SHORTEST_SECRET} characters, the same on every host"
        raise RequestError("STUDIO_HOSTS_SECRET", rule, "create a secret with `openssl rand -hex 32`")
    return secret


def _read_secret(name: Literal["STUDIO_HOSTS_SECRET", "STUDIO_AUTH"]) -> str:
    try:
        return read_secret(name)
    except OSError as error:
        raise RequestError(f"{name}_FILE", f"must be a readable file ({error.strerror})", "check the path") from None


def resolve_video_paths(file: str, output: str | None, suffix: str) -> tuple[Path, Path]:
    """Return the paths of the source video and of the file to write, by default next to it. Raises: RequestError, OutputError."""
    source = Path(file)
    if not source.is_file():
        raise RequestError(f"{file!r}", "must be an existing video", "check the path")
    target = Path(output) if output else source.with_name(source.stem + suffix)
    if not target.parent.is_dir() or target.resolve() == source.resolve():
        raise OutputError(f"output={str(target)!r}", "must be another file in an existing folder", "choose another file")
    return source, target


def absolute(path: Text) -> Text:
    """Return the absolute path with `~` and `..` resolved. None stays None."""
    return path if path is None else cast(Text, os.path.abspath(os.path.expanduser(path)))

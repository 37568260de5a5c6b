"""The options of `generate`, `encode` and `denoise`. Each `Setting` with a `stage` has an option. This module starts no work."""

import argparse
from typing import Any, cast, get_args

from backend.cli.arguments import LoraOption
from backend.schemas.settings import SETTINGS, Setting
from presets.loader import Expert

_ABOUT_CONTROL = "inputs of presets with control; files are cropped to the video's aspect ratio"
_METAVARS = {int: "N", float: "X", str: "TEXT"}


def add_settings(parser: argparse.ArgumentParser, *stages: str, required: tuple[str, ...] = ()) -> None:
    """Add an option for each setting whose stage ("encode" or "denoise") is in `stages`."""
    parser.epilog = "docs/reference.md describes when to change each setting, and what it costs."
    group = parser.add_argument_group("control", _ABOUT_CONTROL) if "encode" in stages else parser
    for setting in SETTINGS.values():
        if setting.stage in stages:
            more = {"required": True} if setting.name in required else {}
            add_setting(group if setting.subject == "control" else parser, setting, **more)


def add_setting(parser: Any, setting: Setting, **more: Any) -> None:
    """Add the setting's option. The default is [] for an option that can be repeated, otherwise None."""
    flag, metavar = option_name(setting), option_value(setting) or None
    if setting.type is bool:
        more |= {"action": "store_false" if flag.startswith("--no-") else argparse.BooleanOptionalAction, "default": None}
    elif setting.choices:
        more["choices"] = setting.choices
    elif setting.name == "loras":
        more |= {"type": _parse_lora, "action": "append", "default": [], "metavar": metavar}
    elif setting.media and setting.is_list:
        more |= {"nargs": "+", "action": "extend", "default": [], "metavar": metavar}
        if setting.name == "keyframes":
            more["type"] = _parse_keyframe
    else:
        of_list = _parse_margins if setting.name == "margins" else _parse_numbers
        more |= {"type": of_list if setting.is_list else setting.type, "metavar": metavar}
    text = setting.help.replace("%", "%%")  # argparse would replace a single percent sign and the name after it
    parser.add_argument(flag, dest=setting.name, help=text, **more)


def option_name(setting: Setting) -> str:
    return setting.flag or f"--{setting.name.replace('_', '-')}"


def option_value(setting: Setting) -> str:
    """Return the placeholder that help shows after the option, such as `N` or `FILE`. "" for a switch or a choice."""
    if setting.type is bool or setting.choices:
        return ""
    return setting.metavar or ("FILE" if setting.media else _METAVARS.get(setting.type, ""))


def _parse_margins(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if len(parts) != 4 or not all(part.strip().isdecimal() and int(part) < 1 << 15 for part in parts):
        raise argparse.ArgumentTypeError(f"{text[:60]!r} must be four numbers of pixels, left, top, right and bottom: 64,0,64,0")
    return tuple(map(int, parts))


def _parse_keyframe(text: str) -> tuple[int, str]:
    number, mark, path = text.partition(":")
    if not (mark and path and number.isdecimal() and int(number) < 1_000_000):
        raise argparse.ArgumentTypeError(f"{text[:60]!r} must be a frame number and an image, such as 0:first.png")
    return int(number), path


def parse_character(text: str) -> tuple[str, str]:
    """Split NAME:FILE into a character's name and the path of its image."""
    name, mark, path = text.partition(":")
    if not (name.strip() and mark and path):
        raise argparse.ArgumentTypeError(f"{text[:60]!r} must be a name and an image, such as Anna:anna.png")
    return name, path


def _parse_lora(text: str) -> LoraOption:
    source, expert, scale = text, "both", 1.0
    head, _, tail = source.rpartition(":")
    if head and tail in get_args(Expert):
        source, expert = head, tail
        head, _, tail = source.rpartition(":")
    if head and not tail.endswith(".safetensors"):
        try:
            source, scale = head, float(tail)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} must be FILE, FILE:SCALE or FILE:SCALE:EXPERT") from None
    return LoraOption(source=source, scale=scale, expert=cast(Expert, expert))


def _parse_numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} must be numbers separated by commas, such as 4 or 4,3") from None

"""The options of `generate` and `encode` for models with control blocks. Runs nothing."""

import argparse
from typing import get_args

from backend.contract.control import ControlKind, Extend


def add_control(parser: argparse.ArgumentParser) -> None:
    """What their videos are made from, beside --video and --trim."""
    group = parser.add_argument_group("control", "what presets with control are shown; files are cropped to the video's aspect")
    group.add_argument("--control", metavar="FILE", help="a clip that the video follows: depth, pose, edges, scribble, grey")
    kind = "what is made of that clip first: its edges, or a grey one (as-is)"
    group.add_argument("--control-kind", choices=get_args(ControlKind), help=kind)
    group.add_argument(
        "--control-scale", type=float, metavar="X", help="how strongly the video follows what is shown, 0 to 2 (1)"
    )
    mask = "a picture or a clip, white where --video is made anew"
    group.add_argument("--mask", metavar="FILE", help=mask)
    group.add_argument("--margins", type=_margins, metavar="L,T,R,B", help="pixels that are made around --video, within the size")
    extend = "go on where --video ends (the 5B and the demo too), or lead up to its beginning"
    group.add_argument("--extend", choices=get_args(Extend), help=extend)
    group.add_argument("--overlap", type=int, metavar="N", help="the clip's frames that such a video begins or ends with (17)")
    group.add_argument(
        "--no-keep-pixels", action="store_false", dest="keeps_pixels", help="do not put the clip's own pixels back outside a mask"
    )
    references = "pictures of what is to be seen, whole on white"
    group.add_argument("--reference", nargs="+", action="extend", default=[], metavar="FILE", help=references)
    keyframes = "pictures that are these frames of the video, counted from 0"
    group.add_argument("--keyframe", type=_keyframe, nargs="+", action="extend", default=[], metavar="N:FILE", help=keyframes)


def _margins(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if len(parts) != 4 or not all(part.strip().isdecimal() and int(part) < 1 << 15 for part in parts):
        raise argparse.ArgumentTypeError(f"{text[:60]!r} must be four numbers of pixels, left, top, right and bottom: 64,0,64,0")
    return tuple(map(int, parts))


def _keyframe(text: str) -> tuple[int, str]:
    number, mark, path = text.partition(":")
    if not (mark and path and number.isdecimal() and int(number) < 1_000_000):
        raise argparse.ArgumentTypeError(f"{text[:60]!r} must be a frame's number and a picture, such as 0:first.png")
    return int(number), path

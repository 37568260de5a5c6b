"""CFG-Zero*: what it goes together with, and which steps it leaves out.

Source: Fan et al. 2025, arXiv:2503.18886, "CFG-Zero*"; its authors leave out the first two of 50 steps.
"""

from backend.errors import RequestError
from backend.schemas.settings import VideoSettings
from presets import Preset

SHARE = 0.04  # of the steps


def check_cfg_zero(request: VideoSettings, preset: Preset) -> None:
    """Raises: RequestError where it cannot be used."""
    if not request.cfg_zero:
        return
    if not preset.takes_cfg_zero:
        raise RequestError("cfg_zero was given,", f"and {preset.name} has no guidance that it changes", "leave it out")
    for name, is_there, fix in (
        ("guidance of 1 or less", not request.is_guided, "give guidance above 1"),
        ("step_cache", request.step_cache > 0, "set step_cache to 0"),
        ("context windows", request.window_frames is not None, "make the video shorter, or in one piece with --no-windows"),
    ):
        if is_there:
            raise RequestError("cfg_zero", f"does not go together with {name}", fix)


def num_zero_steps(request: VideoSettings) -> int:
    """How many of the first steps are left out; none of a clip that is made anew, which begins with little noise."""
    return max(1, round(SHARE * request.steps)) if request.cfg_zero and request.video is None else 0

"""CFG-Zero*: the settings that cannot be combined with it, and the first steps that it skips.

Source: Fan et al. 2025, arXiv:2503.18886, "CFG-Zero*"; its authors skip the first two of 50 steps.
"""

from backend.errors import RequestError
from backend.schemas.combinations import check_combinations
from backend.schemas.settings import VideoSettings

SHARE = 0.04  # share of all steps that CFG-Zero* skips at the start, at least one step


def check_cfg_zero(request: VideoSettings) -> None:
    """Check that CFG-Zero* can be used. Raises: RequestError."""
    if not request.cfg_zero:
        return
    if not request.is_guided:
        raise RequestError("cfg_zero", "cannot be combined with guidance of 1 or less", "give guidance above 1")
    check_combinations("cfg_zero", request, "step_cache", "context windows")


def num_zero_steps(request: VideoSettings) -> int:
    """Return how many first steps CFG-Zero* skips. A restyled clip skips no step, because its first step has little noise."""
    return max(1, round(SHARE * request.steps)) if request.cfg_zero and request.video is None else 0

"""The settings that several other settings cannot be combined with."""

from collections.abc import Callable, Mapping

from backend.errors import RequestError
from backend.schemas.settings import VideoSettings

_IS_SET: Mapping[str, tuple[Callable[[VideoSettings], bool], str]] = {
    "step_cache": (lambda request: request.step_cache > 0, "set step_cache to 0"),
    "mag_cache": (lambda request: request.mag_cache > 0, "leave one out"),
    "cfg_zero": (lambda request: request.cfg_zero, "leave one out"),
    "context windows": (lambda request: request.window_frames is not None, "choose a shorter video, or --no-windows"),
}
"""For each setting: whether a request uses it, and what the user can do."""


def check_combinations(setting: str, request: VideoSettings, *others: str) -> None:
    """Check that the request uses none of `others` together with `setting`. Raises: RequestError."""
    for other in others:
        is_set, fix = _IS_SET[other]
        if is_set(request):
            raise RequestError(setting, f"cannot be combined with {other}", fix)

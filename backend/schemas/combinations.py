"""Checks of the methods that make videos better or faster (CFG-Zero*, progressive resolution, MagCache, Sol-Attn)."""

from collections.abc import Callable, Mapping
from typing import Literal

from backend.errors import RequestError
from backend.schemas.settings import VideoSettings
from presets import Preset, list_presets
from presets.loader import FEW_STEPS

Method = Literal["cfg_zero", "progressive", "mag_cache", "sparse"]
_EXCLUDES: Mapping[Method, tuple[str, ...]] = {
    "cfg_zero": ("step_cache", "context windows"),
    "progressive": ("mag_cache", "context windows"),
    "mag_cache": ("step_cache", "cfg_zero", "context windows"),
    "sparse": ("step_cache", "mag_cache", "cfg_zero", "context windows"),
}
_IS_SET: Mapping[str, tuple[Callable[[VideoSettings], bool], str]] = {
    "step_cache": (lambda request: request.step_cache > 0, "set step_cache to 0"),
    "mag_cache": (lambda request: request.mag_cache > 0, "leave one out"),
    "cfg_zero": (lambda request: request.cfg_zero, "leave one out"),
    "context windows": (lambda request: request.window_frames is not None, "choose a shorter video, or --no-windows"),
}
"""For each excluded setting: whether a request uses it, and what the user can do."""


def check_method(method: Method, request: VideoSettings, preset: Preset) -> None:
    """Check that the method, if the request uses it, can be used with the preset and the other settings. Raises: RequestError."""
    if not getattr(request, method):
        return
    if method == "cfg_zero" and not request.is_guided:
        raise RequestError("cfg_zero", "cannot be combined with guidance of 1 or less", "give guidance above 1")
    if method == "progressive" and request.solver in FEW_STEPS:
        raise RequestError("progressive", f"cannot be combined with the solver {request.solver}", "leave it out")
    if method == "sparse" and not preset.takes_sparse:
        trained = preset.network_configs().get("transformer", {}).get("sparse_attention")
        if trained is None:
            supported = sorted({one.series for one in list_presets() if one.takes_sparse and one.architecture is not None})
            why = f"it is for guided presets of {' and '.join(supported)} for text or image to video, without control clips"
        else:
            why = f"its model was trained with its own sparse attention ({trained})"
            if trained != "ssta":  # SSTA has a fixed number of blocks
                why += f", and the preset's sparse_keep={preset.sparse_keep:g} sets the share of blocks"
        raise RequestError("sparse was given,", f"and {preset.name} does not support it: {why}", "leave it out")
    for other in _EXCLUDES[method]:
        is_set, fix = _IS_SET[other]
        if is_set(request):
            raise RequestError(method, f"cannot be combined with {other}", fix)

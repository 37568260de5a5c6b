"""Add MagCache's ratios, which `measure-cache` measured on this machine, to requests."""

from pathlib import Path

from backend.errors import RequestError
from backend.schemas.mag_cache import find_magnitudes
from backend.schemas.request import GenerationRequest
from presets.magnitude_files import magnitudes_file_name, read_magnitudes


def add_measured_ratios(request: GenerationRequest, folder: Path) -> GenerationRequest:
    """Return the request with its model's ratios from `folder`, if the request uses MagCache and has no ratios yet.

    The request stores the ratios, so that it gives the same video on every machine and after a later measurement.
    Raises: RequestError if the model has neither measured nor published ratios.
    """
    if not request.mag_cache or request.mag_ratios or request.finished_video:
        return request
    preset = request.resolved_preset
    measured = read_magnitudes(folder / magnitudes_file_name(preset.model))
    if measured is not None and request.task in measured.ratios:
        return request.model_copy(update={"mag_ratios": measured.ratios[request.task].interleaved})
    if find_magnitudes(request) is None:
        words = f"measure-cache --preset {preset.name}" + (" --image FILE" if request.task == "i2v" else "")
        rule = f"and {preset.model} has no measured ratios"
        raise RequestError("mag_cache was given,", rule, f"`python app.py {words}` measures it")
    return request

"""The values of a request that lists show. They are stored in a small column, so that lists do not parse whole requests."""

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from backend.errors import RequestError
from backend.schemas.prompts import MAX_CHARACTERS
from backend.schemas.request import GenerationRequest

_COPIED = ("seed", "width", "height", "num_frames", "fps", "num_steps", "is_open", "is_from_pictures")


@dataclass(frozen=True, kw_only=True)
class RequestSummary:
    """The values of a request that lists show.

    `final_width` and `final_height` are the pixels of the video file. `is_upscaling` is True if the request only upscales a
    finished video. `digest` is a hash of the request.
    """

    preset: str
    prompt: str
    seed: int
    width: int
    height: int
    final_width: int
    final_height: int
    num_frames: int
    total_frames: int
    fps: int
    num_steps: int
    is_open: bool
    is_from_pictures: bool
    is_upscaling: bool
    has_shots: bool
    has_figures: bool
    digest: str

    @classmethod
    def from_request(cls, request: GenerationRequest) -> Self:
        """Summarize a request."""
        text = json.dumps(request.to_json(), sort_keys=True)
        final_width, final_height = request.final_size
        try:
            total_frames = request.total_frames
        except RequestError:  # the preset no longer exists, so the frames of the shots are not known
            total_frames = request.num_frames
        return cls(
            **{name: getattr(request, name) for name in _COPIED},
            preset=request.preset[:MAX_CHARACTERS],
            prompt=request.prompt[:MAX_CHARACTERS],
            final_width=final_width,
            final_height=final_height,
            total_frames=total_frames,
            is_upscaling=bool(request.finished_video),
            has_shots=bool(request.shots),
            has_figures=bool(request.figures),
            digest=hashlib.sha256(text.encode()).hexdigest()[:32],
        )

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Read the JSON that `to_json` wrote. Fields of newer versions are ignored."""
        return cls(**{each.name: data[each.name] for each in fields(cls)})

    def to_json(self) -> dict[str, Any]:
        """Return the summary as plain values, for `from_json`."""
        return asdict(self)

"""The progress of a video."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any, Self

FINAL = ("finished", "failed", "cancelled")


@dataclass(frozen=True, kw_only=True)
class Event:
    """The progress of a video at one moment. In a notebook, an event displays itself as a bar with the preview.

    `phase` is the present stage, such as "queued", "loading", "denoising" or "finished". `fraction` (0 to 1) never decreases.
    `text` is one line for people. `index` of `total` steps, frames or bytes of the stage are done; both are 0 if unknown.
    `seconds_left` estimates the time until the end, None if unknown. `ahead` is the number of queued videos before this video.
    `preview` is the newest preview as the bytes of a PNG or WebP image, None before the first. `outcome` is the server's
    description of the end, empty before.
    """

    phase: str
    fraction: float
    text: str
    index: int
    total: int
    seconds_left: float | None
    ahead: int
    preview: bytes | None = field(repr=False)
    outcome: Mapping[str, Any] = field(repr=False)

    @property
    def is_final(self) -> bool:
        """True for the last event of a video."""
        return self.phase in FINAL

    @classmethod
    def from_json(cls, data: Mapping[str, Any], last_preview: bytes | None) -> Self:
        """Read an event of the server. An event without a new preview keeps `last_preview`."""
        names = ("phase", "fraction", "text", "index", "total", "seconds_left", "ahead")
        url = data.get("preview")
        return cls(
            **{name: data[name] for name in names},
            preview=base64.b64decode(url.partition(",")[2]) if url else last_preview,
            outcome={name: data[name] for name in ("video", "result") if name in data},
        )

    def _repr_html_(self) -> str:
        image = ""
        if self.preview and not self.is_final:
            image = f'<br><img alt="" src="data:image;base64,{base64.b64encode(self.preview).decode()}">'
        return f'<progress value="{self.fraction:g}" max="1"></progress> {escape(self.text)}{image}'

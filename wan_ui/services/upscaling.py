"""The upscalers that a finished video can use, with estimated times, and their menu."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from backend.engine.engine import Engine
from backend.engine.estimate import Estimate
from backend.engine.job import Job
from backend.errors import RequestError
from backend.media.finished import upscale_file_values
from backend.media.sandbox import LONG_SECONDS, SandboxCall
from backend.schemas.events import VIDEO_FILE, VideoResult
from backend.schemas.finished import upscale_result_request
from backend.schemas.request import GenerationRequest
from backend.schemas.upscaling import SCALES
from wan_ui.components.buttons import text_button
from wan_ui.components.progress import format_duration
from wan_ui.i18n.english import Texts
from wan_ui.services.caller import Caller
from wan_ui.services.sandbox_calls import requester_from_caller
from wan_ui.services.studio_context import StudioContext


@dataclass(frozen=True, kw_only=True)
class UpscaleOffer:
    """An upscaler and a scale, with the resulting size in pixels and the estimated time (None if unknown)."""

    upscaler: str
    scale: int
    size: tuple[int, int]
    estimate: Estimate | None = None

    @property
    def value(self) -> str:
        """The value of the page's button or choice, for `parse_offer`."""
        return f"{self.scale}:{self.upscaler}"

    def label(self, texts: Texts) -> str:
        """Return one line with scale, model, size and time."""
        width, height = self.size
        said = [f"{self.scale}× {self.upscaler}", f"{width} × {height}"] if width else [f"{self.scale}× {self.upscaler}"]
        if self.estimate is not None:
            said.append(texts.estimate_about.format(seconds=format_duration(self.estimate.seconds)))
        return " · ".join(said)


def parse_offer(value: str) -> tuple[int, str]:
    """Return (scale, upscaler) of an untrusted `UpscaleOffer.value`. Raises: RequestError."""
    scale, _, upscaler = value.partition(":")
    if scale not in map(str, SCALES):
        raise RequestError(f"upscale={scale[:20]!r}", f"must be {' or '.join(map(str, SCALES))}", "choose an offered scale")
    return int(scale), upscaler


def offers_for_any_clip(engine: Engine) -> list[UpscaleOffer]:
    """Return all offers for an upload whose size is not known yet."""
    offered = itertools.product(engine.upscalers(), SCALES)
    return [UpscaleOffer(upscaler=name, scale=scale, size=(0, 0)) for name, scale in offered]


def find_offers(engine: Engine, job: Job | None, result: VideoResult | None) -> list[UpscaleOffer]:
    """Return the offers for a job's video. Empty if the video is missing or already upscaled."""
    if job is None or result is None or job.deleted or job.request.upscale or not (job.folder / VIDEO_FILE).is_file():
        return []
    offers = []
    for name, scale in itertools.product(engine.upscalers(), SCALES):
        try:
            wanted = upscale_job_request(job, result, scale, name)
        except RequestError:  # the enlarged video would be too large
            continue
        offers.append(
            UpscaleOffer(upscaler=name, scale=scale, size=wanted.final_size, estimate=engine.estimates.estimate(wanted))
        )
    return offers


def upscale_job_request(job: Job, result: VideoResult, scale: int, upscaler: str) -> GenerationRequest:
    """Return the request that upscales a job's video. Raises: RequestError."""
    return upscale_result_request(result, job.request, str(job.folder / VIDEO_FILE), scale, upscaler)


async def upscale_file_request(
    context: StudioContext, caller: Caller, clip: Path, scale: int, upscaler: str
) -> GenerationRequest:
    """Return the request that upscales a visitor's file. Opens the file for its size and settings. Raises: StudioError."""
    call = SandboxCall(work=upscale_file_values, arguments=(clip, scale, upscaler), seconds=LONG_SECONDS)
    return GenerationRequest.from_stored(await context.engine.sandbox.run_async(call, requester_from_caller(caller)))


def upscale_menu(job: Job, offers: Sequence[UpscaleOffer], texts: Texts) -> str:
    """Render the menu of upscale buttons, "" without offers."""
    if not offers:
        return ""
    buttons = "".join(text_button("again:upscale", offer.label(texts), job=job.id, value=offer.value) for offer in offers)
    return f'<details class="menu upscale"><summary>{escape(texts.upscale_menu)}</summary><div>{buttons}</div></details>'

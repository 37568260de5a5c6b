"""What a finished video can be made larger by, and how long that takes; the menu of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from backend.engine.engine import Engine
from backend.engine.estimate import Estimate
from backend.engine.job import Job
from backend.errors import RequestError
from backend.schemas.events import VideoResult
from backend.schemas.finished import upscale_result_request
from backend.schemas.request import GenerationRequest
from backend.schemas.upscaling import SCALES
from wan_ui.components.buttons import text_button
from wan_ui.components.progress import spoken_seconds
from wan_ui.i18n.english import Texts
from wan_ui.services.media import VIDEO


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A model and a scale, the size in pixels that the video would have, and how long it takes, None if that is not known."""

    upscaler: str
    scale: int
    size: tuple[int, int]
    estimate: Estimate | None = None

    @property
    def value(self) -> str:
        """As a button or a choice on the page says it, for `chosen`."""
        return f"{self.scale}:{self.upscaler}"

    def words(self, texts: Texts) -> str:
        """In one line: scale, model, size, time."""
        width, height = self.size
        said = [f"{self.scale}× {self.upscaler}", f"{width} × {height}"] if width else [f"{self.scale}× {self.upscaler}"]
        if self.estimate is not None:
            said.append(texts.estimate_about.format(seconds=spoken_seconds(self.estimate.seconds)))
        return " · ".join(said)


def chosen(value: str) -> tuple[int, str]:
    """Scale and model of `Offer.value`, which may be anything. Raises: RequestError."""
    scale, _, upscaler = value.partition(":")
    if scale not in map(str, SCALES):
        raise RequestError(f"upscale={scale[:20]!r}", f"must be {' or '.join(map(str, SCALES))}", "choose one that is offered")
    return int(scale), upscaler


def kinds(engine: Engine) -> list[tuple[str, int]]:
    """The models that are here, each with the scales that one may ask it for."""
    return [(name, scale) for name in engine.upscalers() for scale in SCALES]


def any_clip(engine: Engine) -> list[Offer]:
    """The same of a clip of which nothing is known yet."""
    return [Offer(upscaler=name, scale=scale, size=(0, 0)) for name, scale in kinds(engine)]


def offers(engine: Engine, job: Job | None, result: VideoResult | None) -> list[Offer]:
    """What the job's video can be made larger by; nothing if it is not there, or larger already."""
    if job is None or result is None or job.deleted or job.request.upscale or not (job.folder / VIDEO).is_file():
        return []
    found = []
    for name, scale in kinds(engine):
        try:
            wanted = larger_job(job, result, scale, name)
        except RequestError:  # too large
            continue
        found.append(Offer(upscaler=name, scale=scale, size=wanted.final_size, estimate=engine.estimate(wanted)))
    return found


def larger_job(job: Job, result: VideoResult, scale: int, upscaler: str) -> GenerationRequest:
    """The request that makes this job's video larger. Raises: RequestError."""
    return upscale_result_request(result, job.request, str(job.folder / VIDEO), scale, upscaler)


def upscale_menu(job: Job, found: Sequence[Offer], texts: Texts) -> str:
    """The buttons that do so, behind a word that opens; nothing if there is nothing to offer."""
    if not found:
        return ""
    buttons = "".join(text_button("again:upscale", offer.words(texts), job=job.id, value=offer.value) for offer in found)
    return f'<details class="menu upscale"><summary>{escape(texts.upscale_menu)}</summary><div>{buttons}</div></details>'

"""The progress of one job: how events change it, and its texts.

The functions are pure: they use no Gradio, HTML or files.
"""

import re
from dataclasses import dataclass, replace
from typing import Literal, get_args

from backend.schemas import events
from backend.schemas.events import DOWNLOAD, Event, Proposal, VideoResult
from wan_ui.components.field_errors import shorten_paths
from wan_ui.i18n.details import translate_detail
from wan_ui.i18n.english import Texts

ActivePhase = Literal["queued", "starting", "loading", "compiling", "encoding", "denoising", "decoding", "upscaling", "live"]
Phase = Literal["idle", ActivePhase, "finished", "cancelled", "failed"]
ACTIVE_PHASES: tuple[ActivePhase, ...] = get_args(ActivePhase)
# Fractions of the progress bar after encoding and after denoising. Denoising takes by far the most time.
ENCODED, DENOISED = 0.04, 0.88


@dataclass(frozen=True, kw_only=True)
class StageView:
    """The progress of one job at one moment.

    `fraction` (0 to 1) never decreases. `ahead` is the number of queued jobs before this job, without the running job. `preview`
    is a file name in the job's folder. `what` names the model part that is loaded, or the program that is compiled.
    `bytes_per_second` is the speed of the download or of reading.

    `cause` is the reason for a failure or an interruption. `interrupted_at` is the step or stage at which the job was
    interrupted, "" after the job has continued. `is_held` is true while the job waits for Resume. If the video did not fit into
    memory, `proposals` are settings that fit. `shot` is the number of the current shot, from 1, and 0 without a storyboard.
    `shots` is the number of shots.
    """

    phase: Phase = "idle"
    fraction: float = 0.0
    ahead: int = 0
    index: int = 0
    total: int = 0
    seconds_per_step: float | None = None
    seconds_left: float | None = None
    what: str = ""
    bytes_per_second: float = 0.0
    preview: str | None = None
    result: VideoResult | None = None
    cause: str = ""
    fix: str = ""
    proposals: tuple[Proposal, ...] = ()
    interrupted_at: str = ""
    is_held: bool = False
    shot: int = 0
    shots: int = 1

    @property
    def is_active(self) -> bool:
        return self.phase in ACTIVE_PHASES


def advance_view(view: StageView, event: Event) -> StageView:
    match event:
        case events.Queued(position=position):
            return replace(view, phase="queued", ahead=position)
        case events.Loading(bytes_done=done, bytes_total=total, what=what, bytes_per_second=speed):
            return replace(view, phase="loading", what=what, index=done, total=total, bytes_per_second=speed)
        case events.Compiling(what=what, is_loaded=is_loaded):
            phase, left = "starting" if is_loaded else "compiling", event.seconds_left or None
            return replace(view, phase=phase, what=what, index=event.index, total=event.total, seconds_left=left)
        case events.Encoding():
            return _enter_phase(view, "encoding", ENCODED / 2)
        case events.Interrupted(cause=cause, place=place):
            return replace(view, phase="queued", ahead=0, cause=cause, interrupted_at=place, seconds_left=None)
        case events.Step():
            reached = ENCODED + (DENOISED - ENCODED) * event.index / max(event.total, 1)
            return replace(
                _enter_phase(view, "denoising", reached),
                index=event.index,
                total=event.total,
                seconds_per_step=event.seconds,
                seconds_left=event.seconds_left,
                preview=event.preview or view.preview,
            )
        case events.ShotStarted(index=index, total=total):
            return replace(view, shot=index, shots=total, cause="", interrupted_at="")
        case events.Block(index=index):
            return replace(_enter_phase(view, "live", DENOISED), index=index + 1)
        case events.Decoding(frame=frame, total=total):
            reached = DENOISED + (1 - DENOISED) * frame / max(total, 1)
            return replace(_enter_phase(view, "decoding", reached), index=frame, total=total, seconds_left=None)
        case events.Upscaling(frame=frame, total=total, seconds_left=left):
            entered = _enter_phase(view, "upscaling", frame / max(total, 1))
            return replace(entered, index=frame, total=total, seconds_left=left or None)
        case events.Finished(result=result):
            return replace(view, phase="finished", fraction=1.0, result=result)
        case events.Cancelled(result=result):
            return replace(view, phase="cancelled", result=result)
        case events.Failed(cause=cause, fix=fix, proposals=proposals):
            return replace(view, phase="failed", cause=cause, fix=fix, proposals=proposals)
    return view


def _enter_phase(view: StageView, phase: Phase, fraction: float) -> StageView:
    """Return the view in this phase. `fraction` does not decrease, and an earlier interruption is cleared."""
    reached = (max(view.shot - 1, 0) + fraction) / view.shots
    return replace(view, phase=phase, fraction=max(view.fraction, reached), cause="", interrupted_at="")


def format_duration(seconds: float) -> str:
    """Format a duration: 0.31 s, 4.2 s, 48 s, 3 min 20 s, 1 h 5 min."""
    if seconds < 1:
        return f"{seconds:.2f} s"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if round(seconds) < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"


def queue_position_texts(ahead: int, texts: Texts) -> tuple[str, str]:
    """Return two texts: the job's queue position, and an explanation. `ahead` is the number of jobs that wait before this job."""
    if ahead == 0:
        return texts.queued_next, texts.queued_first_one
    return texts.queued_place.format(place=ahead + 1), texts.queued_first.format(count=ahead + 1)


def interruption_place_text(place: str, texts: Texts) -> str:
    """Translate the engine's text for the place at which a job stopped."""
    if step := re.fullmatch(r"step (\d+) of (\d+)", place):
        return texts.denoising_step.format(index=step[1], total=step[2])
    return {"encoding": texts.encoding, "decoding": texts.decoding, "the start": ""}.get(place, place)


def progress_texts(view: StageView, texts: Texts) -> tuple[str, str, str]:
    """Return headline, detail and numbers of the line above the progress bar. A storyboard's detail starts with the shot."""
    shot = texts.shot_of.format(index=view.shot, total=view.shots) if view.shot else ""
    match view.phase:
        case "queued":
            if not view.interrupted_at:
                return texts.queued, "", ""
            why = interruption_place_text(view.interrupted_at, texts), shorten_paths(view.cause)
            return texts.interrupted, " · ".join(filter(None, why)), ""
        case "starting":
            return texts.starting, translate_detail(view.what, texts), ""
        case "loading":
            numbers = f"{view.index / 1e6:,.0f} / {view.total / 1e6:,.0f} MB" if view.total else ""
            if view.total and view.bytes_per_second:
                left = format_duration((view.total - view.index) / view.bytes_per_second)
                numbers += f" · {view.bytes_per_second / 1e6:.1f} MB/s · {texts.time_left.format(seconds=left)}"
            if view.what == DOWNLOAD:
                return texts.downloading, "", numbers
            return texts.loading, translate_detail(view.what, texts), numbers
        case "compiling":
            # such as "2 of 5", and the time until all programs are compiled
            parts = [texts.compiling_share.format(index=view.index, total=view.total)] if view.total else []
            if view.seconds_left is not None:
                parts.append(texts.time_left_about.format(seconds=format_duration(view.seconds_left)))
            return texts.compiling.format(what=translate_detail(view.what, texts)), "", " · ".join(parts)
        case "encoding":
            return texts.encoding, shot, ""
        case "denoising":
            step = texts.denoising_step.format(index=view.index, total=view.total)
            return texts.denoising, " · ".join(filter(None, (shot, step))), _rate_text(view, texts)
        case "live":
            return texts.live_on, "", ""
        case "decoding":
            frame = texts.decoding_frame.format(frame=view.index, total=view.total)
            return texts.decoding, " · ".join(filter(None, (shot, frame))), ""
        case "upscaling":
            frames = texts.decoding_frame.format(frame=view.index, total=view.total)
            return texts.upscaling, frames, _rate_text(replace(view, seconds_per_step=None), texts)
        case "finished":
            assert view.result is not None, "a finished video has one"
            return texts.finished.format(seconds=format_duration(view.result.seconds.get("total", 0.0))), "", ""
        case "cancelled":
            return texts.cancelled, texts.cancelled_partial if view.result or view.preview else "", ""
        case "failed":
            return texts.failed, "", ""
    return "", "", ""


def _rate_text(view: StageView, texts: Texts) -> str:
    parts = []
    if view.seconds_per_step is not None:
        parts.append(texts.rate.format(seconds=format_duration(view.seconds_per_step)))
    if view.seconds_left is not None:
        parts.append(texts.time_left.format(seconds=format_duration(view.seconds_left)))
    return " · ".join(parts)

"""Events of a job: frozen values with a JSON form. The engine stores each event before it is shown."""

from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar, Literal, Self

from backend.schemas.request import GenerationRequest

VIDEO_FILE = "video.mp4"
"""The name of the finished video in the folder of a job, and in the folder of each shot."""


@dataclass(frozen=True, kw_only=True)
class Rate:
    """The arithmetic speed of a stage. `mfu` is the share of the devices' peak (model FLOPs utilisation), None if it is
    unknown."""

    flops_per_second: float
    mfu: float | None


@dataclass(frozen=True, kw_only=True)
class VideoResult:
    """A finished video. `seconds` is the time by stage (load, lora, compile, encode, denoise, decode, upscale, total). `versions`
    are of the libraries. `notes` are sentences for the user about how the video was generated. `flops` are the counted
    floating-point operations by stage. `peak_flops` is the devices' peak per second."""

    path: str
    fps: int
    num_frames: int
    width: int
    height: int
    seconds: dict[str, float]
    request: GenerationRequest
    versions: dict[str, str]
    notes: tuple[str, ...] = ()
    flops: dict[str, float] = field(default_factory=dict)
    peak_flops: float | None = None
    has_sound: bool = False

    @property
    def rates(self) -> dict[str, Rate]:
        """Stages without counted operations or a measured time are left out."""
        counted = {stage: flops / self.seconds[stage] for stage, flops in self.flops.items() if self.seconds.get(stage)}
        peak = self.peak_flops
        return {stage: Rate(flops_per_second=rate, mfu=rate / peak if peak else None) for stage, rate in counted.items() if rate}

    def to_json(self) -> dict[str, object]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return values | {"request": self.request.to_json()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Read a result, which an older version may have stored."""
        request, notes = GenerationRequest.from_stored(data["request"]), tuple(data.get("notes", ()))
        may_sound = request.video is not None and request.extend is None  # for old results, which lack `has_sound`
        values: dict[str, Any] = {"has_sound": may_sound} | data | {"request": request, "notes": notes}
        return cls(**values)


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A size in pixels and a length in frames that fit into the device memory, after a larger request did not fit. The request
    needs `bytes_per_device` there."""

    width: int
    height: int
    num_frames: int
    bytes_per_device: int

    def __str__(self) -> str:
        return f"{self.width}x{self.height} with {self.num_frames} frames"


DOWNLOAD = "the download"
"""The `what` of a `Loading` event that reports a download. Other values name weights that are being read."""


@dataclass(frozen=True)
class Event:
    """`kind` is the event's name in JSON. `is_final` is true if the job ends with this event."""

    kind: ClassVar[str]
    is_final: ClassVar[bool]

    def __init_subclass__(cls, kind: str, is_final: bool = False) -> None:
        cls.kind, cls.is_final = kind, is_final

    def to_json(self) -> dict[str, object]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        if isinstance(values.get("result"), VideoResult):
            values["result"] = values["result"].to_json()
        if "proposals" in values:
            values["proposals"] = [asdict(proposal) for proposal in values["proposals"]]
        return {"kind": self.kind} | values


@dataclass(frozen=True)
class Queued(Event, kind="queued"):
    """The job waits; `position` other jobs run before it."""

    position: int


@dataclass(frozen=True)
class Loading(Event, kind="loading"):
    """The checkpoint is being read or downloaded. Unknown numbers are 0."""

    bytes_done: int
    bytes_total: int
    what: str
    bytes_per_second: float = 0.0


@dataclass(frozen=True)
class Compiling(Event, kind="compiling"):
    """A program for `what` is being compiled or, with `is_loaded`, was loaded from a file. The program is number `index` (from 1)
    of the `total` programs that must be prepared, both 0 if they were not counted. `seconds_left` estimates the time for all
    missing programs from earlier compilations on this machine; 0 if unknown."""

    what: str
    is_loaded: bool = False
    index: int = 0
    total: int = 0
    seconds_left: float = 0.0


@dataclass(frozen=True)
class Encoding(Event, kind="encoding"): ...


@dataclass(frozen=True)
class Step(Event, kind="step"):
    """Denoising step `index` (from 1) of `total` has finished. `seconds_left` estimates the time until the video is finished.
    `preview` is a file name in the job's folder."""

    index: int
    total: int
    seconds: float
    seconds_left: float
    preview: str | None = None


@dataclass(frozen=True)
class Decoding(Event, kind="decoding"):
    """The first `frame` of `total` pixel frames are decoded."""

    frame: int
    total: int


@dataclass(frozen=True)
class Upscaling(Event, kind="upscaling"):
    """The first `frame` of `total` pixel frames of the finished video are upscaled. `seconds_left` is 0 while unknown."""

    frame: int
    total: int
    seconds_left: float = 0.0


@dataclass(frozen=True)
class Block(Event, kind="block"):
    """Block `index` (from 0) of a live video has finished. Pixel frames `first` up to but not including `end` are images in the
    job's folder, named by `backend.schemas.live.frame_name`."""

    index: int
    first: int
    end: int
    seconds: float


@dataclass(frozen=True)
class ShotStarted(Event, kind="shot_begun"):
    """Shot `index` (from 1) of `total` shots has started. The events up to `ShotFinished` belong to this shot."""

    index: int
    total: int


@dataclass(frozen=True)
class ShotFinished(Event, kind="shot_made"):
    """Shot `index` (from 1) of `total` shots has finished. `result` has the shot's video in the job's folder."""

    index: int
    total: int
    result: VideoResult


@dataclass(frozen=True)
class Interrupted(Event, kind="interrupted"):
    """The job was interrupted and will resume where it stopped. `cause` states the reason, `fix` what the user can do, and
    `place` how far the job was. The job may have caused three kinds of `by`: "worker" (the worker's process ended), "signal"
    (another program or a silent host ended the worker) and "server" (the server ended). The job never causes the other kinds:
    "shutdown", "disk" (the disk is full) and "loss" (the worker's machine was lost)."""

    cause: str
    fix: str
    by: Literal["worker", "signal", "server", "shutdown", "disk", "loss"]
    place: str = ""


@dataclass(frozen=True)
class Finished(Event, kind="finished", is_final=True):
    result: VideoResult


@dataclass(frozen=True)
class DraftFinished(Event, kind="draft_finished", is_final=True):
    """`picture` is an animated WebP of all frames in base64, so that the draft needs no file."""

    picture: str


@dataclass(frozen=True)
class Failed(Event, kind="failed", is_final=True):
    """The job failed. `cause` states the reason and `fix` what the user can do, in one sentence each. If memory ran out,
    `proposals` are smaller settings that fit."""

    cause: str
    fix: str
    proposals: tuple[Proposal, ...] = ()


@dataclass(frozen=True)
class Cancelled(Event, kind="cancelled", is_final=True):
    """The job was stopped; `result` is the unfinished video, if there is one."""

    result: VideoResult | None = None


_KINDS = {cls.kind: cls for cls in Event.__subclasses__()}


def from_json(data: dict[str, Any]) -> Event:
    """Read an event that `to_json` wrote. Raises: ValueError for an unknown kind."""
    values = dict(data)
    kind = values.pop("kind", None)
    if kind not in _KINDS:
        raise ValueError(f"event kind {kind!r} must be one of {', '.join(_KINDS)}")
    if isinstance(values.get("result"), dict):
        values["result"] = VideoResult.from_json(values["result"])
    if "proposals" in values:
        values["proposals"] = tuple(Proposal(**proposal) for proposal in values["proposals"])
    return _KINDS[kind](**values)

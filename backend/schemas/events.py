"""What happens to a job, as frozen values with a JSON form. Stored first, then shown."""

from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar, Literal, Self

from backend.schemas.request import GenerationRequest


@dataclass(frozen=True, kw_only=True)
class Rate:
    """How fast a stage's arithmetic was done: `flops_per_second` as measured, and `mfu`, its share of what the devices can do at
    most (model FLOPs utilisation), None if that is not known."""

    flops_per_second: float
    mfu: float | None


@dataclass(frozen=True, kw_only=True)
class VideoResult:
    """A finished video. `seconds` by stage (load, lora, compile, encode, denoise, decode, upscale, total), `versions` by library,
    `notes` what the user should know about how it was made, a sentence each. `flops` are the stages' floating-point operations
    as far as they are counted, `peak_flops` what the devices can do in a second at most."""

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
        """By stage, of those that were counted and took time."""
        counted = {stage: flops / self.seconds[stage] for stage, flops in self.flops.items() if self.seconds.get(stage)}
        return {
            stage: Rate(flops_per_second=rate, mfu=rate / self.peak_flops if self.peak_flops else None)
            for stage, rate in counted.items()
            if rate
        }

    def to_json(self) -> dict[str, Any]:
        """Plain values, for `from_json`."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return values | {"request": self.request.to_json()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """The result that `to_json` wrote."""
        request, notes = GenerationRequest.from_stored(data["request"]), tuple(data.get("notes", ()))
        may_sound = request.video is not None and request.extend is None  # results did not say so once
        values: dict[str, Any] = {"has_sound": may_sound} | data | {"request": request, "notes": notes}
        return cls(**values)


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A size in pixels and a length in frames that fit where a request did not, and the bytes on each device that they need, as
    compiled. In JSON an object of these four numbers."""

    width: int
    height: int
    num_frames: int
    bytes_per_device: int

    def __str__(self) -> str:
        """Such as "832x480 with 81 frames"."""
        return f"{self.width}x{self.height} with {self.num_frames} frames"


DOWNLOAD = "the download"
"""What `Loading` calls a download; any other name is of weights that are being read."""


@dataclass(frozen=True)
class Event:
    """What happens to a job: its kind, whether the job ends with it, and its JSON form."""

    kind: ClassVar[str]
    is_final: ClassVar[bool]

    def __init_subclass__(cls, kind: str, is_final: bool = False) -> None:
        cls.kind, cls.is_final = kind, is_final

    def to_json(self) -> dict[str, Any]:
        """Plain values with the kind, for `from_json`."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        if isinstance(values.get("result"), VideoResult):
            values["result"] = values["result"].to_json()
        if "proposals" in values:
            values["proposals"] = [asdict(proposal) for proposal in values["proposals"]]
        return {"kind": self.kind} | values


@dataclass(frozen=True)
class Queued(Event, kind="queued"):
    """Waiting; `position` other jobs wait before it (0: it runs next)."""

    position: int


@dataclass(frozen=True)
class Loading(Event, kind="loading"):
    """The checkpoint is being read, or downloaded, at `bytes_per_second`; `bytes_total` and the speed are 0 while unknown."""

    bytes_done: int
    bytes_total: int
    what: str
    bytes_per_second: float = 0.0


@dataclass(frozen=True)
class Compiling(Event, kind="compiling"):
    """A program for `what` is being compiled; or, with `is_loaded`, has just been loaded from a file instead.

    It is number `index` (from 1) of the `total` that the video lacks, 0 where they are not counted; `seconds_left` until all are
    made, by what they took on this machine before, 0 while nothing is known.
    """

    what: str
    is_loaded: bool = False
    index: int = 0
    total: int = 0
    seconds_left: float = 0.0


@dataclass(frozen=True)
class Encoding(Event, kind="encoding"):
    """The prompt, and the image if there is one, are being encoded."""


@dataclass(frozen=True)
class Step(Event, kind="step"):
    """Denoising step `index` (from 1) of `total` is done.

    `seconds` that this step took, `seconds_left` until the video should be finished, `preview` a file name in the job's folder.
    """

    index: int
    total: int
    seconds: float
    seconds_left: float
    preview: str | None = None


@dataclass(frozen=True)
class Decoding(Event, kind="decoding"):
    """`frame` of `total` pixel frames are decoded."""

    frame: int
    total: int


@dataclass(frozen=True)
class Upscaling(Event, kind="upscaling"):
    """`frame` of `total` pixel frames of the finished video are made larger; `seconds_left` until all are, 0 while not known."""

    frame: int
    total: int
    seconds_left: float = 0.0


@dataclass(frozen=True)
class Block(Event, kind="block"):
    """Block `index` (from 0) of a live video is made: its pixel frames from number `first` to, not including, `end` are pictures
    in the job's folder, by `backend.schemas.live.frame_name`. `seconds` is what it took."""

    index: int
    first: int
    end: int
    seconds: float


@dataclass(frozen=True)
class ShotStarted(Event, kind="shot_begun"):
    """Shot `index` (from 1) of a storyboard's `total` is being made; the events that follow are about it."""

    index: int
    total: int


@dataclass(frozen=True)
class ShotFinished(Event, kind="shot_made"):
    """Shot `index` (from 1) of a storyboard's `total` is made: `result` is its video, in the job's folder."""

    index: int
    total: int
    result: VideoResult


@dataclass(frozen=True)
class Interrupted(Event, kind="interrupted"):
    """The work was cut off, and goes on where it was: `cause` says why, `fix` what helps, `place` how far it had come.

    `by` says what ended: the "worker" by itself, the worker by a "signal" from outside or because one of its hosts is silent, or
    the "server"; or, for no fault of the job, a "shutdown", a full "disk", or the "loss" of the machine that the worker was on.
    """

    cause: str
    fix: str
    by: Literal["worker", "signal", "server", "shutdown", "disk", "loss"]
    place: str = ""


@dataclass(frozen=True)
class Finished(Event, kind="finished", is_final=True):
    """The video is finished."""

    result: VideoResult


@dataclass(frozen=True)
class Failed(Event, kind="failed", is_final=True):
    """It went wrong: `cause` says why, `fix` what to do, a sentence each. Where memory ran out, `proposals` are what would
    fit, the same request otherwise; events of older versions have none."""

    cause: str
    fix: str
    proposals: tuple[Proposal, ...] = ()


@dataclass(frozen=True)
class Cancelled(Event, kind="cancelled", is_final=True):
    """It was stopped; `result` is the unfinished video, or None."""

    result: VideoResult | None = None


_KINDS = {cls.kind: cls for cls in Event.__subclasses__()}


def from_json(data: dict[str, Any]) -> Event:
    """The event that `to_json` wrote. Raises: ValueError for an unknown kind."""
    values = dict(data)
    kind = values.pop("kind", None)
    if kind not in _KINDS:
        raise ValueError(f"event kind {kind!r} must be one of {', '.join(_KINDS)}")
    if isinstance(values.get("result"), dict):
        values["result"] = VideoResult.from_json(values["result"])
    if "proposals" in values:
        values["proposals"] = tuple(Proposal(**proposal) for proposal in values["proposals"])
    return _KINDS[kind](**values)

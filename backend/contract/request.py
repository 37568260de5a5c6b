"""One request for a video, a frozen value that is checked when it is made. Opens no file, rounds nothing."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from backend.contract.clip import ONLY_WITH_VIDEO, STRENGTH, check_clip, part_of_clip
from backend.contract.control import (
    MAX_KEYFRAMES,
    ONLY_WITH_CONTROL,
    ControlKind,
    Extend,
    check_control,
    is_controlled,
    part_of_control,
)
from backend.contract.cues import Cue, check_cues
from backend.contract.geometry import Geometry
from backend.contract.guided_steps import first_steps
from backend.contract.loras import MAX_LORAS, check_loras
from backend.contract.numbers import (
    check_flow_shift,
    check_guidance,
    check_guidance_interval,
    check_nag,
    check_size,
    check_step_cache,
    check_whole,
)
from backend.contract.shots import Shot, check_shots, read_shots, total_frames
from backend.contract.texts import MAX_CHARACTERS, check_text
from backend.contract.windows import check_windows, window_frames
from backend.errors import RequestError, short
from presets import LoraChoice, Preset, UnknownPreset, load_preset
from presets.loader import Solver

SEED_LIMIT = 2**32
MAX_EXPERTS = 8
MAX_CUES = 100_000
_STORED = {"is_stored": True}
_BOUNDS: dict[str, tuple[int, int]] = {  # far beyond every preset's limits, now and earlier
    "width": (1, 1 << 15),
    "height": (1, 1 << 15),
    "num_frames": (1, 100_000),
    "fps": (1, 1000),
    "steps": (1, 100_000),
    "seed": (0, (1 << 63) - 1),
    "guidance": (-1000, 1000),
    "flow_shift": (-1000, 1000),
    "guidance_interval": (-1000, 1000),
    "nag": (-1000, 1000),
    "step_cache": (-1000, 1000),
    "strength": (0, 1),
    "trim": (0, 1_000_000),
    "control_scale": (-1000, 1000),
    "keyframe_at": (0, 100_000),
    "margins": (0, 1 << 15),
    "overlap": (1, 100_000),
}


@dataclass(frozen=True, kw_only=True)
class InputRole:
    """One thing that a request may start from. `role` is the request's field, which holds an absolute path, or `many`."""

    role: str
    media: Literal["picture", "video", "either"]
    many: bool = False


INPUTS = (
    InputRole(role="image", media="picture"),  # the first frame
    InputRole(role="last_image", media="picture"),
    InputRole(role="video", media="video"),
    InputRole(role="mask", media="either"),
    InputRole(role="control", media="video"),
    InputRole(role="references", media="picture", many=True),
    InputRole(role="keyframes", media="picture", many=True),
)
MANY = frozenset(one.role for one in INPUTS if one.many)
_ALWAYS_STORED = ("image", "last_image")  # others are stored only if they are given
_RARELY_STORED = ("action", "cues", "is_open", "nag", "context_windows", "shots")

Focus = Annotated[float, Field(ge=0, le=1)]


class GenerationRequest(BaseModel):
    """One video to make.

    `width`, `height` in pixels, `num_frames` in pixel frames, `guidance` one value per expert (1 or less: unguided), `image` and
    the other inputs (see `INPUTS`) absolute paths, `image_focus` the point (x, y in 0..1) that a crop keeps in view. The changes
    of all `loras` add up. Guidance runs on the steps within `guidance_interval`, its start and end as shares (0..1) of the steps;
    `nag` is how strongly the negative prompt acts in steps without guidance, by their attention to the text (1 or less: not at
    all); `step_cache` the relative change below which a step reuses the last one's work, 0 for never. `video` is a clip: the part
    of it that `trim` names, from and to in seconds, is brought to this size and `fps`, and made anew by `strength` (above 0, to
    1), the share of the steps that are done. `action` and `prompt` are those of a live video's beginning; `cues` change them, in
    the order of their blocks. Actions that are done together have a `+` between them, where the preset allows that. One that
    `is_open` grows until it is stopped, to `num_frames` at most, and hears cues while it is made; what it has become is the
    request of its result. `context_windows` says whether a video that is longer than its model was trained on is denoised in
    overlapping windows; None leaves it to the preset, which has them above the lengths that it could make without. `shots` make
    it a storyboard, of which `image` is the first shot's; `prompt` names the video then.

    Models with control blocks take more (`contract/control.py`): a `control` clip that the video follows, or what its
    `control_kind` makes of it, `control_scale` strongly; a `mask`, white where `video` is made anew; `margins` of new pixels
    around it (left, top, right, bottom); `extend` for a video that begins with the clip's last `overlap` frames, or ends with its
    first; `references`, pictures of what is to be seen; `keyframes`, pictures that are the frames `keyframe_at`, counted from 0.
    Where nothing of the clip is made anew, the video `keeps_pixels` as they are.
    Raises: RequestError at construction if anything is wrong.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    preset: str
    task: Literal["t2v", "i2v"]
    prompt: str
    negative_prompt: str = ""
    width: int
    height: int
    num_frames: int
    fps: int
    steps: int
    guidance: tuple[float, ...]
    flow_shift: float
    solver: Solver = "unipc"
    seed: int
    image: str | None = None
    last_image: str | None = None
    video: str | None = None
    strength: float | None = None
    trim: tuple[float, float] | None = None
    mask: str | None = None
    control: str | None = None
    control_kind: ControlKind = "as-is"
    control_scale: float = 1.0
    margins: tuple[int, int, int, int] | None = None
    extend: Extend | None = None
    overlap: int | None = None
    keeps_pixels: bool = True
    references: tuple[str, ...] = ()
    keyframes: tuple[str, ...] = ()
    keyframe_at: tuple[int, ...] = ()
    image_focus: tuple[Focus, Focus] = (0.5, 0.5)
    loras: tuple[LoraChoice, ...] = ()
    guidance_interval: tuple[float, float] = (0.0, 1.0)
    nag: float = 0.0
    step_cache: float = 0.0
    action: str | None = None
    cues: tuple[Cue, ...] = ()
    is_open: bool = False
    context_windows: bool | None = None
    shots: tuple[Shot, ...] = ()

    @classmethod
    def from_preset(cls, preset: Preset, **overrides: Any) -> Self:
        """The preset's own settings, with `overrides` replacing them; an override that is None counts as not given.

        The task follows from whether there is an image; a seed that is not given is drawn at random. A clip is taken from its
        beginning and as long as the video, or the video as long as the part of the clip that is given. `guided_steps` is no
        field: so many steps at the beginning have guidance, the others none.
        """
        given = {name: value for name, value in overrides.items() if value is not None}
        guided_steps = given.pop("guided_steps", None)
        task = "i2v" if {"image", "last_image"} & given.keys() else "t2v"
        own = preset.model_dump(include=set(cls.model_fields))
        drawn = {"preset": preset.name, "task": task, "seed": secrets.randbelow(SEED_LIMIT), "prompt": ""}
        values = {**own, **drawn, **given}
        if is_controlled(preset) or values.get("extend"):
            values |= part_of_control(values, given, preset)
        elif values.get("video"):
            values = {"strength": STRENGTH} | values | part_of_clip(values, given)
        if "shots" in given:
            shots = read_shots(given["shots"], preset, values["fps"])
            values |= {"shots": shots, "prompt": given.get("prompt") or _prompt_of(shots[0])}
        if guided_steps is not None:
            _check_said_once(given)
            values |= first_steps(preset, guided_steps, values)
        return cls(**values)

    @classmethod
    def from_stored(cls, data: dict[str, Any]) -> Self:
        """A request from a job or a video made earlier, whatever limits the presets have today.

        Raises: RequestError, also for values that no preset has ever allowed.
        """
        return cls.model_validate(data, context=_STORED)

    def to_json(self) -> dict[str, Any]:
        """Plain values, for `from_stored`."""
        data = self.model_dump(mode="json")
        rare = [*(one.role for one in INPUTS if one.role not in _ALWAYS_STORED), *ONLY_WITH_VIDEO, *_RARELY_STORED]
        absent = [name for name in rare if not data[name] and (name != "context_windows" or data[name] is None)]
        absent += [name for name, value in ONLY_WITH_CONTROL.items() if getattr(self, name) == value]
        return {name: value for name, value in data.items() if name not in absent}

    def inputs(self) -> dict[str, tuple[str, ...]]:
        """The paths of what is given, by role, in the order of `INPUTS`."""
        given = {one.role: getattr(self, one.role) for one in INPUTS}
        return {role: (value,) if isinstance(value, str) else tuple(value) for role, value in given.items() if value}

    def with_inputs(self, paths: Mapping[str, Sequence[str]]) -> Self:
        """A copy with these paths for the inputs of these roles; nothing is checked again."""
        moved = {role: tuple(value) if role in MANY else value[0] for role, value in paths.items()}
        return type(self).from_stored(self.to_json() | moved)

    def changed(self, **changes: Any) -> Self:
        """A copy with these fields replaced, checked like any other."""
        return type(self)(**{**self.model_dump(), **changes})

    def for_sharing(self) -> dict[str, Any]:
        """As `to_json`, with images by file name only: a video must not reveal folders of the machine that made it."""
        data = self.to_json()
        names = {role: tuple(Path(path).name for path in paths) for role, paths in self.inputs().items()}
        return data | {role: list(value) if role in MANY else value[0] for role, value in names.items()}

    @property
    def is_guided(self) -> bool:
        """Whether the branch without the prompt runs too, in any step."""
        return any(value > 1.0 for value in self.guidance) and self.guidance_interval[0] < self.guidance_interval[1]

    @property
    def uses_nag(self) -> bool:
        """Whether the negative prompt acts in the attention of the steps without guidance."""
        return self.nag > 1.0 and bool(self.negative_prompt.strip()) and self.has_unguided_steps

    @property
    def has_unguided_steps(self) -> bool:
        """Whether there may be steps without the other branch."""
        return self.guidance_interval != (0.0, 1.0) or any(value <= 1.0 for value in self.guidance)

    @property
    def reads_negative_prompt(self) -> bool:
        """Whether the negative prompt changes the video."""
        return self.is_guided or self.uses_nag

    @property
    def has_original(self) -> bool:
        """Whether it is made from a clip, with which it can be compared."""
        return bool(self.video or self.control)

    @property
    def is_from_pictures(self) -> bool:
        """Whether it has no inputs but a first and a last picture."""
        return self.inputs().keys() <= set(_ALWAYS_STORED)

    @property
    def reads_clip(self) -> bool:
        """Whether frames of a clip are brought to the video's rate."""
        return any(one.media != "picture" for one in INPUTS if getattr(self, one.role))

    @property
    def total_frames(self) -> int:
        """Pixel frames of the video, all shots together."""
        return total_frames(self, find_preset(self.preset))

    @property
    def window_frames(self) -> int | None:
        """Pixel frames of a context window; None if the video is denoised in one piece."""
        return window_frames(find_preset(self.preset), self.num_frames, self.context_windows)

    @property
    def uses_step_cache(self) -> bool:
        """Whether steps may reuse an earlier one's work; windows move from step to step, so they never do."""
        return self.step_cache > 0 and self.window_frames is None

    @property
    def num_steps(self) -> int:
        """How many of the `steps` are done: all, or with a clip the last ones, as diffusers' video-to-video pipelines count."""
        return self.steps if self.strength is None else min(int(self.steps * self.strength), self.steps)

    def geometry(self) -> Geometry:
        """The video's shape as pixels, latents and tokens."""
        preset = find_preset(self.preset)
        return Geometry(
            width=self.width,
            height=self.height,
            num_frames=self.num_frames,
            spatial_scale=preset.vae_scale_spatial,
            temporal_scale=preset.vae_scale_temporal,
            patch=preset.size_multiple // preset.vae_scale_spatial,
        )

    @model_validator(mode="wrap")
    @classmethod
    def _checked(cls, data: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        try:
            request = handler(data)
        except ValidationError as error:
            raise _explained(error) from None
        if info.context == _STORED:
            _check_bounds(request)
        else:
            check(request, find_preset(request.preset))
        return request


def find_preset(name: str) -> Preset:
    """The preset of this name. Raises: RequestError, which lists the names and suggests the nearest."""
    try:
        return load_preset(name)
    except UnknownPreset as error:
        raise RequestError(error.what, error.allowed, error.fix) from None


def example_request(preset: Preset, task: Literal["t2v", "i2v"] | None = None, **overrides: Any) -> GenerationRequest:
    """A request for the preset's first example, for compiling ahead: its pictures are named, but need not exist."""
    image = "/image.png" if (task or preset.tasks[0]) == "i2v" else None
    last_image = "/last_image.png" if image and preset.needs_last_image else None
    given = {"prompt": preset.examples[0], "seed": 0, "image": image, "last_image": last_image} | overrides
    return GenerationRequest.from_preset(preset, **given)


def _prompt_of(shot: Any) -> Any:
    return shot["prompt"] if isinstance(shot, Mapping) else getattr(shot, "prompt", "")


def _check_said_once(given: Mapping[str, Any]) -> None:
    if "guidance_interval" in given:
        raise RequestError("guided_steps was given", "beside guidance_interval, which says the same", "leave one out")


def check(request: GenerationRequest, preset: Preset) -> None:
    """Raises: RequestError for the first setting that the preset does not allow."""
    _check_task(request, preset)
    check_text("prompt", request.prompt, preset)
    if not request.prompt.strip() and preset.reads_prompt and not request.shots:
        raise RequestError("prompt is empty and", "must say what the video shows", f"for example {preset.examples[0]!r}")
    check_text("negative_prompt", request.negative_prompt, preset)
    check_control(request, preset)
    if not is_controlled(preset):
        check_clip(request, preset)
    check_size(preset, request.width, request.height, request.num_frames)
    check_whole("fps", request.fps, 1, preset.max_fps, preset.fps)
    check_whole("steps", request.steps, 1, preset.max_steps, preset.steps)
    check_guidance(request.guidance, preset)
    check_flow_shift(request.flow_shift, preset)
    if request.solver not in preset.solvers:
        raise RequestError(
            f"solver={request.solver}", f"must be one of {', '.join(preset.solvers)} for {preset.name}", "leave it out"
        )
    check_guidance_interval(request.guidance_interval)
    check_nag(request.nag, preset)
    check_step_cache(request.step_cache)
    check_loras(request.loras, preset)
    check_cues(request, preset)
    check_windows(preset, request.context_windows)
    check_shots(request, preset)
    if not 0 <= request.seed < SEED_LIMIT:
        raise RequestError(f"seed={request.seed}", f"must lie between 0 and {SEED_LIMIT - 1}", "leave it out to have one drawn")


def _check_bounds(request: GenerationRequest) -> None:
    """Raises: RequestError for a value that no preset has ever allowed: links and videos may carry anything."""
    for name, (smallest, largest) in _BOUNDS.items():
        for value in _numbers(getattr(request, name)):
            if not smallest <= value <= largest:  # also refuses what is no number (NaN)
                given = value if abs(value) < 1e18 else "..."
                raise RequestError(f"{name}={given}", f"must be between {smallest} and {largest}", f"correct {name}")
    if not 1 <= len(request.guidance) <= MAX_EXPERTS:
        raise RequestError(f"guidance has {len(request.guidance)} values and", f"must have 1 to {MAX_EXPERTS}", "give one")
    if len(request.loras) > MAX_LORAS:
        raise RequestError(f"{len(request.loras)} LoRAs were given, and", f"at most {MAX_LORAS} can be", "leave some out")
    for name in MANY:
        if len(getattr(request, name)) > MAX_KEYFRAMES:
            raise RequestError(f"too many {name} were given, and", f"at most {MAX_KEYFRAMES} can be", "leave some out")
    _check_shot_bounds(request.shots)
    if len(request.cues) > MAX_CUES:
        raise RequestError(f"{len(request.cues)} cues were given, and", f"at most {MAX_CUES} can be", "leave some out")
    texts = [(name, getattr(request, name)) for name in ("preset", "prompt", "negative_prompt")]
    said = [("cues", cue.prompt or "") for cue in request.cues] + [("shots", shot.prompt) for shot in request.shots]
    for name, text in (*texts, *said):
        if len(text) > MAX_CHARACTERS or any("\ud800" <= character <= "\udfff" for character in text):
            rule = f"must be plain text of at most {MAX_CHARACTERS} characters"
            raise RequestError(f"{name} has {len(text)} characters and", rule, f"correct {name}")


def _check_shot_bounds(shots: Sequence[Shot]) -> None:
    if len(shots) > MAX_CUES:
        raise RequestError(f"{len(shots)} shots were given, and", f"at most {MAX_CUES} can be", "leave some out")
    for shot in shots:
        for name in ("num_frames", "seed"):
            value, (smallest, largest) = getattr(shot, name), _BOUNDS[name]
            if value is not None and not smallest <= value <= largest:
                raise RequestError(f"{name} of a shot", f"must be between {smallest} and {largest}", f"correct {name}")


def _numbers(value: float | tuple[float, ...] | None) -> tuple[float, ...]:
    if value is None:
        return ()
    return value if isinstance(value, tuple) else (value,)


def _check_task(request: GenerationRequest, preset: Preset) -> None:
    if request.task not in preset.tasks:
        others = "text to video only" if preset.tasks == ("t2v",) else "image to video only"
        fix = "leave the image out" if request.task == "i2v" else "give an image"
        raise RequestError(
            f"task={request.task}", f"is not what {preset.name} does: {others}", f"{fix}, or choose another preset"
        )
    if request.task == "i2v" and request.image is None:
        raise RequestError("image is missing:", "image to video starts from one", "give the first frame as image")
    if request.task == "t2v" and (request.image or request.last_image):
        raise RequestError("image was given", "but text to video takes none", "leave it out, or ask for task i2v")
    if request.last_image is not None and not preset.takes_last_image:
        raise RequestError("last_image was given", f"but {preset.name} takes a first image only", "leave it out")
    if request.last_image is None and preset.needs_last_image:
        raise RequestError("last_image is missing:", f"{preset.name} goes from a first image to a last one", "give both")
    _check_inputs(request, preset)


def _check_inputs(request: GenerationRequest, preset: Preset) -> None:
    given = request.inputs()
    for role in given.keys() - preset.inputs.keys():
        raise RequestError(f"{role} was given", f"but {preset.name} takes none", "leave it out")
    for role, need in preset.takes.items():
        if need == "must" and role not in given:
            raise RequestError(f"{role} is missing:", f"{preset.name} needs it", f"give {role}")
    for role, paths in given.items():
        for path in paths:
            if not Path(path).is_absolute():
                raise RequestError(f"{role}={path!r}", "must be an absolute path", "give the whole path")


def _explained(error: ValidationError) -> RequestError:
    """The first of pydantic's complaints (a wrong type, an unknown or a missing field) in our own form."""
    first = error.errors(include_url=False)[0]
    name = ".".join(str(part) for part in first["loc"]) or "the request"
    if first["type"] == "missing":
        return RequestError(f"{name} is missing:", "it has no default", f"give {name}")
    message = first["msg"].removeprefix("Value error, ")
    rule = message[0].lower() + message[1:]
    return RequestError(f"{name}={short(first['input'])} is refused:", rule, f"correct {name}")

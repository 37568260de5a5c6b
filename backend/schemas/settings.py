"""The settings of a request: one row of the table in `VideoSettings` per setting. This module checks types only.

Each row also defines how the setting is checked, stored, offered on the command line and in the form, and sent by programs. A new
setting needs one row here and one label per language.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from backend.errors import RequestError
from backend.schemas.geometry import Geometry
from presets import LoraChoice, Preset, UnknownPreset, load_preset
from presets.loader import Solver, Task

ControlKind = Literal["as-is", "edges", "grey"]
Extend = Literal["after", "before"]
Focus = Annotated[float, Field(ge=0, le=1)]
Made = Literal["video", "sound"]
Subject = Literal["core", "picture", "clip", "control", "sound", "drive", "live", "story", "finished"]
Media = Literal["picture", "video", "either", "sound"]


MOST_PROMPT = 8192
"""Maximum number of characters of a prompt in an imported request: the longest limit of all presets."""


class Cue(BaseModel):
    """A change of `prompt` or `action` that takes effect when block `block` starts. Blocks count from 0. A value of None leaves
    the prompt or action unchanged."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    block: int
    prompt: str | None = None
    action: str | None = None


class Shot(BaseModel):
    """One shot of a storyboard. Without `num_frames` the shot has the request's length. Without `seed` it has the request's seed
    plus its index.

    A shot continues from the previous shot's last frames, with two exceptions: if `cut` is set, it starts from its prompt; with
    `image`, it starts from that image. `image`, `video` and `drive` are indexes into the request's `shot_images`, `shot_videos`
    and `shot_drives`, from 0.

    `video` is the finished video of a shot; `num_frames` is then the length of that video. `drive` is a driving clip, whose first
    frames the shot uses; with `cut`, the shot starts from the request's `image`. `trim` is the visible part, from and to in
    seconds; None shows the whole shot. `fade` is the length in seconds of a cross-fade from the previous shot; 0 is a hard cut.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    prompt: str
    num_frames: int | None = None
    seed: int | None = None
    cut: bool = False
    image: int | None = None
    video: int | None = None
    drive: int | None = None
    trim: tuple[float, float] | None = None
    fade: float = 0.0

    @model_serializer(mode="wrap")
    def _known_to_older_studios(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Omit fields that older versions do not know, unless they are set."""
        rare = {"cut": False, "image": None, "video": None, "drive": None, "trim": None, "fade": 0.0}
        return {name: value for name, value in handler(self).items() if name not in rare or value != rare[name]}


class Character(BaseModel):
    """A named reference subject of a storyboard. `image` is an index into the request's `figure_images`, from 0, or None if the
    image is missing, for example after a link was opened."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    image: int | None = None


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A row of the table of settings. A request without this setting gets the value of the preset's field of the same name, or
    `default` if the preset has no such field.

    `part` is the subject of the setting. `media` marks an input, and names the kind of its files. The value of an input is one or
    more absolute paths. `limits` are the smallest and largest number in a new request, unless the preset has its own limits.
    `far` are the much wider limits for numbers in stored or imported requests. `usual` is the suggestion in an error. `most` is
    the largest number of list entries or characters in an imported request. If `is_stored`, a request stores the value even if it
    is the default.

    The commands `generate` and `encode` have an option for each setting with `help`. If `stage` is "denoise", the command
    `denoise` has the option too. The option has the setting's name unless `flag` is set. Programs can set settings that are
    `for_programs`. The form shows settings that have a `label`, the name of the label in `wan_ui.i18n`. If `needs` names a field
    of presets, the form shows the setting only for presets whose field is true. `excludes` names other fields of the request: a
    request that sets such a field cannot use this setting, and no view shows it. `offered` is (smallest, largest, step) of the
    form's slider, if its range is narrower than `limits`. User presets leave out `personal` settings.
    """

    part: Subject = "core"
    media: Media | None = None
    far: tuple[float, float] = (-1000, 1000)
    limits: tuple[float, float] | None = None
    most: int | None = None
    usual: str = ""
    is_stored: bool = False
    stage: Literal["encode", "denoise"] = "denoise"
    flag: str = ""
    metavar: str = ""
    help: str = ""
    for_programs: bool = True
    label: str = ""
    offered: tuple[float, float, float] | None = None
    personal: bool = False
    needs: str = ""
    excludes: tuple[str, ...] = ()
    name: str = ""
    type: Any = None
    default: Any = None

    @property
    def is_list(self) -> bool:
        """Return whether the setting's values are tuples."""
        return get_origin(self.type) is tuple

    @property
    def choices(self) -> tuple[str, ...]:
        """The allowed values, if the setting's type is a Literal. Empty for other types."""
        return get_args(self.type) if get_origin(self.type) is Literal else ()

    @property
    def slider_range(self) -> tuple[float, float, float] | None:
        """The smallest value, largest value and step of the form's slider. None without `limits`."""
        return self.offered or (self.limits and (*self.limits, 1 if self.type is int else 0.01))

    def value_in(self, source: object) -> Any:
        """Return the setting's value in a request or preset."""
        return getattr(source, self.name, self.default)


def _setting(default: Any = ..., **facts: Any) -> Any:
    """Define a field of `VideoSettings`. A field without a default is required."""
    return Field(default, json_schema_extra={"setting": facts})


class VideoSettings(BaseModel):
    """All settings of a video. The fields' `help` texts describe them. This docstring adds facts that the help texts lack.

    Units: `width` and `height` are pixels, `num_frames` counts pixel frames, `trim` and other times are seconds. `guidance` has
    one value per expert; 1 or less turns guidance off. `guidance_interval` is the start and end of guidance as shares of the
    steps, 0 to 1. `image_focus` is the point (x, y), 0 to 1, that a crop keeps in view. `strength` is the share of the steps that
    run for a clip. Inputs (see `INPUTS`) are absolute paths. All `loras` are added together.

    Live videos: `prompt` and `action` apply from the first block; `cues` change them in block order. Simultaneous actions are
    joined by `+`, if the preset allows this. An `is_open` video grows until it is stopped, to at most `num_frames`, and accepts
    cues meanwhile. The request of its result has the final length and cues.

    Long videos: `context_windows` decides whether a video that is longer than the training length is denoised in overlapping
    windows. None follows the preset, which uses windows above the length that works without them.

    Storyboards: with `shots`, `image` belongs to the first shot and `prompt` names the video. A shot whose prompt names one of
    the `figures` gets that character's image as a reference (`backend/schemas/characters.py`). `track` is an audio file under the
    whole video: it starts at `track_start` seconds, at volume `track_volume` (1 is unchanged), with fades of `track_fade`
    seconds.

    MagCache: `mag_cache` is the largest accepted error, 0 is off. `mag_ratios` are the ratios measured on this machine, prompt
    branch and other branch alternating. If they are empty, published ratios are used.

    Control inputs (`backend/schemas/control.py`) are for models that accept them. The video follows the `control` clip after its
    conversion by `control_kind`, with weight `control_scale`. White areas of `mask` are regenerated in `video`. `margins` (left,
    top, right, bottom) are new pixels around the clip. With `extend`, the video starts with the clip's last `overlap` frames, or
    ends with the clip's first `overlap` frames. `references` are images of subjects. `keyframes` are images for the frames
    `keyframe_at`, counted from 0. LTX models append the control clip's tokens, at a size divided by `control_downscale`. With
    `keeps_pixels`, areas that are not regenerated get the clip's own pixels.

    Audio: with `keeps_sound`, the video has audio: from the model if the model generates audio, otherwise from the clip. Without
    `keeps_sound`, the video is silent. With `sound`, the video follows that audio from `sound_start` seconds on, and the audio
    is copied into the file. If `make` is "sound", only audio for the frames of `video` is generated.

    Animate models: the person in `image` moves as the person in the clip `drive`; `trim` is the used part of `drive`.
    `drive_prompt` describes the clip; if empty, the preset's text is used. If `drive` is a clip of poses, `face` is the clip of
    the face. With `video` and `mask`, the person is placed in the white area.

    Upscaling: the finished video is enlarged `upscale` times by the model `upscaler`; 0 is off. With `finished_video`, only that
    file is enlarged: a file that these settings generated, or any clip of this size, length and frame rate.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    # fmt: off
    preset: str = _setting(stage="encode", metavar="NAME", help="one of `app.py presets list`", for_programs=False)
    task: Task = _setting(for_programs=False)
    prompt: str = _setting(most=MOST_PROMPT, stage="encode", help="what the video shows", for_programs=False, personal=True)
    negative_prompt: str = _setting(
        "", most=MOST_PROMPT, is_stored=True, stage="encode", label="negative_prompt", help="what the video should not show")
    width: int = _setting(far=(1, 1 << 15), stage="encode", help="pixels (the preset's own)")
    height: int = _setting(far=(1, 1 << 15), stage="encode", help="pixels (the preset's own)")
    num_frames: int = _setting(
        far=(1, 100_000), stage="encode", flag="--frames", help="number of frames, 4n+1 (the preset's own)")
    fps: int = _setting(far=(1, 1000), stage="encode", help="frames per second (the preset's own)", label="fps")
    steps: int = _setting(far=(1, 100_000), help="denoising steps (the preset's own)", label="steps", offered=(1, 1, 1))
    guidance: tuple[float, ...] = _setting(most=2, metavar="X[,Y]", help="one number per expert; 1 or less is off")
    sound_guidance: float | None = _setting(
        None, limits=(0, 30), usual="leave it out to use the value of guidance", label="sound_guidance", needs="makes_sound",
        help="guidance of the audio, for models with audio (the preset's own)")
    perturbed_guidance: tuple[float, float] = _setting(
        (0.0, 0.0), limits=(0, 30), metavar="X,Y", usual="1 is usual, 0 is off", label="perturbed_guidance", needs="makes_sound",
        help="guidance away from a step without one layer's self-attention, for image and audio (the preset's own)")
    modality_guidance: tuple[float, float] = _setting(
        (1.0, 1.0), limits=(0, 30), metavar="X,Y", usual="3 is usual, 1 is off", label="modality_guidance", needs="makes_sound",
        help="guidance away from image and audio that do not see each other (the preset's own)")
    guidance_rescale: tuple[float, float] = _setting(
        (0.0, 0.0), limits=(0, 1), metavar="X,Y", usual="0.7 is usual, 0 is off", label="guidance_rescale", needs="makes_sound",
        help="share of the contrast added by guidance that is removed again, for image and audio (the preset's own)")
    flow_shift: float = _setting(
        help="larger values spend more steps at high noise (the preset's own)", label="flow_shift", offered=(1, 12, 0.1))
    solver: Solver = _setting("unipc", is_stored=True, help="the sampler (the preset's own)", label="solver")
    seed: int = _setting(far=(0, (1 << 63) - 1), help="same seed, same video (drawn at random)", personal=True)
    image: str | None = _setting(
        None, part="picture", media="picture", is_stored=True, stage="encode", for_programs=False,
        help="the first frame; cropped to the video's aspect")
    last_image: str | None = _setting(
        None, part="picture", media="picture", is_stored=True, stage="encode", for_programs=False,
        help="the last frame, for presets that take one")
    video: str | None = _setting(
        None, part="clip", media="video", stage="encode", for_programs=False,
        help="a clip (mp4, webm, mov, gif) to restyle or edit")
    strength: float | None = _setting(
        None, part="clip", far=(0, 1),
        help="how much of the clip changes, above 0 and up to 1: the share of the steps that run (0.8)")
    trim: tuple[float, float] | None = _setting(
        None, part="clip", far=(0, 1_000_000), stage="encode", metavar="START[,END]",
        help="the part of the clip, in seconds (from the clip's start, as long as the video)")
    mask: str | None = _setting(
        None, part="control", media="either", stage="encode", for_programs=False,
        help="an image or a clip; white areas of --video are regenerated")
    control: str | None = _setting(
        None, part="control", media="video", stage="encode", for_programs=False,
        help="a control clip that the video follows: depth, pose, edges, scribble, grey")
    control_kind: ControlKind = _setting(
        "as-is", part="control", stage="encode",
        help="conversion of the control clip: none, its edges, or grey frames (as-is)")
    control_scale: float = _setting(
        1.0, part="control", limits=(0, 2), usual="1 is usual", stage="encode",
        help="how strongly the video follows the control clip, 0 to 2 (1)")
    control_downscale: int = _setting(
        1, part="control", far=(1, 1000), limits=(1, 8), usual="1 is usual, 2 for a LoRA that was trained with 2", stage="encode",
        help="how many times smaller than the video the model sees --control, as in the LoRA's training; for models that "
        "append it to the video's tokens (1)")
    margins: tuple[int, int, int, int] | None = _setting(
        None, part="control", far=(0, 1 << 15), stage="encode", metavar="L,T,R,B",
        help="new pixels around --video, within the size")
    extend: Extend | None = _setting(
        None, part="control", stage="encode",
        help="generate frames after the end of --video (also the 5B, LTX-2 and the demo), or before its start")
    overlap: int | None = _setting(
        None, part="control", far=(1, 100_000), stage="encode",
        help="with --extend, the number of the clip's frames that the video repeats (17)")
    keeps_pixels: bool = _setting(
        True, part="control", stage="encode", flag="--no-keep-pixels",
        help="do not restore the clip's own pixels outside the mask")
    references: tuple[str, ...] = _setting(
        (), part="control", media="picture", stage="encode", flag="--reference", for_programs=False,
        help="reference images of people or objects, complete and on white")
    keyframes: tuple[str, ...] = _setting(
        (), part="control", media="picture", stage="encode", flag="--keyframe", metavar="N:FILE", for_programs=False,
        help="images for these frames of the video, counted from 0")
    keyframe_at: tuple[int, ...] = _setting((), part="control", far=(0, 100_000), for_programs=False)
    image_focus: tuple[Focus, Focus] = _setting((0.5, 0.5), is_stored=True, for_programs=False, personal=True)
    image_crf: int = _setting(
        0, limits=(0, 51), usual="33 is usual for LTX-2, 0 is off", stage="encode", metavar="N", label="image_crf",
        needs="image_crf",
        help="H.264 compression of input images before the model sees them, for models trained that way; 0 is off (the "
        "preset's own)")
    loras: tuple[LoraChoice, ...] = _setting(
        (), is_stored=True, stage="encode", flag="--lora", metavar="FILE[:SCALE[:EXPERT]]", for_programs=False,
        help="a LoRA in addition to the preset's own: a path, a name in the data folder's loras folder, or "
        "owner/repository:file.safetensors. EXPERT is high or low, for models with two experts. Repeat the option for more")
    guidance_interval: tuple[float, float] = _setting(
        (0.0, 1.0), is_stored=True, metavar="X,Y", for_programs=False,
        help="the share of the steps that guidance runs on, such as 0,0.6 (the preset's own)")
    cfg_zero: bool = _setting(
        False, label="cfg_zero", needs="takes_cfg_zero",
        help="CFG-Zero*: scales the branch without the prompt before guidance, and skips the first 4 % of the steps, at "
        "least one (off)")
    nag: float = _setting(
        0.0, limits=(0, 30), label="nag", offered=(0, 20, 0.5),
        usual="0 is off, 11 is usual",  # published values: 11 in kijai's nodes for ComfyUI, 5 to 11 in the method's demos
        help="strength of the negative prompt in steps without guidance, for presets with few steps; 0 is off, 11 is usual")
    step_cache: float = _setting(
        0.0, limits=(0, 1), usual="0 is off, 0.05 to 0.15 is usual", is_stored=True, for_programs=False, label="step_cache",
        offered=(0, 0.3, 0.01), excludes=("drive",),
        help="relative change below which a step reuses the previous step's work; 0 is off (the preset's own)")
    mag_cache: float = _setting(
        0.0, limits=(0, 1), usual="0 is off, 0.06 to 0.24 is usual", label="mag_cache", offered=(0, 0.3, 0.01),
        help="MagCache: the largest error up to which steps reuse the layers' output of an earlier step; 0 is off. "
        "Published at 0.24, 14B, 720p: 2.8 times faster, 21.8 to 24.4 dB compared with the full video (0)")
    mag_ratios: tuple[float, ...] = _setting((), far=(1e-9, 100), for_programs=False)
    progressive: int = _setting(
        0, far=(0, 100), limits=(0, 4), usual="0 is off, 2 is usual", metavar="LEVEL", label="progressive",
        excludes=("video", "shots"),
        help="run the first steps at half the size; a higher level, 1 to 4, has more of them; 0 is off")
    keeps_sound: bool = _setting(
        True, stage="encode", flag="--no-sound", label="keeps_sound", needs="makes_sound", excludes=("make",),
        help="a video without audio, even if the model or the clip has audio")
    sound: str | None = _setting(
        None, part="sound", media="sound", stage="encode", for_programs=False,
        help="an audio file (wav, mp3, m4a, ogg, flac, or a video with audio) that the video follows, for models with audio")
    sound_start: float = _setting(
        0.0, part="sound", far=(0, 1_000_000), stage="encode",
        help="the moment of that audio at which the video starts, in seconds (0)")
    make: Made = _setting(
        "video", part="sound", stage="encode",
        help="what to generate: a video, or audio for --video, whose frames stay unchanged (video)")
    drive: str | None = _setting(
        None, part="drive", media="video", stage="encode", for_programs=False,
        help="a driving video: the person in --image moves as the person in this clip; for Animate presets")
    face: str | None = _setting(
        None, part="drive", media="video", stage="encode", for_programs=False,
        help="a square clip of that person's face; for presets that take poses as --drive")
    drive_prompt: str = _setting(
        "", most=MOST_PROMPT, part="drive", stage="encode", help="what that clip shows (the preset's own text)")
    action: str | None = _setting(None, most=200, part="live", for_programs=False)
    cues: tuple[Cue, ...] = _setting((), most=2500, part="live")
    is_open: bool = _setting(False, part="live", for_programs=False)
    context_windows: bool | None = _setting(
        None, flag="--windows",
        help="denoise a video that is longer than the training length in overlapping windows, or in one piece (windows "
        "above the length that the preset supports without them)")
    shots: tuple[Shot, ...] = _setting((), most=24, part="story")
    shot_images: tuple[str, ...] = _setting((), part="story", media="picture", for_programs=False)
    shot_videos: tuple[str, ...] = _setting((), part="story", media="video", for_programs=False)
    shot_drives: tuple[str, ...] = _setting((), part="story", media="video", for_programs=False)
    figures: tuple[Character, ...] = _setting((), most=8, part="story", for_programs=False)
    figure_images: tuple[str, ...] = _setting((), part="story", media="picture", for_programs=False)
    track: str | None = _setting(None, part="story", media="sound", for_programs=False)
    track_start: float = _setting(0.0, part="story", far=(0, 1_000_000))
    track_fade: float = _setting(0.0, part="story", limits=(0, 30), usual="1 is usual, 0 is off")
    track_volume: float = _setting(1.0, part="story", limits=(0, 2), usual="1 is unchanged")
    upscale: int = _setting(
        0, far=(0, 100), label="upscale", offered=(0, 4, 2), excludes=("is_open",),
        help="enlarge the finished video 2 or 4 times; 0 is off (0)")
    upscaler: str = _setting(
        "", metavar="NAME", label="upscaler", excludes=("is_open",),
        help="the upscaling model: one of `app.py upscale --list` (animevideov3)")
    finished_video: str | None = _setting(None, part="finished", media="video", for_programs=False)
    # fmt: on

    def to_json(self) -> dict[str, Any]:
        """Return plain values for `GenerationRequest.from_stored`."""
        rare = {one.name: one.default for one in FIELDS if not one.is_stored}
        return {
            name: value
            for name, value in self.model_dump(mode="json").items()
            if name not in rare or getattr(self, name) != rare[name]
        }

    def inputs(self) -> dict[str, tuple[str, ...]]:
        """Return the paths of the inputs that are set, by field name, in the order of `INPUTS`."""
        given = {one.name: one.value_in(self) for one in INPUTS}
        return {role: (value,) if isinstance(value, str) else tuple(value) for role, value in given.items() if value}

    def with_changes(self, **changes: Any) -> Self:
        """Return a validated copy with these fields replaced."""
        return type(self)(**{**self.model_dump(), **changes})

    def for_sharing(self) -> dict[str, Any]:
        """Return `to_json` with file names instead of paths. A shared video must not reveal folder names."""
        names = {role: [Path(path).name for path in paths] for role, paths in self.inputs().items()}
        return self.to_json() | to_input_fields(names, list)

    @property
    def final_size(self) -> tuple[int, int]:
        """Width and height of the written file in pixels, after upscaling."""
        scale = max(1, self.upscale)
        return self.width * scale, self.height * scale

    @property
    def is_guided(self) -> bool:
        """Return whether the branch without the prompt runs in any step."""
        values = (*self.guidance, self.sound_guidance or 0)
        return any(value > 1.0 for value in values) and self.guidance_interval[0] < self.guidance_interval[1]

    @property
    def num_branches(self) -> int:
        """The largest number of transformer evaluations in a step: one with the prompt, and one for each kind of guidance that is
        on.

        The kinds differ in what their evaluation omits: the prompt, one layer's self-attention, or the attention between image
        and audio.
        """
        apart = any(scale > 0 for scale in self.perturbed_guidance) + any(scale > 1 for scale in self.modality_guidance)
        return 1 + self.is_guided + apart

    @property
    def uses_nag(self) -> bool:
        """Return whether NAG applies the negative prompt in steps without guidance."""
        return self.nag > 1.0 and bool(self.negative_prompt.strip()) and self.has_unguided_steps

    @property
    def has_unguided_steps(self) -> bool:
        """Return whether some steps may run without guidance."""
        return self.guidance_interval != (0.0, 1.0) or any(value <= 1.0 for value in self.guidance)

    @property
    def reads_negative_prompt(self) -> bool:
        """Return whether the negative prompt affects the video."""
        return self.is_guided or self.uses_nag

    @property
    def has_original(self) -> bool:
        """Return whether the video was generated from a clip. The studio can compare the video with that clip."""
        return bool(self.video or self.control or self.drive)

    @property
    def is_from_pictures(self) -> bool:
        """Return whether all inputs are images, audio or finished videos, so that no clip or control input is used."""
        return not self.shot_drives and all(
            SETTINGS[role].part in ("picture", "sound", "story", "finished") for role in self.inputs()
        )

    @property
    def reads_clip(self) -> bool:
        """Return whether the request has a clip, mask or audio file. Such inputs depend on the video's frame rate."""
        return any(SETTINGS[role].media != "picture" for role in self.inputs())

    @property
    def window_frames(self) -> int | None:
        """Number of pixel frames of a context window, or None if the video is denoised in one piece."""
        return window_frames(find_preset(self.preset), self.num_frames, self.context_windows)

    @property
    def segment_frames(self) -> int | None:
        """Number of pixel frames of each segment of an Animate video, or None for other videos."""
        return find_preset(self.preset).segment_frames if self.drive else None

    @property
    def uses_step_cache(self) -> bool:
        """Return whether the step cache is used. Context windows move from step to step, so the step cache is never used with
        them."""
        return self.step_cache > 0 and self.window_frames is None

    @property
    def total_frames(self) -> int:
        """Number of pixel frames of the video. `GenerationRequest` overrides this for storyboards and adds up their shots."""
        return self.num_frames

    @property
    def num_steps(self) -> int:
        """Number of steps that run: all `steps`, or with `strength` only the last steps, as in diffusers' video-to-video
        pipelines."""
        return self.steps if self.strength is None else min(int(self.steps * self.strength), self.steps)

    def geometry(self) -> Geometry:
        """Return the video's shape in pixels, latents and tokens."""
        preset = find_preset(self.preset)
        return Geometry(
            width=self.width,
            height=self.height,
            num_frames=self.num_frames,
            spatial_scale=preset.vae_scale_spatial,
            temporal_scale=preset.vae_scale_temporal,
            patch=preset.patch,
        )


def _build_setting(name: str, field: Any) -> Setting:
    kinds = get_args(field.annotation)  # for "str | None", the setting's type is `str`
    kind = kinds[0] if type(None) in kinds else field.annotation
    return Setting(name=name, type=kind, default=field.default, **field.json_schema_extra["setting"])


Settings = TypeVar("Settings", bound=VideoSettings)
FIELDS = tuple(_build_setting(name, field) for name, field in VideoSettings.model_fields.items())
GUIDED_STEPS = Setting(
    name="guided_steps",
    type=int,
    help="guidance on the first N steps only, 1 or 2 for more motion from a preset that has none",
)
"""A shortcut that is not a field: sets `guidance` and `guidance_interval` for the first N steps."""

SETTINGS: Mapping[str, Setting] = {one.name: one for one in (*FIELDS, GUIDED_STEPS)}
INPUTS = tuple(one for one in FIELDS if one.media)
FOR_PROGRAMS = frozenset(one.name for one in SETTINGS.values() if one.for_programs)
FROM_INPUTS = frozenset(one.name for one in FIELDS if one.media or one.part in ("picture", "clip", "control", "sound"))
"""The input files, and the settings that define how input files are used. Links to a request leave them out."""


def to_input_fields(paths: Mapping[str, Sequence[str]], sequence: type = tuple) -> dict[str, Any]:
    """Return values for the request's input fields: a sequence of paths for a list setting, otherwise a single path.

    `paths` maps input fields to files.
    """
    return {role: sequence(value) if SETTINGS[role].is_list else value[0] for role, value in paths.items()}


def part_defaults(part: Subject) -> dict[str, Any]:
    """Return the defaults of all settings with this subject (`Setting.part`), except inputs."""
    return {one.name: one.default for one in FIELDS if one.part == part and not one.media}


def find_preset(name: str) -> Preset:
    """Return the preset of this name. Raises: RequestError with all names and the nearest name."""
    try:
        return load_preset(name)
    except UnknownPreset as error:
        raise RequestError(error.what, error.allowed, error.fix) from None


def window_frames(preset: Preset, num_frames: int, wanted: bool | None) -> int | None:
    """Return the number of pixel frames of a context window, or None if the video is denoised in one piece. `wanted` is the
    request's `context_windows`; None follows the preset's rule."""
    length = preset.trained_frames
    if length is None or num_frames <= length:
        return None
    is_on = num_frames > (preset.windows_above or length) if wanted is None else wanted
    return length if is_on else None

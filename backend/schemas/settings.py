"""The table of a request's settings, and their values: one row for each in `VideoSettings`. Checks no more than types.

What a row says is followed by the request's checks, what is stored of it, the command line, the settings that programs may send,
the page's form, links and visitors' own presets. So a setting is added by one row here, and one word for each language.
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
"""Characters of a prompt that the preset with the most tokens reads."""


class Cue(BaseModel):
    """From where block `block` begins, counted from 0, the video follows this `prompt` and this `action`; None leaves it as it
    is."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    block: int
    prompt: str | None = None
    action: str | None = None


class Shot(BaseModel):
    """One shot. Without `num_frames` it is as long as the request says; without a `seed` it has the request's, counted up from
    shot to shot.

    It goes on from the shot before, but for one that is `cut`, which starts from its words, and one with an `image` of its own,
    a number of the request's `shot_images`, from 0. One that is made already is the `video` of this number in `shot_videos`;
    its `num_frames` are those of that video. One in which a figure moves as a clip does has that clip as `drive`, a number of
    `shot_drives`, and takes its first frames; if it is `cut` it starts from the request's `image`. Of a shot the part `trim` is
    seen, from and to in seconds, else all of it. It fades in over the end of the shot before for so many seconds, `fade`; 0 is
    a cut.
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
        """What came later only where it was set."""
        rare = {"cut": False, "image": None, "video": None, "drive": None, "trim": None, "fade": 0.0}
        return {name: value for name, value in handler(self).items() if name not in rare or value != rare[name]}


class Character(BaseModel):
    """Somebody or something that shots name: its `image` is a number of the request's `figure_images`, from 0; None is one whose
    picture is not there, as after a link."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    image: int | None = None


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A row of the table. Its value is the preset's own where the preset has one of this name, else the `default`.

    `part` says what it is about, `media` that it is an input: absolute paths of pictures, clips, sounds. A number must lie within
    `limits` in a new request, where not the preset has its own, and within `far` in one from a link or a video: far beyond every
    preset's limits, now and earlier; `usual` is what an error proposes. `most` are the entries of a list, or the characters of a
    text, in a request from elsewhere: as many as any preset allows. One that `is_stored` is so even where it is the default.

    The commands `generate` and `encode` take it, or with the stage "denoise" that command too, if there is `help`; its option has
    the setting's name unless `flag` says another. Programs may set it if it is `for_programs`. The form shows it if it has a
    `label`, the name of its words in `wan_ui.i18n`, and only for presets whose field `needs` is true, if one is named; of a
    number less may be `offered`, from, to and in steps of, than its limits allow. What is `personal` is in no preset of a
    visitor's own.
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
    name: str = ""
    type: Any = None
    default: Any = None

    @property
    def many(self) -> bool:
        """Whether it is a list."""
        return get_origin(self.type) is tuple

    @property
    def choices(self) -> tuple[str, ...]:
        """The words of which it is one; none if it is something else."""
        return get_args(self.type) if get_origin(self.type) is Literal else ()

    @property
    def slider(self) -> tuple[float, float, float] | None:
        """What a slider of it offers, from, to and in steps of; None if it has no limits."""
        return self.offered or (self.limits and (*self.limits, 1 if self.type is int else 0.01))

    def value_in(self, source: object) -> Any:
        """Its value in a request or a preset."""
        return getattr(source, self.name, self.default)


def _setting(default: Any = ..., **facts: Any) -> Any:
    """A field of `VideoSettings`; one without a default is always given."""
    return Field(default, json_schema_extra={"setting": facts})


class VideoSettings(BaseModel):
    """All that can be set of a video.

    `width`, `height` in pixels, `num_frames` in pixel frames, `guidance` one value per expert (1 or less: unguided), `image` and
    the other inputs (see `INPUTS`) absolute paths, `image_focus` the point (x, y in 0..1) that a crop keeps in view. The changes
    of all `loras` add up. Guidance runs on the steps within `guidance_interval`, its start and end as shares (0..1) of the steps;
    with `cfg_zero` the branch without the prompt is scaled first, and the first steps are left out (CFG-Zero*);
    `nag` is how strongly the negative prompt acts in steps without guidance, by their attention to the text (1 or less: not at
    all); `step_cache` the relative change below which a step reuses the last one's work, 0 for never; `progressive` the level at
    which the first steps are made at half the size, 0 for none of them. `video` is a clip: the part
    of it that `trim` names, from and to in seconds, is brought to this size and `fps`, and made anew by `strength` (above 0, to
    1), the share of the steps that are done. `action` and `prompt` are those of a live video's beginning; `cues` change them, in
    the order of their blocks. Actions that are done together have a `+` between them, where the preset allows that. One that
    `is_open` grows until it is stopped, to `num_frames` at most, and hears cues while it is made; what it has become is the
    request of its result. `context_windows` says whether a video that is longer than its model was trained on is denoised in
    overlapping windows; None leaves it to the preset, which has them above the lengths that it could make without. `shots` make
    it a storyboard, of which `image` is the first shot's; `prompt` names the video then. A shot whose prompt names one of its
    `figures` is shown that one's picture (`schemas/characters.py`). A sound, `track`, is laid below all of it, from `track_start`
    (seconds) on, `track_volume` loud (1: as it is), and fades in and out within `track_fade` seconds.

    Up to the error `mag_cache`, MagCache lets steps reuse what the layers added before, 0 for never: by the `mag_ratios` that
    were measured for the model here, prompt and other branch in turn, or else by those that are published.

    Models with control blocks take more (`schemas/control.py`): a `control` clip that the video follows, or what its
    `control_kind` makes of it, `control_scale` strongly; a `mask`, white where `video` is made anew; `margins` of new pixels
    around it (left, top, right, bottom); `extend` for a video that begins with the clip's last `overlap` frames, or ends with its
    first; `references`, pictures of what is to be seen; `keyframes`, pictures that are the frames `keyframe_at`, counted from 0.
    Other models may see a control clip beside the video, `control_downscale` times smaller. Where nothing of the clip is made
    anew, the video `keeps_pixels` as they are. It `keeps_sound`: its model's, or else its clip's.

    Models that make a sound take one too: the picture follows the `sound` from its moment `sound_start` (seconds) on, and the
    video has that sound as it is. If they `make` the "sound" alone, the pictures are those of the `video`.

    In a driven video the figure in the `image` moves as the one in the clip `drive` does, of which `trim` names the part; the
    clip is described by `drive_prompt`, if that is not empty, in place of the preset's words. Where `drive` is a clip of poses, a
    clip of the `face` belongs to it; with a `video` and its `mask` the figure takes the place that is white there.

    A finished video is made `upscale` times larger by the model `upscaler`, 0 for no such step: the file's sides are so many
    times `width` and `height`. With a `finished_video` nothing else is done: that file, which these settings have made, or any
    clip of this size, length and rate, is made larger.
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
    fps: int = _setting(far=(1, 1000), stage="encode", help="frames a second (the preset's own)", label="fps")
    steps: int = _setting(far=(1, 100_000), help="denoising steps (the preset's own)", label="steps", offered=(1, 1, 1))
    guidance: tuple[float, ...] = _setting(most=2, metavar="X[,Y]", help="one number per expert; 1 or less is off")
    sound_guidance: float | None = _setting(
        None, limits=(0, 30), usual="leave it out to have that of the picture",
        help="guidance of the sound, of models that make one (the preset's own)")
    perturbed_guidance: tuple[float, float] = _setting(
        (0.0, 0.0), limits=(0, 30), metavar="X,Y", usual="1 is usual, 0 is off",
        help="guidance away from a step without one layer's self-attention, of picture and sound (the preset's own)")
    modality_guidance: tuple[float, float] = _setting(
        (1.0, 1.0), limits=(0, 30), metavar="X,Y", usual="3 is usual, 1 is off",
        help="guidance away from picture and sound that know nothing of each other (the preset's own)")
    guidance_rescale: tuple[float, float] = _setting(
        (0.0, 0.0), limits=(0, 1), metavar="X,Y", usual="0.7 is usual, 0 is off",
        help="how much of the spread that guidance adds is taken back, of picture and sound (the preset's own)")
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
        help="a clip (mp4, webm, mov, gif) that is made anew")
    strength: float | None = _setting(
        None, part="clip", far=(0, 1),
        help="how much of the clip is made anew, above 0, to 1: the share of the steps that are done (0.8)")
    trim: tuple[float, float] | None = _setting(
        None, part="clip", far=(0, 1_000_000), stage="encode", metavar="START[,END]",
        help="the part of the clip, in seconds (from its beginning, as long as the video)")
    mask: str | None = _setting(
        None, part="control", media="either", stage="encode", for_programs=False,
        help="a picture or a clip, white where --video is made anew")
    control: str | None = _setting(
        None, part="control", media="video", stage="encode", for_programs=False,
        help="a clip that the video follows: depth, pose, edges, scribble, grey")
    control_kind: ControlKind = _setting(
        "as-is", part="control", stage="encode",
        help="what is made of that clip first: its edges, or a grey one (as-is)")
    control_scale: float = _setting(
        1.0, part="control", limits=(0, 2), usual="1 is usual", stage="encode",
        help="how strongly the video follows what is shown, 0 to 2 (1)")
    control_downscale: int = _setting(
        1, part="control", far=(1, 1000), limits=(1, 8), usual="1 is usual, 2 for a LoRA that was trained so", stage="encode",
        help="how many times smaller than the video the model sees --control, as its LoRA was trained; of models that see it "
        "beside the video (1)")
    margins: tuple[int, int, int, int] | None = _setting(
        None, part="control", far=(0, 1 << 15), stage="encode", metavar="L,T,R,B",
        help="pixels that are made around --video, within the size")
    extend: Extend | None = _setting(
        None, part="control", stage="encode",
        help="go on where --video ends (the 5B, LTX-2 and the demo too), or lead up to its beginning")
    overlap: int | None = _setting(
        None, part="control", far=(1, 100_000), stage="encode",
        help="the clip's frames that such a video begins or ends with (17)")
    keeps_pixels: bool = _setting(
        True, part="control", stage="encode", flag="--no-keep-pixels",
        help="do not put the clip's own pixels back outside a mask")
    references: tuple[str, ...] = _setting(
        (), part="control", media="picture", stage="encode", flag="--reference", for_programs=False,
        help="pictures of what is to be seen, whole on white")
    keyframes: tuple[str, ...] = _setting(
        (), part="control", media="picture", stage="encode", flag="--keyframe", metavar="N:FILE", for_programs=False,
        help="pictures that are these frames of the video, counted from 0")
    keyframe_at: tuple[int, ...] = _setting((), part="control", far=(0, 100_000), for_programs=False)
    image_focus: tuple[Focus, Focus] = _setting((0.5, 0.5), is_stored=True, for_programs=False, personal=True)
    image_crf: int = _setting(
        0, limits=(0, 51), usual="33 is usual for LTX-2, 0 is off", stage="encode", metavar="N",
        help="how strongly H.264 compresses a given picture before the model sees it, of models trained so; 0 is off (the "
        "preset's own)")
    loras: tuple[LoraChoice, ...] = _setting(
        (), is_stored=True, stage="encode", flag="--lora", metavar="FILE[:SCALE[:EXPERT]]", for_programs=False,
        help="a LoRA on top of the preset's own; repeat the option for more: a path, a name in the data folder's loras folder, "
        "or owner/repository:file.safetensors; EXPERT is high or low, for models that have two")
    guidance_interval: tuple[float, float] = _setting(
        (0.0, 1.0), is_stored=True, metavar="X,Y", for_programs=False,
        help="the share of the steps that guidance runs on, such as 0,0.6 (the preset's own)")
    cfg_zero: bool = _setting(
        False, label="cfg_zero", needs="takes_cfg_zero",
        help="CFG-Zero*: guidance away from a branch without the prompt that is scaled to fit, and none of the first 4 in 100 "
        "steps, at least one (off)")
    nag: float = _setting(
        0.0, limits=(0, 30), label="nag", offered=(0, 20, 0.5),
        usual="0 is off, 11 is usual",  # published: kijai's nodes for ComfyUI; the method's demos: 5 to 11
        help="how strongly the negative prompt acts in steps without guidance, of presets in few steps; 0 is off, 11 is usual")
    step_cache: float = _setting(
        0.0, limits=(0, 1), usual="0 is off, 0.05 to 0.15 is usual", is_stored=True, for_programs=False, label="step_cache",
        offered=(0, 0.3, 0.01),
        help="relative change below which a step reuses the last one's work; 0 is off (the preset's own)")
    mag_cache: float = _setting(
        0.0, limits=(0, 1), usual="0 is off, 0.06 to 0.24 is usual", label="mag_cache", offered=(0, 0.3, 0.01),
        help="MagCache: the error up to which steps reuse what the layers added in an earlier one, by a plan; 0 is off. "
        "Published at 0.24, 14B, 720p: 2.8 times faster, 21.8 to 24.4 dB beside the full video (0)")
    mag_ratios: tuple[float, ...] = _setting((), far=(1e-9, 100), for_programs=False)
    progressive: int = _setting(
        0, far=(0, 100), limits=(0, 4), usual="0 is off, 2 is usual", metavar="LEVEL", label="progressive",
        help="the first steps at half the size, the more of them the higher the level, 1 to 4; 0 is off")
    keeps_sound: bool = _setting(
        True, stage="encode", flag="--no-sound", label="keeps_sound", needs="makes_sound",
        help="a video without sound, even if its model makes one or its clip has one")
    sound: str | None = _setting(
        None, part="sound", media="sound", stage="encode", for_programs=False,
        help="a sound (wav, mp3, m4a, ogg, flac, or that of a video) that the picture follows, of models that make one")
    sound_start: float = _setting(
        0.0, part="sound", far=(0, 1_000_000), stage="encode",
        help="the moment of that sound at which the video begins, in seconds (0)")
    make: Made = _setting(
        "video", part="sound", stage="encode",
        help="what is made: a video, or the sound of --video, whose pictures stay as they are (video)")
    drive: str | None = _setting(
        None, part="drive", media="video", stage="encode", for_programs=False,
        help="a clip whose movements the figure in --image makes; of presets that animate")
    face: str | None = _setting(
        None, part="drive", media="video", stage="encode", for_programs=False,
        help="a clip of that figure's face alone, cut out square; of presets that take poses as --drive")
    drive_prompt: str = _setting(
        "", most=MOST_PROMPT, part="drive", stage="encode", help="what that clip shows (the preset's own words)")
    action: str | None = _setting(None, most=200, part="live", for_programs=False)
    cues: tuple[Cue, ...] = _setting((), most=2500, part="live")
    is_open: bool = _setting(False, part="live", for_programs=False)
    context_windows: bool | None = _setting(
        None, flag="--windows",
        help="denoise a video that is longer than its model was trained on in overlapping windows, or in one piece (windows "
        "above the lengths that the preset could make without)")
    shots: tuple[Shot, ...] = _setting((), most=24, part="story")
    shot_images: tuple[str, ...] = _setting((), part="story", media="picture", for_programs=False)
    shot_videos: tuple[str, ...] = _setting((), part="story", media="video", for_programs=False)
    shot_drives: tuple[str, ...] = _setting((), part="story", media="video", for_programs=False)
    figures: tuple[Character, ...] = _setting((), most=8, part="story", for_programs=False)
    figure_images: tuple[str, ...] = _setting((), part="story", media="picture", for_programs=False)
    track: str | None = _setting(None, part="story", media="sound", for_programs=False)
    track_start: float = _setting(0.0, part="story", far=(0, 1_000_000))
    track_fade: float = _setting(0.0, part="story", limits=(0, 30), usual="1 is usual, 0 is off")
    track_volume: float = _setting(1.0, part="story", limits=(0, 2), usual="1 leaves it as it is")
    upscale: int = _setting(
        0, far=(0, 100), label="upscale", offered=(0, 4, 2), help="make the finished video 2 or 4 times larger; 0 is off (0)")
    upscaler: str = _setting(
        "", metavar="NAME", label="upscaler", help="the model for that: one of `app.py upscale --list` (animevideov3)")
    finished_video: str | None = _setting(None, part="finished", media="video", for_programs=False)
    # fmt: on

    def to_json(self) -> dict[str, Any]:
        """Plain values, for `GenerationRequest.from_stored`."""
        rare = {one.name: one.default for one in FIELDS if not one.is_stored}
        return {
            name: value
            for name, value in self.model_dump(mode="json").items()
            if name not in rare or getattr(self, name) != rare[name]
        }

    def inputs(self) -> dict[str, tuple[str, ...]]:
        """The paths of what is given, by role, in the order of `INPUTS`."""
        given = {one.name: one.value_in(self) for one in INPUTS}
        return {role: (value,) if isinstance(value, str) else tuple(value) for role, value in given.items() if value}

    def changed(self, **changes: Any) -> Self:
        """A copy with these fields replaced, checked like any other."""
        return type(self)(**{**self.model_dump(), **changes})

    def for_sharing(self) -> dict[str, Any]:
        """As `to_json`, with images by file name only: a video must not reveal folders of the machine that made it."""
        names = {role: [Path(path).name for path in paths] for role, paths in self.inputs().items()}
        return self.to_json() | to_input_fields(names, list)

    @property
    def final_size(self) -> tuple[int, int]:
        """Width and height of the file in pixels: those of the video, or of the larger one that is made of it."""
        scale = max(1, self.upscale)
        return self.width * scale, self.height * scale

    @property
    def is_guided(self) -> bool:
        """Whether the branch without the prompt runs too, in any step."""
        values = (*self.guidance, self.sound_guidance or 0)
        return any(value > 1.0 for value in values) and self.guidance_interval[0] < self.guidance_interval[1]

    @property
    def num_branches(self) -> int:
        """How often the network runs in a step with all its guidances: with the prompt, without it, with one layer's attention
        left out, with picture and sound apart."""
        apart = any(scale > 0 for scale in self.perturbed_guidance) + any(scale > 1 for scale in self.modality_guidance)
        return 1 + self.is_guided + apart

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
        return bool(self.video or self.control or self.drive)

    @property
    def is_from_pictures(self) -> bool:
        """Whether it has no inputs but a first and a last picture, a sound, those of shots that no clip drives, and a finished
        video."""
        return not self.shot_drives and all(
            SETTINGS[role].part in ("picture", "sound", "story", "finished") for role in self.inputs()
        )

    @property
    def reads_clip(self) -> bool:
        """Whether frames of a clip, or a sound, are brought to the video's rate."""
        return any(SETTINGS[role].media != "picture" for role in self.inputs())

    @property
    def window_frames(self) -> int | None:
        """Pixel frames of a context window; None if the video is denoised in one piece."""
        return window_frames(find_preset(self.preset), self.num_frames, self.context_windows)

    @property
    def segment_frames(self) -> int | None:
        """Pixel frames of each segment of a driven video; None if it is none."""
        return find_preset(self.preset).segment_frames if self.drive else None

    @property
    def uses_step_cache(self) -> bool:
        """Whether steps may reuse an earlier one's work; windows move from step to step, so they never do."""
        return self.step_cache > 0 and self.window_frames is None

    @property
    def total_frames(self) -> int:
        """Pixel frames of the whole video; a `GenerationRequest` adds those of its shots."""
        return self.num_frames

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
            patch=preset.patch,
        )


def _build_setting(name: str, field: Any) -> Setting:
    kinds = get_args(field.annotation)  # of "str | None" the first
    kind = kinds[0] if type(None) in kinds else field.annotation
    return Setting(name=name, type=kind, default=field.default, **field.json_schema_extra["setting"])


Settings = TypeVar("Settings", bound=VideoSettings)
FIELDS = tuple(_build_setting(name, field) for name, field in VideoSettings.model_fields.items())
GUIDED_STEPS = Setting(
    name="guided_steps",
    type=int,
    help="guidance on the first N steps only, 1 or 2 for more motion from a preset that has none",
)
"""No field: another way to say `guidance` and `guidance_interval`, which become those of so many first steps."""

SETTINGS: Mapping[str, Setting] = {one.name: one for one in (*FIELDS, GUIDED_STEPS)}
INPUTS = tuple(one for one in FIELDS if one.media)
FOR_PROGRAMS = frozenset(one.name for one in SETTINGS.values() if one.for_programs)
FROM_INPUTS = frozenset(one.name for one in FIELDS if one.media or one.part in ("picture", "clip", "control", "sound"))
"""What a video is made from beside its words, and what says how that is used: in no link."""


def to_input_fields(paths: Mapping[str, Sequence[str]], sequence: type = tuple) -> dict[str, Any]:
    """The inputs' paths as the request's fields hold them: one, or several."""
    return {role: sequence(value) if SETTINGS[role].many else value[0] for role, value in paths.items()}


def part_defaults(part: Subject) -> dict[str, Any]:
    """The settings of this part beside its inputs, and what they are if they are not given."""
    return {one.name: one.default for one in FIELDS if one.part == part and not one.media}


def find_preset(name: str) -> Preset:
    """The preset of this name. Raises: RequestError, which lists the names and suggests the nearest."""
    try:
        return load_preset(name)
    except UnknownPreset as error:
        raise RequestError(error.what, error.allowed, error.fix) from None


def window_frames(preset: Preset, num_frames: int, wanted: bool | None) -> int | None:
    """Pixel frames of a window; None if the video is denoised in one piece. `wanted` is the request's `context_windows`: None for
    the preset's rule."""
    length = preset.trained_frames
    if length is None or num_frames <= length:
        return None
    is_on = num_frames > (preset.windows_above or length) if wanted is None else wanted
    return length if is_on else None

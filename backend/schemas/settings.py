"""The settings of a request. `VideoSettings` is the table of the settings, one row per setting. This module checks types only.
Each row also defines how the setting is checked, stored, offered on the command line and in the form, and sent by programs. A new
setting needs one row here and one label per language."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from backend.errors import RequestError
from backend.schemas.geometry import Geometry
from presets import LoraChoice, Preset, UnknownPreset, load_preset
from presets.loader import Quantize, Solver, Task

ControlKind = Literal["as-is", "edges", "grey"]
Extend = Literal["after", "before"]
Focus = Annotated[float, Field(ge=0, le=1)]
Made = Literal["video", "sound"]
Subject = Literal["core", "picture", "clip", "control", "sound", "drive", "live", "story", "finished"]
Media = Literal["picture", "video", "either", "sound"]
_SENTENCE_END = re.compile(r"(?<=[.!?]) (?=[A-Z0-9`{+])")
_JSON_TYPES = {bool: "boolean", int: "integer", float: "number"}
MOST_PROMPT = 8192
"""Maximum number of characters of a prompt in an imported request: the longest limit of all presets."""


class Cue(BaseModel):
    """A change of a live video when block `block`, from 0, starts. None leaves the prompt or action unchanged."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    block: int
    prompt: str | None = None
    action: str | None = None


class Shot(BaseModel):
    """One shot of a storyboard. Without `num_frames` the shot has the request's length. Without `seed` it has the request's seed
    plus its index.

    A shot continues from the previous shot's last frames, with two exceptions: if `cut` is set, it starts from its prompt; with
    `image`, it starts from that image. `image`, `video` and `drive` are indexes into the request's `shot_images`, `shot_videos`
    and `shot_drives`. `video` is the finished video of a shot; `num_frames` is then its length. `drive` is a driving clip, whose
    first frames the shot uses; with `cut`, the shot starts from the request's `image`. `trim` is the visible part, from and to in
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

    @model_serializer(mode="wrap")  # older versions do not know these fields
    def _omit_unset_new_fields(self, handler: SerializerFunctionWrapHandler) -> dict[str, object]:
        rare = {"cut": False, "image": None, "video": None, "drive": None, "trim": None, "fade": 0.0}
        return {name: value for name, value in handler(self).items() if name not in rare or value != rare[name]}


class Character(BaseModel):
    """A named reference subject of a storyboard. `image` is an index into `figure_images`, from 0. It can be missing, for example
    after a link was opened."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    image: int | None = None


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A row of the table of settings. A request without this setting gets the value of the preset's field of the same name, or
    `default` if the preset has no such field. Every request must set settings with the default `...`.

    `media` marks an input, and names the kind of its files. The value of an input is one or more absolute paths. `limits` are for
    numbers in new requests, unless the preset has its own limits; `usual` is the suggestion in an error. `stored_limits` are the
    much wider limits for numbers in stored or imported requests. `max_imported_length` is the largest number of list entries or
    characters in an imported request. If `is_stored`, a request stores the value even if it is the default.

    `description` states in two to four sentences what the setting does, when to change it, and what it costs. Its first sentence
    is the help of the command line. The commands `generate` and `encode` have an option for each setting with a `stage`. If
    `stage` is "denoise", the command `denoise` has the option too. The option has the setting's name unless `flag` is set.
    Programs can set settings that are `for_programs`. The form shows settings that have a `label`, the name of the label in
    `wan_ui.i18n`. `needs` names a field of presets: only presets whose field is true support the setting, by default `takes_` and
    the setting's name. `excludes` names other fields of the request: a request that sets such a field cannot use this setting,
    and no view shows it. `offered` is (smallest, largest, step) of the form's slider, if its range is narrower than `limits`.
    User presets leave out `personal` settings.
    """

    subject: Subject = "core"
    media: Media | None = None
    stored_limits: tuple[float, float] = (-1000, 1000)
    limits: tuple[float, float] | None = None
    max_imported_length: int | None = None
    usual: str = ""
    is_stored: bool = False
    stage: Literal["encode", "denoise"] | None = "denoise"
    flag: str = ""
    metavar: str = ""
    description: str = ""
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
        return get_origin(self.type) is tuple

    @property
    def choices(self) -> tuple[str, ...]:
        """The allowed values of a Literal, empty for other types."""
        return get_args(self.type) if get_origin(self.type) is Literal else ()

    @property
    def slider_range(self) -> tuple[float, float, float] | None:
        """Smallest value, largest value and step."""
        return self.offered or (self.limits and (*self.limits, 1 if self.type is int else 0.01))

    @property
    def default_text(self) -> str:
        """The default as text, or "" if nothing is set by default."""
        if self.name in Preset.model_fields and self.default != ():
            return "the preset's own"
        is_set = self.default not in (None, (), "", ...) and self.type is not bool
        return f"{self.default:g}" if isinstance(self.default, float) else str(self.default) if is_set else ""

    @property
    def help(self) -> str:
        """The first sentence of the description, and the default in parentheses."""
        first = _SENTENCE_END.split(self.description, maxsplit=1)[0].removesuffix(".")
        word = first.partition(" ")[0]
        if word == "A" or word[1:].islower():
            first = first[0].lower() + first[1:]
        inverse = "do not " if self.flag.startswith("--no-") else ""
        return inverse + first + (f" ({self.default_text})" if self.default_text else "")

    def json_schema(self) -> dict[str, Any]:
        kind = "array" if self.is_list else _JSON_TYPES.get(self.type, "string")
        return {"type": kind, "description": self.description} | ({"enum": [*self.choices]} if self.choices else {})

    def is_supported_by(self, preset: Preset) -> bool:
        """Return whether models of this preset use the setting."""
        return bool(getattr(preset, self.needs or f"takes_{self.name}", True))

    def value_in(self, source: object) -> Any:
        return getattr(source, self.name, self.default)


def _setting(default: Any = ..., **facts: Any) -> Any:
    return Field(default, json_schema_extra={"setting": facts})


class VideoSettings(BaseModel):
    """All settings of a video. `perturbed_guidance`, `modality_guidance` and `guidance_rescale` have two values: one for the
    image, then one for the audio."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # fmt: off
    preset: str = _setting(stage="encode", metavar="NAME", for_programs=False,
        description="The model with its default settings: one of `app.py presets list`. Small and fast models show an idea in a "
        "short time, full models give the best quality. The model decides which other settings apply.")
    task: Task = _setting(for_programs=False, stage=None,
        description="What the video starts from: `t2v` a prompt, `i2v` a first frame. The studio derives it from the inputs.")
    prompt: str = _setting(max_imported_length=MOST_PROMPT, stage="encode", for_programs=False, personal=True,
        description="What the video shows. Describe what is visible and how it moves. A model cuts a prompt that exceeds its "
        "limit of tokens, and the result reports the cut.")
    negative_prompt: str = _setting("", max_imported_length=MOST_PROMPT, is_stored=True, stage="encode", label="negative_prompt",
        description="What the video should not show. Change it if unwanted objects or faults appear. It has no effect without "
        "guidance above 1 or NAG.")
    width: int = _setting(stored_limits=(1, 1 << 15), stage="encode",
        description="Width of the video in pixels. A larger size shows more detail, and takes more time and memory.")
    height: int = _setting(stored_limits=(1, 1 << 15), stage="encode",
        description="Height of the video in pixels. A size that the model does not support is refused, with the nearest size "
        "that it supports.")
    num_frames: int = _setting(stored_limits=(1, 100_000), stage="encode", flag="--frames",
        description="Number of frames, 4n+1 for most models. Longer videos take more time and memory. Above their training "
        "length, many models denoise in context windows, which need no more memory than a short video.")
    fps: int = _setting(stored_limits=(1, 1000), stage="encode", label="fps",
        description="Frames per second. With a higher number the same frames play faster, and the video is shorter. Keep the "
        "model's own rate for natural motion. It takes no additional time.")
    steps: int = _setting(stored_limits=(1, 100_000), label="steps", offered=(1, 1, 1),
        description="Number of denoising steps. More steps give more detail, and the time grows with them. Fast presets were "
        "trained for few steps: keep their number.")
    guidance: tuple[float, ...] = _setting(max_imported_length=2, metavar="X[,Y]",
        description="How closely the video follows the prompt, one number per expert; 1 or less is off. Raise it if the video "
        "ignores parts of the prompt. Without guidance a step takes half the time, and the negative prompt needs NAG.")
    sound_guidance: float | None = _setting(None, limits=(0, 30), usual="leave it out to use the value of guidance",
        label="sound_guidance", needs="makes_sound",
        description="Guidance of the audio, for models with audio. Raise it if the audio ignores the prompt; 1 or less is off. "
        "It takes no additional time if the video has guidance too.")
    perturbed_guidance: tuple[float, float] = _setting((0.0, 0.0), limits=(0, 30), metavar="X,Y", usual="1 is usual, 0 is off",
        label="perturbed_guidance", needs="makes_sound",
        description="Guidance away from a result without one layer's self-attention, for video and audio. Only models with audio "
        "support it; 1 is usual, 0 is off. It adds one evaluation of the transformer to each step.")
    modality_guidance: tuple[float, float] = _setting((1.0, 1.0), limits=(0, 30), metavar="X,Y", usual="3 is usual, 1 is off",
        label="modality_guidance", needs="makes_sound",
        description="Guidance away from a result in which video and audio do not see each other, for both. Raise it if video and "
        "audio do not match; 3 is usual, 1 is off. It adds one evaluation of the transformer to each step.")
    guidance_rescale: tuple[float, float] = _setting((0.0, 0.0), limits=(0, 1), metavar="X,Y", usual="0.7 is usual, 0 is off",
        label="guidance_rescale", needs="makes_sound",
        description="Share of the contrast added by guidance that is removed again, for video and audio. Raise it if guidance "
        "makes contrasts too strong; 0.7 is usual, 0 is off. Only models with audio support it. It takes no additional time.")
    flow_shift: float = _setting(label="flow_shift", offered=(1, 12, 0.1),
        description="Larger values spend more steps at high noise. Raise it to give more steps to large shapes and motion, lower "
        "it to give more steps to detail. It takes no additional time.")
    solver: Solver = _setting("unipc", is_stored=True, label="solver",
        description="The sampler: the rule that updates the video after each step. Keep the preset's own, which suits the "
        "model's training; compare others with the same seed. All samplers evaluate the model once per step.")
    seed: int = _setting(stored_limits=(0, (1 << 63) - 1), personal=True,
        description="The number that determines the noise, drawn at random if it is missing. The same seed and settings give the "
        "same video; another seed gives another video for the same prompt.")
    image: str | None = _setting(None, subject="picture", media="picture", is_stored=True, stage="encode", for_programs=False,
        description="The first frame, cropped to the video's aspect. Use it to start from an image, or as the person of an "
        "Animate video. Models that start only from a prompt refuse it.")
    last_image: str | None = _setting(None, subject="picture", media="picture", is_stored=True, stage="encode",
        for_programs=False,
        description="The last frame, for presets that take one. The video moves from the first frame to this image. LTX-2 comes "
        "close to the image, but need not reach it exactly.")
    video: str | None = _setting(None, subject="clip", media="video", stage="encode", for_programs=False,
        description="A clip (mp4, webm, mov, gif) to restyle or edit. The model and the other settings decide what changes: "
        "`strength`, `mask`, `margins`, `extend` or `make`. Only the part `trim` is used.")
    strength: float | None = _setting(None, subject="clip", stored_limits=(0, 1),
        description="How much of the clip changes, above 0 and up to 1; the default is 0.8. 0.3 changes details, 0.8 keeps the "
        "motion and large shapes, 1 keeps nothing. Only this share of the steps runs, so low values take less time.")
    trim: tuple[float, float] | None = _setting(None, subject="clip", stored_limits=(0, 1_000_000), stage="encode",
        metavar="START[,END]",
        description="The part of the clip, in seconds. The start alone selects a part as long as the video; with an end, the "
        "video is as long as the part. By default the part starts at the clip's start.")
    mask: str | None = _setting(None, subject="control", media="either", stage="encode", for_programs=False,
        description="An image or a clip whose white areas are regenerated in the clip to edit. Other areas keep the clip's own "
        "pixels, unless `keeps_pixels` is off. Only models that edit parts of a clip take a mask.")
    control: str | None = _setting(None, subject="control", media="video", stage="encode", for_programs=False,
        description="A control clip that the video follows: depth, pose, edges, scribble, grey. Use it to copy motion and "
        "composition. It needs a model with control blocks, or LTX-2 with a control LoRA, where a step has twice the tokens.")
    control_kind: ControlKind = _setting("as-is", subject="control", stage="encode",
        description="Conversion of the control clip: none, its edges, or grey frames. Use edges or grey frames for an ordinary "
        "clip. A clip of depth, poses or scribbles needs no conversion.")
    control_scale: float = _setting(1.0, subject="control", limits=(0, 2), usual="1 is usual", stage="encode",
        description="How strongly the video follows the control clip. Lower it if the video copies too much of the clip, raise "
        "it if the video ignores the clip; 1 is usual. It does not change the time.")
    control_downscale: int = _setting(1, subject="control", stored_limits=(1, 1000), limits=(1, 8),
        usual="1 is usual, 2 for a LoRA that was trained with 2", stage="encode",
        description="How many times smaller than the video the model sees the control clip. Use 2 for LTX-2 LoRAs that were "
        "trained with clips of half the size (`ref0.5` in the name). With 2, the clip adds a quarter of the video's tokens to "
        "each step.")
    margins: tuple[int, int, int, int] | None = _setting(None, subject="control", stored_limits=(0, 1 << 15), stage="encode",
        metavar="L,T,R,B",
        description="New pixels around the clip, within the size. Use it to outpaint: the four numbers are left, top, right and "
        "bottom. With wider margins the clip fills less of the frame. Only models with control blocks take margins.")
    extend: Extend | None = _setting(None, subject="control", stage="encode",
        description="Generate frames after the end of the clip, or before its start. Models with control blocks extend at both "
        "ends; the 5B, LTX-2 and the demo only after the end. The video starts or ends with `overlap` frames of the clip.")
    overlap: int | None = _setting(None, subject="control", stored_limits=(1, 100_000), stage="encode",
        description="Number of the clip's frames that an extended video repeats. The default is 17, or fewer for short videos. "
        "More frames show the model more of the motion, but leave fewer new frames.")
    keeps_pixels: bool = _setting(True, subject="control", stage="encode", flag="--no-keep-pixels",
        description="Keep the clip's own pixels outside the regenerated area. Turn it off if the edge of the area is visible: "
        "then the whole frame is the model's result. It does not change the time.")
    references: tuple[str, ...] = _setting((), subject="control", media="picture", stage="encode", flag="--reference",
        for_programs=False,
        description="Reference images of people or objects that the video must show. Each image should show its subject complete "
        "and on white. Most models that take references take up to eight, the demo model takes one.")
    keyframes: tuple[str, ...] = _setting((), subject="control", media="picture", stage="encode", flag="--keyframe",
        metavar="N:FILE", for_programs=False,
        description="Images for these frames of the video, counted from 0. Use them to show given images at given times. Models "
        "with control blocks and LTX-2 take keyframes. With LTX-2 most images add the tokens of a latent frame to each step.")
    keyframe_at: tuple[int, ...] = _setting((), subject="control", stored_limits=(0, 100_000), for_programs=False, stage=None,
        description="The frames of `keyframes`, one number per image, counted from 0. `--keyframe N:FILE` sets both.")
    image_focus: tuple[Focus, Focus] = _setting((0.5, 0.5), is_stored=True, for_programs=False, personal=True, stage=None,
        description="The point (x, y), 0 to 1, that a crop of the first frame keeps in view. A click on the preview in Create "
        "sets it. 0.5 and 0.5 are the centre.")
    image_crf: int = _setting(0, limits=(0, 51), usual="33 is usual for LTX-2, 0 is off", stage="encode", metavar="N",
        label="image_crf",
        description="H.264 compression of input images before the model sees them; 0 is off. Keep the preset's own: LTX-2 was "
        "trained on such images (33, for 2.5 18). A higher number removes more detail from the image.")
    loras: tuple[LoraChoice, ...] = _setting((), is_stored=True, stage="encode", flag="--lora", metavar="FILE[:SCALE[:EXPERT]]",
        for_programs=False,
        description="LoRAs in addition to the preset's own: a path, a name in the loras folder, or "
        "owner/repository:file.safetensors. EXPERT is `high` or `low`, for models with two experts. Give up to eight, each with "
        "a scale. Steps take no longer, because LoRAs are merged into the weights.")
    guidance_interval: tuple[float, float] = _setting((0.0, 1.0), is_stored=True, metavar="X,Y", for_programs=False,
        description="The share of the steps that guidance runs on, from start to end, such as 0 to 0.6. Shorten it to save time: "
        "a step without guidance takes half. The first steps determine the motion, so keep guidance there.")
    cfg_zero: bool = _setting(False, label="cfg_zero",
        description="CFG-Zero*: scales the branch without the prompt before guidance, and skips the first 4 % of the steps, at "
        "least one. Its authors report better images, and the skipped steps save time. It excludes caches and context windows.")
    nag: float = _setting(
        0.0, limits=(0, 30), label="nag", offered=(0, 20, 0.5),
        usual="0 is off, 11 is usual",  # published values: 11 in kijai's nodes for ComfyUI, 5 to 11 in the method's demos
        description="Strength of the negative prompt in steps without guidance, for presets with few steps; 0 is off, 11 is "
        "usual. Raise it if unwanted things still appear. A step of the 14B at 480p takes 0.43 s instead of 0.39 (predicted, "
        "v6e-8).")
    step_cache: float = _setting(0.0, limits=(0, 1), usual="0 is off, 0.05 to 0.15 is usual", is_stored=True, for_programs=False,
        label="step_cache", offered=(0, 0.3, 0.01),
        description="Relative change below which a step reuses the previous step's work; 0 is off. 0.05 to 0.15 is usual. Higher "
        "numbers save more time and cost fine detail and fast motion. Its authors report twice the speed, without quality "
        "figures.")
    mag_cache: float = _setting(0.0, limits=(0, 1), usual="0 is off, 0.06 to 0.24 is usual", label="mag_cache",
        offered=(0, 0.3, 0.01),
        description="MagCache: the largest error up to which steps reuse the layers' output of an earlier step; 0 is off. "
        "Published are 0.06 to 0.24, depending on the model. It costs quality: a 14B model at 0.24 is 2.8 times faster, at 21.8 "
        "to 24.4 dB.")
    mag_ratios: tuple[float, ...] = _setting((), stored_limits=(1e-9, 100), for_programs=False, stage=None,
        description="Ratios for MagCache that were measured on this machine, prompt branch and other branch alternating. Without "
        "them, published ratios are used. A request stores them, so that it gives the same video everywhere.")
    progressive: int = _setting(0, stored_limits=(0, 100), limits=(0, 4), usual="0 is off, 2 is usual", metavar="LEVEL",
        label="progressive", excludes=("video", "shots"),
        description="Run the first steps at half the size; 0 is off. A higher level, 1 to 4, has more of these steps and is "
        "faster. Published at 480p: 1.65 to 2.78 times, without quality figures. The images differ.")
    sparse: float = _setting(0.0, limits=(0, 3), usual="0 is off, 1.5 is usual", metavar="LEVEL", label="sparse",
        offered=(0, 2, 0.25),
        description="Sol-Attn: attention to the means of blocks, except important blocks; 0 is off. A higher level, usually 0.75 "
        "to 2, is faster and worse. Predicted: 1.49 times as fast at 1.5 (14B, 720p, v6e-8). Published: 2.02 times at 1 on a "
        "GPU, and 13 to 26 dB for another model.")
    quantize: Quantize = _setting("off", label="quantize",
        description="Number format of large matrices: `int8`, `fp8`, or `off` for 16 bits. 8 bits take half the memory and "
        "nearly the same time: 14B at 720p, 2.71 s a step instead of 2.73 (predicted, v6e-8). `int8` suits TPU v5e, v5p and v6e, "
        "`fp8` v7x. The images differ, more with `fp8`.")
    keeps_sound: bool = _setting(True, stage="encode", flag="--no-sound", label="keeps_sound", excludes=("make",),
        description="Keep the audio of the model or of the clip. Turn it off for a silent video. If the model generates no "
        "audio, the audio is the clip's own.")
    sound: str | None = _setting(None, subject="sound", media="sound", stage="encode", for_programs=False,
        description="An audio file (wav, mp3, m4a, ogg, flac, or a video with audio) that the video follows, for models with "
        "audio. Lips and beats follow it. The video contains this audio unchanged.")
    sound_start: float = _setting(0.0, subject="sound", stored_limits=(0, 1_000_000), stage="encode",
        description="The moment of the given audio at which the video starts, in seconds. Raise it to use a later part. After "
        "the end of the audio, the video is silent.")
    make: Made = _setting("video", subject="sound", stage="encode", needs="makes_sound",
        description="What to generate: a video, or audio for the clip. With audio, the clip's frames stay unchanged and the "
        "prompt describes the audio. It needs a model with audio.")
    drive: str | None = _setting(None, subject="drive", media="video", stage="encode", for_programs=False,
        description="A driving video for Animate presets: the person in the image moves as the person in this clip. The video is "
        "as long as the clip. Memory of the devices stays constant; the host needs about 3 MB per second of clip.")
    face: str | None = _setting(None, subject="drive", media="video", stage="encode", for_programs=False,
        description="A square clip of the person's face, for presets that take poses as driving video. Such presets need it: "
        "their model reads the face from this clip.")
    drive_prompt: str = _setting("", max_imported_length=MOST_PROMPT, subject="drive", stage="encode",
        description="What the driving video shows. Change it if the preset's text does not fit the clip. It does not change the "
        "time.")
    action: str | None = _setting(None, max_imported_length=200, subject="live", for_programs=False, stage=None,
        description="The action that steers a live video from its first block. Each preset has its own actions. `+` joins "
        "simultaneous actions, if the preset allows this.")
    cues: tuple[Cue, ...] = _setting((), max_imported_length=2500, subject="live", stage=None,
        description='Changes of a live video: a list such as [{"block": 8, "prompt": "...", "action": "left"}]. Each has a '
        'prompt, an action or both, and takes effect when its block starts. Blocks count from 0.')
    is_open: bool = _setting(False, subject="live", for_programs=False, stage=None,
        description="Whether a live video grows until it is stopped, to at most `num_frames`, and accepts cues meanwhile. The "
        "view Live sets it. The stored request has the final length and cues.")
    context_windows: bool | None = _setting(None, flag="--windows",
        description="Denoise a video that is longer than the training length in overlapping windows. By default the length "
        "decides. Windows need no more memory than a short video, but a window knows earlier events only from its overlap. "
        "Without windows, memory grows with the length.")
    shots: tuple[Shot, ...] = _setting((), max_imported_length=24, subject="story", stage=None,
        description='The shots of a storyboard: a list such as [{"prompt": "...", "seconds": 2, "seed": 1}]. A shot continues '
        'the previous shot, or starts fresh with "cut": true. "fade" is a cross-fade in seconds. {"job": "..."} uses a finished '
        'video, with "trim": [from, to].')
    shot_images: tuple[str, ...] = _setting((), subject="story", media="picture", for_programs=False, stage=None,
        description="Images from which shots of a storyboard start. A shot names its image by an index, from 0.")
    shot_videos: tuple[str, ...] = _setting((), subject="story", media="video", for_programs=False, stage=None,
        description="Finished videos that shots of a storyboard show unchanged. A shot names its video by an index, from 0.")
    shot_drives: tuple[str, ...] = _setting((), subject="story", media="video", for_programs=False, stage=None,
        description="Driving videos of shots, for Animate presets. A shot names its clip by an index, from 0.")
    figures: tuple[Character, ...] = _setting((), max_imported_length=8, subject="story", for_programs=False, stage=None,
        description="Characters of a storyboard: a name and an image each. A shot whose prompt contains the name shows the "
        "character. Most models take up to eight images in a shot, the demo model one.")
    figure_images: tuple[str, ...] = _setting((), subject="story", media="picture", for_programs=False, stage=None,
        description="Images of the characters of a storyboard. A character names its image by an index, from 0.")
    track: str | None = _setting(None, subject="story", media="sound", for_programs=False, stage=None,
        description="A soundtrack: an audio file below the whole storyboard. `track_start`, `track_fade` and `track_volume` "
        "place it. If all audio together is too loud, all of it gets quieter.")
    track_start: float = _setting(0.0, subject="story", stored_limits=(0, 1_000_000), stage=None,
        description="The second of the storyboard at which the soundtrack starts. Raise it to leave the beginning without music.")
    track_fade: float = _setting(0.0, subject="story", limits=(0, 30), usual="1 is usual, 0 is off", stage=None,
        description="Length of the soundtrack's fades at both ends, in seconds. Raise it if the music starts or stops abruptly; "
        "1 is usual, 0 is off.")
    track_volume: float = _setting(1.0, subject="story", limits=(0, 2), usual="1 is unchanged", stage=None,
        description="Volume of the soundtrack. 1 is unchanged; lower it if the music covers the audio of the shots.")
    upscale: int = _setting(0, stored_limits=(0, 100), label="upscale", offered=(0, 4, 2), excludes=("is_open",),
        description="Enlarge the finished video 2 or 4 times; 0 is off. Use it for a larger video than the model generates. The "
        "upscaler invents the details that it adds, and its time grows with the number of pixels.")
    upscaler: str = _setting("", metavar="NAME", label="upscaler", excludes=("is_open",),
        description="The upscaling model: one of `app.py upscale --list`. The default, animevideov3, is the smallest (0.6 "
        "million weights). x4plus (16.7 million) is for photographs.")
    finished_video: str | None = _setting(None, subject="finished", media="video", for_programs=False, stage=None,
        description="A finished video that is only upscaled: a video of the studio or any clip. The request must have the size, "
        "length and frame rate of the file.")
    # fmt: on

    def to_json(self) -> dict[str, object]:
        """Return plain values for `GenerationRequest.from_stored`."""
        rare = {one.name: one.default for one in FIELDS if not one.is_stored}
        values = self.model_dump(mode="json")
        return {name: value for name, value in values.items() if name not in rare or getattr(self, name) != rare[name]}

    def inputs(self) -> dict[str, tuple[str, ...]]:
        """Return the paths of the inputs that are set, by field name, in the order of `INPUTS`."""
        given = {one.name: one.value_in(self) for one in INPUTS}
        return {role: (value,) if isinstance(value, str) else tuple(value) for role, value in given.items() if value}

    def with_changes(self, **changes: Any) -> Self:
        """Return a validated copy with these fields replaced."""
        return type(self)(**{**self.model_dump(), **changes})

    def for_sharing(self) -> dict[str, object]:
        """Return `to_json` with file names instead of paths. A shared video must not reveal folder names."""
        names = {role: [Path(path).name for path in paths] for role, paths in self.inputs().items()}
        return self.to_json() | to_input_fields(names, list)

    @property
    def final_size(self) -> tuple[int, int]:
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
        on. The kinds omit the prompt, one layer's self-attention, or the attention between image and audio."""
        apart = any(scale > 0 for scale in self.perturbed_guidance) + any(scale > 1 for scale in self.modality_guidance)
        return 1 + self.is_guided + apart

    @property
    def uses_nag(self) -> bool:
        """Return whether NAG applies the negative prompt in steps without guidance."""
        return self.nag > 1.0 and bool(self.negative_prompt.strip()) and self.has_unguided_steps

    @property
    def has_unguided_steps(self) -> bool:
        return self.guidance_interval != (0.0, 1.0) or any(value <= 1.0 for value in self.guidance)

    @property
    def reads_negative_prompt(self) -> bool:
        return self.is_guided or self.uses_nag

    @property
    def has_original(self) -> bool:
        """Return whether the video was generated from a clip, with which the studio can compare it."""
        return bool(self.video or self.control or self.drive)

    @property
    def is_from_pictures(self) -> bool:
        """Return whether all inputs are images, audio or finished videos."""
        subjects = {SETTINGS[role].subject for role in self.inputs()}
        return not self.shot_drives and subjects <= {"picture", "sound", "story", "finished"}

    @property
    def reads_clip(self) -> bool:
        """Return whether an input depends on the frame rate of the video."""
        return any(SETTINGS[role].media != "picture" for role in self.inputs())

    @property
    def resolved_preset(self) -> Preset:
        """The preset, with the request's number format `quantize`. Presets are read once per process. Raises: RequestError."""
        preset = find_preset(self.preset)
        return preset if preset.quantize == self.quantize else preset.model_copy(update={"quantize": self.quantize})

    @property
    def window_frames(self) -> int | None:
        return window_frames(self.resolved_preset, self.num_frames, self.context_windows)

    @property
    def segment_frames(self) -> int | None:
        """Number of pixel frames of each segment of an Animate video."""
        return self.resolved_preset.segment_frames if self.drive else None

    @property
    def uses_step_cache(self) -> bool:
        """Context windows move from step to step, so the step cache is never used with them."""
        return self.step_cache > 0 and self.window_frames is None

    @property
    def total_frames(self) -> int:
        """`GenerationRequest` overrides this for storyboards and adds up their shots."""
        return self.num_frames

    @property
    def num_steps(self) -> int:
        """Number of steps that run: with `strength` only the last steps, as in diffusers' video-to-video pipelines."""
        return self.steps if self.strength is None else min(int(self.steps * self.strength), self.steps)

    def geometry(self) -> Geometry:
        preset = self.resolved_preset
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
    default = ... if field.is_required() else field.default
    return Setting(name=name, type=kind, default=default, **field.json_schema_extra["setting"])


Settings = TypeVar("Settings", bound=VideoSettings)
FIELDS = tuple(_build_setting(name, field) for name, field in VideoSettings.model_fields.items())
GUIDED_STEPS = Setting(
    name="guided_steps",
    type=int,
    description="Guidance on the first N steps only, for presets with few steps. 1 or 2 give more motion to a preset without "
    "guidance. Each of these steps takes twice the time.",
)
"""A shortcut that is not a field: sets `guidance` and `guidance_interval` for the first N steps."""

SETTINGS: Mapping[str, Setting] = {one.name: one for one in (*FIELDS, GUIDED_STEPS)}
INPUTS = tuple(one for one in FIELDS if one.media)
FOR_PROGRAMS = frozenset(one.name for one in SETTINGS.values() if one.for_programs)
FROM_INPUTS = frozenset(one.name for one in FIELDS if one.media or one.subject in ("picture", "clip", "control", "sound"))
"""The input files, and the settings that define how input files are used. Links to a request leave them out."""


def to_input_fields(paths: Mapping[str, Sequence[str]], sequence: type = tuple) -> dict[str, object]:
    """`paths` maps input fields to files. A list setting gets a sequence of paths, another setting a single path."""
    return {role: sequence(value) if SETTINGS[role].is_list else value[0] for role, value in paths.items()}


def subject_defaults(subject: Subject) -> dict[str, object]:
    """Return the defaults of all settings with this subject, except inputs."""
    return {one.name: one.default for one in FIELDS if one.subject == subject and not one.media}


def find_preset(name: str) -> Preset:
    """Return the preset of this name. Raises: RequestError with all names and the nearest name."""
    try:
        return load_preset(name)
    except UnknownPreset as error:
        raise RequestError(error.what, error.allowed, error.fix) from None


def refuse_unsupported(request: VideoSettings, ignored: Sequence[str] = ()) -> None:
    """Refuse settings that are neither the default nor the preset's own, and that the preset does not support. Raises:
    RequestError."""
    preset = find_preset(request.preset)  # not `resolved_preset`, which has the request's `quantize`
    for one in FIELDS:
        is_changed = one.value_in(request) not in (one.default, one.value_in(preset))
        if is_changed and one.name not in ignored and not one.is_supported_by(preset):
            raise RequestError(f"{one.name} was given,", f"and {preset.name} does not support it", "leave it out")


def window_frames(preset: Preset, num_frames: int, wanted: bool | None) -> int | None:
    """Return the number of pixel frames of a context window, or None if the video is denoised in one piece. The preset's rule
    decides unless `wanted` is set."""
    length = preset.trained_frames
    if length is None or num_frames <= length:
        return None
    is_on = num_frames > (preset.windows_above or length) if wanted is None else wanted
    return length if is_on else None

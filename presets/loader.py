"""Reads the preset files beside this module. Knows nothing of models, requests or devices."""

import difflib
import functools
import json
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, field_validator, model_validator

PRESET_FOLDER = Path(__file__).resolve().parent
EXAMPLES_FOLDER = PRESET_FOLDER / "examples"
ARCHITECTURES_FOLDER = PRESET_FOLDER / "architectures"
EMBEDDED_MODELS_FOLDER = PRESET_FOLDER.parent / "models"
EMBEDDED_PREFIX = "embedded:"
OPENING = "wan-tiny"  # the preset that the studio opens with
SERIES = (
    "wan2.2",
    "wan2.1",
    "ltx-2.5",
    "ltx-2.3",
    "ltx-2.0",
    "hunyuanvideo-1.5",
)  # in the order of lists, then others
KINDS = ("t2v", "ti2v", "i2v", "flf2v", "vace", "animate")  # the order within a series, by the word in the name
VARIANTS = ("draft", "fast", "turbo", "distilled")  # of a preset, by the end of the name

LEAST_STEPS = 14  # of a preset for MagCache: distilled ones have at most 12

Task = Literal["t2v", "i2v"]
Solver = Literal["unipc", "euler", "euler-distilled", "lcm", "ltx", "ltx-distilled", "ltx-ancestral"]
ANY_MODEL: tuple[Solver, ...] = ("unipc", "euler", "euler-distilled")  # solvers for which a model needs no training of its own
Expert = Literal["both", "high", "low"]
Need = Literal["may", "must"]
Share = Annotated[float, Field(ge=0, le=1)]

_LOCAL_LORA = re.compile(r"[^./\\:\0][^/\\:\0]*\.safetensors")
_HUB_LORA = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*:[\w][\w. -]*(/[\w][\w. -]*)*\.(safetensors|pt)")


class UnknownPreset(LookupError):
    """No preset has this name. Carries the same three parts as the studio's own errors."""

    def __init__(self, name: str, names: list[str]) -> None:
        self.what = f"preset={name!r}"
        self.allowed = f"must be one of {', '.join(names)}"
        nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
        self.fix = f"did you mean {nearest[0]}?" if nearest else "`python app.py presets list` describes them"
        super().__init__(f"{self.what} {self.allowed}; {self.fix}")


class ImageExample(BaseModel):
    """A picture in `presets/examples` and a prompt that continues from it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    file: str = Field(pattern=r"^[a-z0-9-]+\.(png|jpg|webp)$")
    prompt: str

    @property
    def path(self) -> Path:
        """Where the picture is."""
        return EXAMPLES_FOLDER / self.file


class PresetWords(BaseModel):
    """A preset's title, description and captions in one language: one caption for each of its examples, in their order.

    Only captions are translated: pressing one gives the example's own prompt, which is English.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    title: str
    description: str
    examples: tuple[str, ...]
    image_examples: tuple[str, ...] = ()


class LoraChoice(BaseModel):
    """One LoRA, its strength, and for models of two experts which of them it changes.

    `source` is the name of a file in the data folder's `loras` folder, or "owner/repository:file.safetensors", or .pt, on the
    Hugging Face Hub; never a path. `expert` is "both" for models with one network.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str
    scale: float = Field(default=1.0, ge=-10, le=10, allow_inf_nan=False)
    expert: Expert = "both"

    @field_validator("source")
    @classmethod
    def _is_no_path(cls, source: str) -> str:
        if not (_LOCAL_LORA.fullmatch(source) or _HUB_LORA.fullmatch(source)):
            raise ValueError(
                "must be the name of a .safetensors file in the data folder's loras folder, or owner/repository:file.safetensors"
            )
        return source

    @property
    def is_on_hub(self) -> bool:
        """Whether `source` names a file on the Hugging Face Hub."""
        return ":" in self.source


class Preset(BaseModel):
    """One way of making videos: a model, its defaults, and the limits within which it works.

    Sizes are pixels as (width, height); frame counts are pixel frames; `guidance` has one value per expert, the high-noise one
    first; `boundary` is the share of the noise (0..1) at and above which the first of two experts works; `guidance_interval`
    are the shares of the steps between which guidance runs; `first_guidance` is what guidance is worth trying on the first
    steps of a model that needs none, None if that is not offered; `nag` how strongly the negative prompt acts without guidance,
    0 for not at all, in a model that `takes_nag`; `step_cache` is the step cache's threshold, 0 for off. `latent_spectrum` is A
    and b of its latents' power, A * w ** -b at w cycles a picture, where noise has 1. `draft_of` is the preset that finishes
    what this one shows quickly. `series` are models that belong together, such as all of one version. `licence` is said before
    the model is downloaded. `architecture` names, by the checkpoint's part, which of the configurations in
    `presets/architectures` its networks have, for work without the checkpoint; they are what diffusers and transformers write
    as config.json (source: huggingface/diffusers, scripts/convert_wan_to_diffusers.py). Videos have `frame_step` * n +
    `first_frames` pixel frames, n >= 0. A video of more frames than `trained_frames`, of which the model was trained on the
    most, may be denoised in context windows of so many, and one of more than `windows_above` is; None for a model without
    windows. Those of a `live` preset grow by blocks of `frame_step` frames, the first one shorter: where a block begins the
    prompt may change, and which of the `actions` is done, or which together if it `combines_actions`. A model that does not
    read the prompt (`reads_prompt`) needs none: it only names the video; one that `needs_prompt` not makes videos without, too.
    Driven videos are made in segments of `segment_frames` frames, each of which begins with the last frame of the one before;
    `drive_prompt` is what the driving clip is said to be, `face_side` how many pixels wide and high faces are seen by models
    that see them apart."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    title: str
    description: str
    series: str
    model: str  # Hugging Face id, folder, "embedded:NAME", or "owner/base+owner/repository:file.pt": a transformer's own file
    licence: str = ""  # what must be known before the model is downloaded, a sentence; "" if there is nothing
    tasks: tuple[Task, ...] = Field(min_length=1)
    dtype: Literal["float32", "bfloat16"]
    architecture: dict[str, str] | None = None  # None: the embedded checkpoint has it

    width: PositiveInt
    height: PositiveInt
    num_frames: PositiveInt
    fps: PositiveInt
    steps: PositiveInt
    guidance: tuple[float, ...] = Field(min_length=1)
    sound_guidance: float | None = Field(default=None, ge=0)
    perturbed_guidance: tuple[float, float] = (0.0, 0.0)
    modality_guidance: tuple[float, float] = (1.0, 1.0)
    guidance_rescale: tuple[Share, Share] = (0.0, 0.0)
    flow_shift: float = Field(gt=0)
    solver: Solver
    solvers: tuple[Solver, ...] = ANY_MODEL  # offered for choice
    negative_prompt: str
    boundary: Share | None = None
    guidance_interval: tuple[Share, Share] = (0.0, 1.0)
    first_guidance: float | None = Field(default=None, gt=1)
    nag: float = Field(default=0.0, ge=0)
    takes_nag: bool = False
    step_cache: Share = 0.0
    loras: tuple[LoraChoice, ...] = ()
    draft_of: str | None = None
    takes_last_image: bool = False
    needs_last_image: bool = False
    takes: dict[str, Need] = {}  # further inputs by role, such as "video"
    max_references: int = Field(default=8, ge=1, le=8)  # reference pictures in a video
    continues: bool = False  # its videos can begin with several frames of a clip, and go on from there
    live: bool = False
    actions: tuple[str, ...] = ()
    combines_actions: bool = False  # "forward+left" is one action too
    reads_prompt: bool = True
    needs_prompt: bool = True
    segment_frames: PositiveInt | None = None
    face_side: PositiveInt | None = None
    drive_prompt: str = ""
    makes_sound: bool = False  # its videos have a sound of their own
    latent_spectrum: tuple[PositiveFloat, PositiveFloat] | None = None  # of its latents, for progressive resolution
    refines: bool = False  # its videos are made at half their size, and enlarged and refined by the last steps
    image_crf: int = Field(default=0, ge=0, le=51)  # of H.264, by which first pictures are compressed before it sees them

    size_multiple: PositiveInt
    vae_scale_spatial: PositiveInt
    vae_scale_temporal: PositiveInt
    frame_step: PositiveInt = 4
    first_frames: PositiveInt = 1
    sizes: tuple[tuple[int, int], ...] = Field(min_length=1)  # offered for choice
    frame_counts: tuple[int, ...] = Field(min_length=1)  # offered for choice

    min_width: PositiveInt
    max_width: PositiveInt
    min_height: PositiveInt
    max_height: PositiveInt
    min_frames: PositiveInt
    max_frames: PositiveInt
    trained_frames: PositiveInt | None = None
    windows_above: PositiveInt | None = None
    max_steps: PositiveInt
    max_guidance: float = Field(default=30.0, ge=1)
    max_fps: PositiveInt
    max_prompt_tokens: PositiveInt
    examples: tuple[str, ...] = Field(min_length=1)
    image_examples: tuple[ImageExample, ...] = ()
    zh: PresetWords | None = None  # the same words in Chinese; `words` gives them

    @model_validator(mode="after")
    def _offers_only_what_it_allows(self) -> Self:
        for width, height in (*self.sizes, (self.width, self.height)):
            self._check_size(width, height)
        for count in (*self.frame_counts, self.num_frames):
            fits = count >= self.first_frames and (count - self.first_frames) % self.frame_step == 0
            if not fits or not self.min_frames <= count <= self.max_frames:
                raise ValueError(f"{count} frames lie outside this preset's own limits")
        if self.solver not in self.solvers:
            raise ValueError(f"the default solver {self.solver} is none of those offered")
        if self.actions and not self.live:
            raise ValueError("actions need a live model")
        if self.combines_actions and not self.actions:
            raise ValueError("combines_actions without actions")
        if self.trained_frames and (self.live or (self.trained_frames - self.first_frames) % self.frame_step):
            raise ValueError("trained_frames must be a length of a model that makes its videos in one piece")
        if self.continues and "video" not in self.takes:
            raise ValueError("continues without video")
        if self.windows_above and not self.trained_frames:
            raise ValueError("windows_above without trained_frames")
        if (self.segment_frames is None) != ("drive" not in self.takes):
            raise ValueError("a driven video is made in segments, and no other")
        if (self.face_side is None) != ("face" not in self.takes):
            raise ValueError("a clip of faces needs face_side, and no other does")
        if self.segment_frames and (self.segment_frames - 1) % self.vae_scale_temporal:
            raise ValueError("segment_frames must be whole latent frames")
        if self.nag and not self.takes_nag:
            raise ValueError("nag without takes_nag")
        if self.steps > self.max_steps or self.fps > self.max_fps:
            raise ValueError("the default steps or fps lie outside this preset's own limits")
        return self

    @model_validator(mode="after")
    def _agrees_on_its_experts(self) -> Self:
        if (self.boundary is None) != (self.num_experts == 1):
            raise ValueError("two values of guidance need a boundary, and one value needs none")
        if self.num_experts == 1 and any(lora.expert != "both" for lora in self.loras):
            raise ValueError("a LoRA for one of two experts needs a model that has two")
        if self.needs_last_image and not self.takes_last_image:
            raise ValueError("needs_last_image without takes_last_image")
        return self

    @model_validator(mode="after")
    def _captions_all_its_examples(self) -> Self:
        counts = (len(self.examples), len(self.image_examples))
        if self.zh and (len(self.zh.examples), len(self.zh.image_examples)) != counts:
            raise ValueError(f"[zh] must caption all {counts[0]} examples and all {counts[1]} image_examples")
        return self

    def _check_size(self, width: int, height: int) -> None:
        fits = self.min_width <= width <= self.max_width and self.min_height <= height <= self.max_height
        if not fits or width % self.size_multiple or height % self.size_multiple:
            raise ValueError(f"{width}x{height} lies outside this preset's own limits")

    def network_configs(self) -> dict[str, dict[str, Any]]:
        """The networks' configurations by part, such as "transformer"."""
        if self.architecture is None:
            paths = {path.parent.name: path for path in sorted(Path(self.model_source).glob("*/config.json"))}
        else:
            paths = {part: ARCHITECTURES_FOLDER / f"{part}-{name}.json" for part, name in self.architecture.items()}
        return {part: json.loads(path.read_text("utf-8")) for part, path in paths.items()}

    @property
    def takes_cfg_zero(self) -> bool:
        """Whether its guidance is the plain one, from one branch with the prompt and one without."""
        return max(self.guidance) > 1 and not self.makes_sound and not self.live and not self.segment_frames

    @property
    def takes_progressive(self) -> bool:
        """Whether the first steps of its videos can be made at half the size."""
        return self.latent_spectrum is not None

    @property
    def takes_mag_cache(self) -> bool:
        """Whether its steps are as many and as plain as MagCache needs them."""
        return self.steps >= LEAST_STEPS and not self.makes_sound and not self.live and not self.segment_frames

    @property
    def inputs(self) -> dict[str, Need]:
        """The roles of all inputs that a request may give or must give."""
        needs: dict[str, Need] = {}
        if "i2v" in self.tasks:
            needs["image"] = "must" if self.tasks == ("i2v",) else "may"
        if self.takes_last_image:
            needs["last_image"] = "must" if self.needs_last_image else "may"
        return needs | self.takes

    @property
    def patch(self) -> int:
        """How many latents a token has on each side. Sizes of a video that begins at half of them are even in tokens."""
        return self.size_multiple // self.vae_scale_spatial // (2 if self.refines else 1)

    @property
    def num_experts(self) -> int:
        """How many transformers share the denoising, each with its own guidance."""
        return len(self.guidance)

    @property
    def model_source(self) -> str:
        """Where the checkpoint is: a Hugging Face id, or a folder for an embedded model."""
        if self.model.startswith(EMBEDDED_PREFIX):
            return str(EMBEDDED_MODELS_FOLDER / self.model.removeprefix(EMBEDDED_PREFIX))
        return self.model

    def words(self, language: str) -> PresetWords:
        """The preset's words in this language ("en", "zh"), or in English if it has none in that language."""
        if language == "zh" and self.zh:
            return self.zh
        prompts = tuple(example.prompt for example in self.image_examples)
        return PresetWords(title=self.title, description=self.description, examples=self.examples, image_examples=prompts)


def list_presets(folder: Path = PRESET_FOLDER) -> list[Preset]:
    """All presets: first the one that the studio opens with, then the others that run anywhere, then the families from the newest
    Wan on, in each text to video first and every draft or fast one under its own; live ones last. Read once a process."""
    return sorted(_presets(folder).values(), key=_rank)


def load_preset(name: str, folder: Path = PRESET_FOLDER) -> Preset:
    """The preset of this name.

    Raises: UnknownPreset, which lists the names and suggests the nearest.
    """
    presets = _presets(folder)
    if name not in presets:  # a name is never used as a path
        raise UnknownPreset(name, sorted(presets))
    return presets[name]


def _rank(preset: Preset) -> tuple[bool | int | str, ...]:
    is_embedded = preset.model.startswith(EMBEDDED_PREFIX)
    beginning = preset.name != OPENING, not is_embedded, preset.live
    family = SERIES.index(preset.series) if preset.series in SERIES and not is_embedded else len(SERIES)
    plain, _, variant = preset.name.rpartition("-")
    plain, variant = (plain, VARIANTS.index(variant)) if variant in VARIANTS else (preset.name, -1)
    kind = next((place for place, kind in enumerate(KINDS) if f"-{kind}-" in plain), len(KINDS))
    sizes = re.sub(r"\d+", lambda found: found[0].zfill(5), plain)  # 704p before 1024p
    return *beginning, family, kind, not plain.startswith(preset.series), sizes, variant


@functools.cache
def _presets(folder: Path) -> dict[str, Preset]:
    return {path.stem: _read(path) for path in folder.glob("*.toml")}


def _read(path: Path) -> Preset:
    return Preset(name=path.stem, **tomllib.loads(path.read_text(encoding="utf-8")))

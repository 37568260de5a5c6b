"""Loads the preset files in this folder. Does not depend on models, requests or devices."""

import difflib
import functools
import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, field_validator, model_validator

PRESET_FOLDER = Path(__file__).resolve().parent
BASES = "bases"  # the folder of base files, inside the folder of presets
EXAMPLES_FOLDER = PRESET_FOLDER / "examples"
ARCHITECTURES_FOLDER = PRESET_FOLDER / "architectures"
EMBEDDED_MODELS_FOLDER = PRESET_FOLDER.parent / "models"
EMBEDDED_PREFIX = "embedded:"
OPENING = "wan-tiny"  # the preset that is selected when the studio opens
SERIES = (
    "wan2.2",
    "wan2.1",
    "ltx-2.5",
    "ltx-2.3",
    "ltx-2.0",
    "hunyuanvideo-1.5",
)  # sort order of series in lists; all other series follow
# Parts of preset names that state the task, such as "t2v" in "hunyuanvideo-1.5-t2v-480p". Lists show the presets of a series in
# the order of these parts.
KINDS = ("t2v", "ti2v", "i2v", "flf2v", "vace", "animate")
VARIANTS = ("draft", "fast", "turbo", "distilled")  # sort order of variants, by the end of the name
FAST_PREFIXES = ("turbo", "fast")  # starts of the names of models that third parties distilled, such as turbowan2.1

LEAST_STEPS = 14  # MagCache needs at least this default number of steps; distilled models have at most 12

Task = Literal["t2v", "i2v"]
Solver = Literal["unipc", "euler", "euler-distilled", "lcm", "ltx", "ltx-distilled", "ltx-ancestral", "rcm", "rcm-ode", "dmd"]
ANY_MODEL: tuple[Solver, ...] = ("unipc", "euler", "euler-distilled")  # solvers that work with every model
# Solvers with fixed noise levels, and their largest number of steps. They ignore the flow shift.
FEW_STEPS: Mapping[Solver, int] = {"rcm": 4, "rcm-ode": 4, "dmd": 3}
Expert = Literal["both", "high", "low"]
Quantize = Literal["off", "int8", "fp8"]
Need = Literal["may", "must"]
Share = Annotated[float, Field(ge=0, le=1)]

_LANGUAGE = re.compile(r"[a-z]{2}")
_LOCAL_LORA = re.compile(r"[^./\\:\0][^/\\:\0]*\.safetensors")
_HUB_LORA = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*:[\w][\w. -]*(/[\w][\w. -]*)*\.(safetensors|pt)")


class UnknownPreset(LookupError):
    """No preset has this name. The attributes `what`, `allowed` and `fix` are the parts of the message, as in the studio's
    errors."""

    def __init__(self, name: str, names: list[str]) -> None:
        self.what = f"preset={name!r}"
        self.allowed = f"must be one of {', '.join(names)}"
        nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
        self.fix = f"did you mean {nearest[0]}?" if nearest else "`python app.py presets list` describes them"
        super().__init__(f"{self.what} {self.allowed}; {self.fix}")


class ImageExample(BaseModel):
    """An image in `presets/examples`, and the prompt that belongs to it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    file: str = Field(pattern=r"^[a-z0-9-]+\.(png|jpg|webp)$")
    """The file's name."""
    prompt: str
    """The prompt that belongs to the image."""

    @property
    def path(self) -> Path:
        """The path of the image."""
        return EXAMPLES_FOLDER / self.file


class PresetWords(BaseModel):
    """A preset's title, description and captions in one language.

    There is one caption for each of the preset's examples, in the same order. The prompts of examples are not translated:
    pressing a caption inserts the example's English prompt.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    title: str
    """The preset's title."""
    description: str
    """The preset's description."""
    examples: tuple[str, ...]
    """One caption for each of the preset's `examples`."""
    image_examples: tuple[str, ...] = ()
    """One caption for each of the preset's `image_examples`."""


class LoraChoice(BaseModel):
    """A LoRA, its strength, and the expert that it changes.

    `source` is the name of a file in the data folder's `loras` folder, or "owner/repository:file.safetensors" (or .pt) on the
    Hugging Face Hub. It is never a path. `expert` is "both" for models with one transformer.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str
    """A file in the data folder's `loras` folder, or `owner/repository:file.safetensors` on the Hugging Face Hub."""
    scale: float = Field(default=1.0, ge=-10, le=10, allow_inf_nan=False)
    """The strength of the LoRA."""
    expert: Expert = "both"
    """For models with two experts, the expert that the LoRA changes."""

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
        """Return whether `source` names a file on the Hugging Face Hub."""
        return ":" in self.source


class Preset(BaseModel):
    """A model with its default settings and limits.

    `docs/presets.md` lists the fields. `python -m presets.reference` writes that page from the texts below.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    """The file's name without `.toml`."""
    title: str
    """The name in lists, in English."""
    description: str
    """One sentence for lists: what the model is for, and its size."""
    series: str
    """The version of the model, such as `wan2.2`. `SERIES` contains the series in the order of lists."""
    model: str
    """The checkpoint: a Hugging Face id, a folder, `embedded:NAME`, or `owner/base+owner/repository:file` for a single-file
    transformer with another checkpoint's other parts; a second `+owner/repository:file` for the low-noise expert."""
    licence: str = ""
    """A sentence that the user must read before a download."""
    tasks: tuple[Task, ...] = Field(min_length=1)
    """What a video starts from: `t2v` a prompt, `i2v` a first frame."""
    dtype: Literal["float32", "bfloat16"]
    """The type of the weights on the devices."""
    quantize: Quantize = "off"
    """The default number format of the transformers' large matrices: `int8`, `fp8`, or `off` for `dtype`."""
    takes_quantize: bool = False
    """Whether the model supports `quantize`."""
    architecture: dict[str, str] | None = None
    """The configuration of each part of the checkpoint, such as `transformer`: the name of a file in `presets/architectures`. The
    files are the config.json files that diffusers and transformers write. Leave it out for an embedded checkpoint."""
    pipeline: dict[str, str | bool] = {}
    """The entries of the checkpoint's model_index.json that state which model it is. `_class_name` selects the model family.
    Leave the field out for an embedded checkpoint."""

    width: PositiveInt
    """Default width in pixels."""
    height: PositiveInt
    """Default height in pixels."""
    num_frames: PositiveInt
    """Default length in pixel frames."""
    fps: PositiveInt
    """Default frames per second."""
    steps: PositiveInt
    """Default number of denoising steps."""
    guidance: tuple[float, ...] = Field(min_length=1)
    """Classifier-free guidance, one value per expert, the high-noise expert first; 1 or less is off."""
    sound_guidance: float | None = Field(default=None, ge=0)
    """Guidance of the audio. By default it equals `guidance`."""
    perturbed_guidance: tuple[float, float] = (0.0, 0.0)
    """Strength of the guidance away from a result without one layer's self-attention, for video and audio; 0 is off."""
    modality_guidance: tuple[float, float] = (1.0, 1.0)
    """Strength of the guidance away from a result in which video and audio do not see each other. The first value is for the
    video, the second for the audio; 1 is off."""
    guidance_rescale: tuple[Share, Share] = (0.0, 0.0)
    """Guidance adds contrast. This share of the added contrast is removed again, for video and audio; 0 is off."""
    flow_shift: float = Field(gt=0)
    """Larger values spend more steps at high noise."""
    solver: Solver
    """The default sampler."""
    solvers: tuple[Solver, ...] = ANY_MODEL
    """The samplers that users can choose."""
    sigma_max: float = Field(default=80.0, ge=15)
    """The ratio of noise to signal at which the samplers `rcm` and `rcm-ode` start. Their second step starts at 14.1."""
    negative_prompt: str
    """The default negative prompt."""
    boundary: Share | None = None
    """The noise level below which the second of two experts is used. Required for models with two experts."""
    guidance_interval: tuple[Share, Share] = (0.0, 1.0)
    """The shares of the steps between which guidance runs."""
    first_guidance: float | None = Field(default=None, gt=1)
    """The guidance that is offered for the first steps of a model that needs no guidance. Without a value, guided first steps are
    not offered."""
    nag: float = Field(default=0.0, ge=0)
    """Default strength of the negative prompt in steps without guidance (NAG); 0 is off."""
    takes_nag: bool = False
    """Whether the model supports NAG."""
    step_cache: Share = 0.0
    """Default threshold of the step cache; 0 is off."""
    takes_sparse: bool = False
    """Whether steps can run with Sol-Attn. The model must be a Wan model with dense attention, and the preset guided."""
    sparse_keep: float = Field(default=0.1, gt=0, le=1)
    """For transformers with the sparse attention SLA or VSA: the share of the blocks of keys to which each block of queries
    attends."""
    loras: tuple[LoraChoice, ...] = ()
    """LoRAs that are always part of the preset: `source`, `scale` and, for two experts, `expert`."""
    draft_of: str | None = None
    """The full preset of a draft, which can finish the draft's videos."""
    takes_last_image: bool = False
    """Whether the model accepts a last frame."""
    needs_last_image: bool = False
    """Whether the model requires a last frame."""
    takes: dict[str, Need] = {}
    """Other inputs by role, each `may` (optional) or `must` (required), such as `{ video = "may" }`."""
    max_references: int = Field(default=8, ge=1, le=8)
    """The largest number of reference images."""
    continues: bool = False
    """Whether a video can start with several frames of a clip."""
    live: bool = False
    """Whether a video grows by blocks of `frame_step` frames and can be steered meanwhile."""
    actions: tuple[str, ...] = ()
    """The actions that steer a live video."""
    combines_actions: bool = False
    """Whether actions can be combined, such as `forward+left`."""
    reads_prompt: bool = True
    """Whether the model reads the prompt; otherwise the prompt only names the video."""
    needs_prompt: bool = True
    """Whether the prompt must not be empty."""
    segment_frames: PositiveInt | None = None
    """Pixel frames of a segment of an Animate video. Each segment starts with the previous segment's last frame."""
    face_side: PositiveInt | None = None
    """Width and height in pixels of the face clip of models that take one."""
    drive_prompt: str = ""
    """The default prompt that describes the driving video."""
    makes_sound: bool = False
    """Whether the videos have audio."""
    latent_spectrum: tuple[PositiveFloat, PositiveFloat] | None = None
    """The numbers A and b of the latents' power spectrum A * w ** -b. The frequency w is in cycles per image, and the power of
    noise is 1. Required for progressive resolution."""
    refines: bool = False
    """Whether videos are generated at half the size, and enlarged and refined by the last steps."""
    image_crf: int = Field(default=0, ge=0, le=51)
    """The H.264 compression of input images before the model sees them; 0 is off."""

    size_multiple: PositiveInt
    """Width and height must be multiples of this number of pixels."""
    vae_scale_spatial: PositiveInt
    """Pixels per latent on each side."""
    vae_scale_temporal: PositiveInt
    """Pixel frames per latent frame."""
    frame_step: PositiveInt = 4
    """A video has `frame_step` * n + `first_frames` pixel frames, n >= 0."""
    first_frames: PositiveInt = 1
    """See `frame_step`."""
    sizes: tuple[tuple[int, int], ...] = Field(min_length=1)
    """The sizes that users can choose, as [width, height]."""
    frame_counts: tuple[int, ...] = Field(min_length=1)
    """The lengths that users can choose, in pixel frames."""

    min_width: PositiveInt
    """The smallest width in pixels."""
    max_width: PositiveInt
    """The largest width in pixels."""
    min_height: PositiveInt
    """The smallest height in pixels."""
    max_height: PositiveInt
    """The largest height in pixels."""
    min_frames: PositiveInt
    """The smallest length in pixel frames."""
    max_frames: PositiveInt
    """The largest length in pixel frames."""
    trained_frames: PositiveInt | None = None
    """The longest length that the model was trained on; longer videos can be denoised in context windows of this length."""
    windows_above: PositiveInt | None = None
    """Videos longer than this use context windows by default."""
    max_steps: PositiveInt
    """The largest number of steps."""
    max_guidance: float = Field(default=30.0, ge=1)
    """The largest guidance."""
    max_fps: PositiveInt
    """The largest number of frames per second."""
    max_prompt_tokens: PositiveInt
    """The largest number of tokens of a prompt."""
    examples: tuple[str, ...] = Field(min_length=1)
    """Example prompts; the first one is also used for warming up."""
    image_examples: tuple[ImageExample, ...] = ()
    """Example images in `presets/examples`, each with `file` and `prompt`."""
    translations: dict[str, PresetWords] = {}
    """Title, description and captions in other languages: one table per language, named by its code, such as `[zh]`."""

    @model_validator(mode="before")
    @classmethod
    def _collect_translations(cls, values: Any) -> Any:
        """Move the tables whose names are language codes, such as `[zh]`, into `translations`."""
        if not isinstance(values, dict):
            return values
        tables = {name: table for name, table in values.items() if _LANGUAGE.fullmatch(name)}
        given = {**values.get("translations", {}), **tables}
        others = {name: value for name, value in values.items() if name not in tables}
        return others | {"translations": {code: words for code, words in given.items() if words is not None}}

    @model_validator(mode="after")
    def _offers_only_what_it_allows(self) -> Self:
        for width, height in (*self.sizes, (self.width, self.height)):
            self._check_size(width, height)
        for count in (*self.frame_counts, self.num_frames):
            fits = count >= self.first_frames and (count - self.first_frames) % self.frame_step == 0
            if not fits or not self.min_frames <= count <= self.max_frames:
                raise ValueError(f"{count} frames are outside this preset's limits")
        if self.solver not in self.solvers:
            raise ValueError(f"the default solver {self.solver} must be one of solvers")
        most = max(FEW_STEPS.get(solver, self.max_steps) for solver in self.solvers)
        if self.max_steps > most or self.steps > FEW_STEPS.get(self.solver, most):
            raise ValueError(f"steps and max_steps must be at most {most} for these solvers")
        if FEW_STEPS.keys() & {*self.solvers} and (self.makes_sound or self.live or self.segment_frames):
            raise ValueError(f"{', '.join(FEW_STEPS)} need a model without audio, live blocks and segments")
        if self.actions and not self.live:
            raise ValueError("actions need a live model")
        if self.combines_actions and not self.actions:
            raise ValueError("combines_actions needs actions")
        if self.trained_frames and (self.live or (self.trained_frames - self.first_frames) % self.frame_step):
            raise ValueError("trained_frames must be an allowed length, and the model must not be live")
        if self.continues and "video" not in self.takes:
            raise ValueError("continues needs video among takes")
        if self.windows_above and not self.trained_frames:
            raise ValueError("windows_above needs trained_frames")
        if (self.segment_frames is None) != ("drive" not in self.takes):
            raise ValueError("segment_frames and drive among takes need each other")
        if (self.face_side is None) != ("face" not in self.takes):
            raise ValueError("face_side and face among takes need each other")
        if self.segment_frames and (self.segment_frames - 1) % self.vae_scale_temporal:
            raise ValueError("segment_frames must be whole latent frames")
        if self.nag and not self.takes_nag:
            raise ValueError("nag needs takes_nag")
        if self.quantize != "off" and not self.takes_quantize:
            raise ValueError("quantize needs takes_quantize")
        if self.step_cache and not self.takes_step_cache:
            raise ValueError("step_cache needs a model without audio, live blocks and segments")
        if self.steps > self.max_steps or self.fps > self.max_fps:
            raise ValueError("the default steps or fps are outside this preset's limits")
        return self

    @model_validator(mode="after")
    def _agrees_on_its_experts(self) -> Self:
        if (self.boundary is None) != (self.num_experts == 1):
            raise ValueError("boundary is required for two values of guidance, and not allowed for one")
        if self.num_experts == 1 and any(lora.expert != "both" for lora in self.loras):
            raise ValueError("a LoRA for one expert needs a model with two experts")
        if self.needs_last_image and not self.takes_last_image:
            raise ValueError("needs_last_image needs takes_last_image")
        return self

    @model_validator(mode="after")
    def _captions_all_its_examples(self) -> Self:
        counts = (len(self.examples), len(self.image_examples))
        for code, words in self.translations.items():
            if (len(words.examples), len(words.image_examples)) != counts:
                raise ValueError(f"[{code}] must caption all {counts[0]} examples and all {counts[1]} image_examples")
        return self

    def _check_size(self, width: int, height: int) -> None:
        fits = self.min_width <= width <= self.max_width and self.min_height <= height <= self.max_height
        if not fits or width % self.size_multiple or height % self.size_multiple:
            raise ValueError(f"{width}x{height} is outside this preset's limits")

    def network_configs(self) -> dict[str, dict[str, Any]]:
        """Return the configuration of each network by the network's name in the checkpoint, such as "transformer".

        Both experts have the same configuration.
        """
        if self.architecture is None:
            paths = {path.parent.name: path for path in sorted(Path(self.model_source).glob("*/config.json"))}
        else:
            paths = {part: ARCHITECTURES_FOLDER / f"{part}-{name}.json" for part, name in self.architecture.items()}
        configs = {part: json.loads(path.read_text("utf-8")) for part, path in paths.items()}
        return configs if self.num_experts == 1 else {"transformer_2": configs["transformer"]} | configs

    def checkpoint_index(self) -> dict[str, Any]:
        """Return the content of the checkpoint's model_index.json.

        If the checkpoint is not a folder of this project, return only the entries that the preset knows: `pipeline`, `boundary`,
        and the networks.
        """
        if self.architecture is None:
            return json.loads((Path(self.model_source) / "model_index.json").read_text("utf-8"))
        parts = {part: ["diffusers", part] for part in self.network_configs()}
        return parts | self.pipeline | {"boundary_ratio": self.boundary}

    @property
    def has_control_blocks(self) -> bool:
        """Return whether the preset's model has control blocks, which take a control clip and a mask."""
        return "mask" in self.inputs and self.segment_frames is None

    @property
    def takes_cfg_zero(self) -> bool:
        """Return whether the preset supports CFG-Zero*. It needs guidance above 1.

        Models with audio, live models and Animate models do not support it.
        """
        return max(self.guidance) > 1 and not self.makes_sound and not self.live and not self.segment_frames

    @property
    def takes_progressive(self) -> bool:
        """Return whether the preset supports progressive resolution: the first steps run at half of the video's size."""
        return self.latent_spectrum is not None and self.takes_flow_shift

    @property
    def takes_flow_shift(self) -> bool:
        """Return whether the flow shift changes the noise levels of any of the preset's samplers."""
        return not FEW_STEPS.keys() >= {*self.solvers}

    @property
    def takes_step_cache(self) -> bool:
        """Return whether the preset supports the step cache. Models with audio, live models and Animate models do not."""
        return not self.makes_sound and not self.live and not self.segment_frames

    @property
    def takes_mag_cache(self) -> bool:
        """Return whether the preset supports MagCache. It needs at least `LEAST_STEPS` steps by default.

        Models with audio, live models and Animate models do not support it.
        """
        return self.steps >= LEAST_STEPS and not self.makes_sound and not self.live and not self.segment_frames

    @property
    def inputs(self) -> dict[str, Need]:
        """The inputs that the model takes, by role such as "image". "may" marks an optional input, "must" a required input."""
        needs: dict[str, Need] = {}
        if "i2v" in self.tasks:
            needs["image"] = "must" if self.tasks == ("i2v",) else "may"
        if self.takes_last_image:
            needs["last_image"] = "must" if self.needs_last_image else "may"
        return needs | self.takes

    @property
    def patch(self) -> int:
        """Height and width of a transformer's token, in latents.

        Usually `size_multiple` is the side of one token in pixels. A preset that `refines` starts at half of the video's size,
        which must also be whole tokens. Therefore its `size_multiple` is the side of two tokens.
        """
        return self.size_multiple // self.vae_scale_spatial // (2 if self.refines else 1)

    @property
    def num_experts(self) -> int:
        """Number of transformers that share the denoising steps. Each has its own value in `guidance`."""
        return len(self.guidance)

    @property
    def weight_format(self) -> str:
        """The format of the transformers' weights on the devices.

        The model cache identifies a model by its source and this format.
        """
        return self.dtype if self.quantize == "off" else f"{self.dtype}, {self.quantize}"

    @property
    def model_source(self) -> str:
        """The Hugging Face id of the checkpoint, or the folder of an embedded model."""
        if self.model.startswith(EMBEDDED_PREFIX):
            return str(EMBEDDED_MODELS_FOLDER / self.model.removeprefix(EMBEDDED_PREFIX))
        return self.model

    def words(self, language: str) -> PresetWords:
        """Return the preset's title, description and captions in this language, or in English if no translation exists."""
        if language in self.translations:
            return self.translations[language]
        prompts = tuple(example.prompt for example in self.image_examples)
        return PresetWords(title=self.title, description=self.description, examples=self.examples, image_examples=prompts)


def list_presets(folder: Path = PRESET_FOLDER) -> list[Preset]:
    """Return all presets in the order in which lists show them. The files are read once per process.

    The order is:
    1. `OPENING` and its variants,
    2. presets of embedded models, which are folders of this project,
    3. other presets, by `SERIES` and then by `KINDS`.

    In the second and third group, live presets come last. The `VARIANTS` of a preset follow it directly.
    """
    return sorted(_read_presets(folder).values(), key=_sort_key)


def load_preset(name: str, folder: Path = PRESET_FOLDER) -> Preset:
    """Return the preset of this name.

    Raises: UnknownPreset, which lists all names and suggests the nearest name.
    """
    presets = _read_presets(folder)
    if name not in presets:  # the name may be untrusted, and is never used as a path
        raise UnknownPreset(name, sorted(presets))
    return presets[name]


def list_variants(name: str) -> list[Preset]:
    """Return the other presets of the same model and size as the preset `name`.

    Their names differ only by one of `VARIANTS` at the end, or by one of `FAST_PREFIXES` at the start.
    """
    plain, _, variant = name.rpartition("-")
    plain = plain if variant in VARIANTS else name
    plain = next((plain.removeprefix(prefix) for prefix in FAST_PREFIXES if plain.startswith(prefix)), plain)
    names = {plain, *(f"{plain}-{one}" for one in VARIANTS), *(prefix + plain for prefix in FAST_PREFIXES)}
    return [preset for preset in list_presets() if preset.name in names - {name}]


def _sort_key(preset: Preset) -> tuple[bool | int | str, ...]:
    is_embedded = preset.model.startswith(EMBEDDED_PREFIX)
    family = SERIES.index(preset.series) if preset.series in SERIES and not is_embedded else len(SERIES)
    plain, _, variant = preset.name.rpartition("-")
    plain, variant = (plain, VARIANTS.index(variant)) if variant in VARIANTS else (preset.name, -1)
    beginning = plain != OPENING, not is_embedded, preset.live
    kind = next((place for place, kind in enumerate(KINDS) if f"-{kind}-" in plain), len(KINDS))
    sizes = re.sub(r"\d+", lambda found: found[0].zfill(5), plain)  # pads numbers with zeros: 704p comes before 1024p
    return *beginning, family, kind, not plain.startswith(preset.series), sizes, variant


def find_files(name: str, folder: Path = PRESET_FOLDER) -> list[Path]:
    """Return the file of the preset or base file `name`, then the file of its base, and so on to the last base.

    Raises: ValueError for an unknown base, and for bases that form a circle.
    """
    known = _list_files(folder)
    found = [known[name]]
    while (base := _read_file(found[-1]).get("base")) is not None:
        if base not in known:
            nearest = difflib.get_close_matches(base, known, n=1)
            fix = f"did you mean {nearest[0]}?" if nearest else "correct the name, or add the file"
            raise ValueError(f"{found[-1]}: base={base!r} must be the name of a preset or of a file in {folder / BASES}; {fix}")
        if known[base] in found:
            names = " -> ".join([*(file.stem for file in found), base])
            raise ValueError(f"{found[-1]}: base={base!r} makes a circle ({names}); remove `base` from one of the files")
        found.append(known[base])
    return found


def resolve_values(name: str, folder: Path = PRESET_FOLDER) -> dict[str, Any]:
    """Return all values of a preset or base file, including inherited values. Raises: ValueError as `find_files` does."""
    values: dict[str, Any] = {}
    for file in reversed(find_files(name, folder)):
        values = _override(values, _read_file(file))
    return {key: value for key, value in values.items() if key != "base"}


def _override(inherited: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Return `inherited` with the values of `own`. Tables merge by key. Any other value of `own` replaces the inherited value."""
    merged = dict(inherited)
    for key, value in own.items():
        table = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _override(merged[key], value) if table else value
    return merged


@functools.cache
def _read_presets(folder: Path) -> dict[str, Preset]:
    names = (path.stem for path in folder.glob("*.toml"))
    return {name: Preset(name=name, **resolve_values(name, folder)) for name in names}


@functools.cache
def _list_files(folder: Path) -> dict[str, Path]:
    """Return the files of all presets and bases, by their names."""
    return {path.stem: path for path in (*folder.glob(f"{BASES}/*.toml"), *folder.glob("*.toml"))}


@functools.cache
def _read_file(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))

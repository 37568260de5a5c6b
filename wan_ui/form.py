"""What the visitor has filled in, read once into one frozen value, and the request that it makes."""

import re
import secrets
from dataclasses import dataclass
from typing import Any

import gradio as gr

from backend.errors import RequestError
from backend.request import SEED_LIMIT, GenerationRequest, find_preset
from presets.loader import Task
from wan_ui.image_panel import ImagePanel, uploaded_picture
from wan_ui.prompt_panel import PromptPanel
from wan_ui.settings_panel import SettingsPanel


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A filled-in form, as it came from the page: the request checks it. `image` is the path of an upload."""

    task: Task
    preset: str
    prompt: str
    negative_prompt: str
    width: int
    height: int
    num_frames: int
    steps: int
    guidance: float
    guidance_low: float
    flow_shift: float
    seed: int
    image: str | None
    image_focus: tuple[float, float]

    def to_request(self) -> GenerationRequest:
        """The request. Raises: RequestError, in the engine's own words."""
        preset = find_preset(self.preset)
        own = preset.model_dump(include={"fps", "solver"})
        plain = {name: getattr(self, name) for name in _SAME_NAMES}
        guidance = (self.guidance, self.guidance_low)[: preset.num_experts]
        is_image = self.task == "i2v"
        focus = {"image_focus": self.image_focus} if is_image else {}
        return GenerationRequest(**own, **plain, **focus, guidance=guidance, image=self.image if is_image else None)


_SAME_NAMES = (
    "task", "preset", "prompt", "negative_prompt", "width", "height", "num_frames", "steps", "flow_shift", "seed"
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Form:
    """The panels together. Handlers take `inputs` as a set, so that Gradio hands them one argument."""

    task: gr.State
    prompt: PromptPanel
    settings: SettingsPanel
    image: ImagePanel

    @property
    def inputs(self) -> set[gr.Component]:
        settings = self.settings
        return {
            self.task, self.prompt.prompt, self.prompt.negative_prompt, self.image.image, self.image.focus,
            settings.preset, settings.resolution, settings.length, settings.steps, settings.guidance,
            settings.guidance_low, settings.flow_shift, settings.seed, settings.is_seed_random,
        }  # fmt: skip

    def read(self, values: dict[gr.Component, Any]) -> Draft:
        """The values of `inputs` as a draft; draws the seed if it shall be a new one each time.

        Raises: RequestError for a size that cannot be read.
        """
        settings = self.settings
        width, height = parse_size(values[settings.resolution])
        is_random = values[settings.is_seed_random] or values[settings.seed] is None
        return Draft(
            task=values[self.task], preset=values[settings.preset] or "", prompt=values[self.prompt.prompt] or "",
            negative_prompt=values[self.prompt.negative_prompt] or "", width=width, height=height,
            num_frames=values[settings.length], steps=values[settings.steps], guidance=values[settings.guidance],
            guidance_low=values[settings.guidance_low], flow_shift=values[settings.flow_shift],
            seed=secrets.randbelow(SEED_LIMIT) if is_random else values[settings.seed],
            image=uploaded_picture(values[self.image.image]), image_focus=tuple(values[self.image.focus]),
        )  # fmt: skip


def parse_size(choice: str) -> tuple[int, int]:
    """Width and height from a value of the resolution dropdown, such as "832x480". Raises: RequestError."""
    sizes = re.fullmatch(r"(\d{1,5})x(\d{1,5})", str(choice))
    if sizes is None:
        raise RequestError(f"resolution={str(choice)[:40]!r}", "must be WIDTHxHEIGHT", "choose one that is offered")
    return int(sizes[1]), int(sizes[2])

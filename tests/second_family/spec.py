"""The specification of the family."""

from __future__ import annotations

from backend.chips import StepFlops
from backend.models.spec import Kind

KIND = Kind(
    name="dots",
    tasks=("t2v", "i2v"),
    takes={"references": "may", "image": "may"},
    scales=(4, 2),
    patch=1,
    chunk=2,
    sound_rate=8000,
)
PIPELINE, TRANSFORMER = "DotsPipeline", "DotsTransformer"


class DotsFamily:
    name = "dots"
    supports = "Dots"

    def recognise(self, index, configs):
        return KIND if index.get("_class_name") == PIPELINE else None

    def complete_checkpoint(self, checkpoint, preset):
        return None

    def kind_for_preset(self, preset, configs):
        return KIND if configs.get("transformer", {}).get("_class_name") == TRANSFORMER else None

    def distinctive_shapes(self, configs, part):
        width = configs["transformer"]["width"]
        return {"into.weight": (width, configs["transformer"]["channels"])} if part == "transformer" else {}

    def step_flops(self, configs, request, branches):
        width, layers = configs["transformer"]["width"], configs["transformer"]["layers"]
        return StepFlops(attention=0.0, matmul=2 * request.geometry().num_tokens * width**2 * layers * branches, head_width=width)

    def lora_names(self, stem):
        return ()

    def model(self):
        from tests.second_family.model import DotsModel

        return DotsModel


DOTS = DotsFamily()

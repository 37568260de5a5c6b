"""The specification of the family."""

from __future__ import annotations

from backend.chips import StepFlops
from backend.models.spec import Family, ModelSpec

SPEC = ModelSpec(
    name="dots",
    tasks=("t2v", "i2v"),
    inputs={"references": "may", "image": "may"},
    scales=(4, 2),
    patch=1,
    chunk=2,
    sound_rate=8000,
)
PIPELINE, TRANSFORMER = "DotsPipeline", "DotsTransformer"


class DotsFamily(Family):
    name = "dots"
    supports = "Dots"
    pipelines = (PIPELINE,)
    body = "tests.second_family.model:DotsModel"

    def read_spec(self, index, configs):
        return SPEC

    def distinctive_shapes(self, configs, part):
        width = configs["transformer"]["width"]
        return {"into.weight": (width, configs["transformer"]["channels"])} if part == "transformer" else {}

    def step_flops(self, configs, request, branches):
        width, layers = configs["transformer"]["width"], configs["transformer"]["layers"]
        return StepFlops(attention=0.0, matmul=2 * request.geometry().num_tokens * width**2 * layers * branches, head_width=width)


DOTS = DotsFamily()

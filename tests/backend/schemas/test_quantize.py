"""The setting `quantize`: which presets take it, how it is stored, and what it selects."""

import pytest

from backend.chips import CHIPS
from backend.errors import RequestError
from backend.models import find_family
from backend.schemas.request import GenerationRequest
from backend.schemas.shape import Shape
from presets import Preset, list_presets, load_preset


def request(name: str = "wan-tiny", **changes) -> GenerationRequest:
    return GenerationRequest.from_preset(load_preset(name), prompt="x", seed=1, **changes)


def test_every_wan_model_takes_it_and_no_other_model():
    for preset in list_presets():
        family, _ = find_family(preset)
        assert preset.takes_quantize == (family.name not in ("hunyuan", "ltx")), preset.name
        assert preset.quantize == "off"


@pytest.mark.parametrize("name", ["hunyuan-tiny", "ltx-2.0-512p"])
def test_other_presets_refuse_it_in_one_sentence(name):
    with pytest.raises(RequestError, match=f"^quantize was given, and {name} does not support it; leave it out$"):
        request(name, quantize="int8")


def test_an_unknown_format_is_refused():
    with pytest.raises(
        RequestError, match="^quantize='int4' is refused: input should be 'off', 'int8' or 'fp8'; correct quantize$"
    ):
        request(quantize="int4")


def test_a_stored_request_keeps_it_and_leaves_it_out_if_it_is_off():
    quantized = request(quantize="int8")
    assert GenerationRequest.from_stored(quantized.to_json()) == quantized and quantized.to_json()["quantize"] == "int8"
    assert "quantize" not in request().to_json()


def test_a_quantized_model_is_another_model_in_memory_with_other_programs():
    formats = [request(quantize=one) for one in ("off", "int8", "fp8")]
    assert len({one.resolved_preset.weight_format for one in formats}) == 3
    assert len({Shape.from_request(one) for one in formats}) == 3
    assert formats[0].resolved_preset is load_preset("wan-tiny") and formats[1].resolved_preset.quantize == "int8"


def test_a_preset_can_have_it_as_its_default():
    quantized = load_preset("wan-tiny").model_copy(update={"quantize": "int8"})
    assert GenerationRequest.from_preset(quantized, prompt="x").quantize == "int8"
    assert GenerationRequest.from_preset(quantized, prompt="x", quantize="off").resolved_preset.quantize == "off"
    with pytest.raises(ValueError, match="quantize needs takes_quantize"):
        Preset(**load_preset("hunyuan-tiny").model_dump() | {"quantize": "int8"})


@pytest.mark.parametrize("chip, format", [("v6e", "int8"), ("tpu7x", "fp8")])
def test_the_floor_counts_products_at_the_rate_of_their_format(chip, format):
    floors, products = {}, {}
    preset = load_preset("wan2.1-t2v-14b-720p")
    family, _ = find_family(preset)
    for one in ("off", "int8", "fp8"):
        flops = family.step_flops(preset.network_configs(), request(preset.name, quantize=one), branches=2)
        floors[one], products[one] = flops.floor_seconds(CHIPS[chip], 8), flops.matmul_seconds(CHIPS[chip], 8)
    assert len(set(floors.values())) == 2 and floors[format] == min(floors.values())
    # cross-attention, which is not quantized, has 512 keys: its share of the operations is 2 * 512 / 5120 of a square matrix
    width, hidden, text = 5120, 13824, 512
    quantized, other = 6 * width**2 + 2 * width * hidden, 2 * width * text
    assert products[format] / products["off"] == pytest.approx((quantized / 2 + other) / (quantized + other))

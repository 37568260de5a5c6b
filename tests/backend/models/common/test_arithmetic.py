"""The counts of operations for encoding and decoding, computed from shapes, equal the counts of the real networks."""

import math

import diffusers
import jax
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import UMT5Config, UMT5EncoderModel

from backend.models.common.arithmetic import encoder_flops
from backend.pipeline.load import describe_model
from backend.schemas.request import GenerationRequest, example_request
from backend.schemas.settings import find_preset
from presets import load_preset

CLASSES = {"wan2.1-t2v-1.3b-480p": "AutoencoderKLWan", "hunyuanvideo-1.5-t2v-480p": "AutoencoderKLHunyuanVideo15"}


def model_of(request: GenerationRequest):
    return describe_model(find_preset(request.preset), jax.devices()[:1], lambda program, lowered: None)


def counted(call) -> float:
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()


@pytest.mark.parametrize("preset", CLASSES)
def test_a_clip_is_decoded_with_the_operations_of_diffusers_decoder(preset):
    request = example_request(load_preset(preset)).model_copy(update={"width": 256, "height": 128, "num_frames": 13})
    model, config = model_of(request), load_preset(preset).network_configs()["vae"]
    with torch.device("meta"):
        vae = getattr(diffusers, CLASSES[preset]).from_config(config).eval()
        expected = counted(lambda: vae.decode(torch.empty(model.latent_shape(request))))
    assert model.decode_flops(request) == pytest.approx(expected, rel=2e-3)  # attention to earlier frames is not counted


def test_the_whole_clip_is_encoded_where_the_picture_is_given_as_channels():
    request = example_request(load_preset("wan2.1-i2v-14b-480p"), task="i2v").model_copy(update={"num_frames": 9})
    model = model_of(request)
    autoencoder, geometry = model._guided.vae, request.geometry()
    pictures = autoencoder.encode_flops(geometry, 3)
    assert pictures > 2.5 * autoencoder.encode_flops(geometry, 1)
    assert model.encode_flops(request) > pictures > model.encode_flops(request.model_copy(update={"image": None}))


def test_an_encoder_of_text_is_counted_by_its_matrices():
    config = UMT5Config(vocab_size=100, d_model=64, d_kv=16, d_ff=160, num_layers=2, num_heads=4)
    with torch.device("meta"):
        encoder = UMT5EncoderModel(config).eval()
        expected = counted(lambda: encoder(input_ids=torch.zeros(2, 8, dtype=torch.long)))
    weights = {name: jax.ShapeDtypeStruct(value.shape, "float32") for name, value in encoder.state_dict().items()}
    attention = 2 * 2 * 2 * 4 * 8 * 8 * 16 * 2  # two layers' scores and values, of two prompts
    assert encoder_flops(weights, 16) == pytest.approx(expected - attention, rel=1e-6)


def test_twice_the_frames_are_twice_the_arithmetic_but_for_the_first():
    request = example_request(load_preset("wan2.1-t2v-1.3b-480p"))
    model = model_of(request)
    one, five, nine = (model.decode_flops(request.model_copy(update={"num_frames": count})) for count in (1, 5, 9))
    assert math.isclose(nine - five, five - one) and one > 0

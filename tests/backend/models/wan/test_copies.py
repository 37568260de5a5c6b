"""Two alternating experts have whole matrices on each chip only while their steps run. Each expert gathers once per turn."""

from collections import Counter

import jax

from backend.pipeline.load import describe_model
from backend.pipeline.warm_up import calls
from backend.runtime.program import Compilation
from backend.schemas.request import GenerationRequest
from backend.weights.host_offload import device_bytes
from presets import load_preset

COPIES = 3
PRESETS = {2: "wan2.2-t2v-a14b-480p", 1: "wan2.1-t2v-14b-480p"}


def list_calls(experts: int) -> tuple[Counter, list[int]]:
    """Count the calls of each program. Return also, for each step, the bytes of an expert's stored weights that are not among
    the step's arguments.
    """
    preset = load_preset(PRESETS[experts])
    model = describe_model(preset, jax.devices()[:1], lambda program, lowered: Compilation(None), num_copies=COPIES)
    request = GenerationRequest.from_preset(preset, prompt="a circle", seed=1, steps=4)
    resting = [network.program_weights for network in model.networks if network.expert is not None]
    found, lacking = Counter(), []
    for call in calls(model, request):
        found[call.program.key] += 1
        if call.program.key == "denoise_step":
            lacking.append(device_bytes(resting[0]) - device_bytes(resting, among=call.arguments))
    return found, lacking


def test_each_of_two_experts_gathers_its_matrices_once_and_its_steps_take_the_copies():
    found, lacking = list_calls(2)
    assert found["expert_copies"] == found["prompt_keys"] == 2 and found["denoise_step"] == 4
    matrix = 5120 * 5120 * 40 * 2  # bytes of one matrix in all layers
    assert lacking == [COPIES * matrix] * 4


def test_one_transformer_keeps_its_copies():
    found, lacking = list_calls(1)
    assert "expert_copies" not in found and lacking == [0] * 4

"""Run by `test_text_encoder.py` in a process with the devices that it wants: tiny text encoders against transformers' classes.

Prints, as JSON, the largest difference of the states of tokens that count, relative to the largest state, by the encoder's name.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import torch

from backend.models.ltx.text_encoder import TextEncoder, installed_name
from backend.runtime.mesh import Layout, MeshPlan
from tests.parity.tiny_hunyuan import make_tokenizer
from tests.parity.tiny_ltx import make_gemma, make_gemma4

PROMPTS = ["a dog barks at the sea and runs home under the rain, then waits at the door", "a cat"]
LENGTH = 64
MAKERS: dict[str, Callable] = {
    "gemma3": make_gemma,
    "gemma4": make_gemma4,
    "gemma4, keys shared by the last layers": lambda size: make_gemma4(size, num_kv_shared_layers=2, use_double_wide_mlp=True),
    "gemma4, values of their own": lambda size: make_gemma4(size, attention_k_eq_v=False),
}


def difference(name: str, layout: Layout) -> float:
    """Return the difference for one encoder, with its weights spread over the layout's devices."""
    tokenizer = make_tokenizer()
    torch.manual_seed(0)
    theirs = MAKERS[name](len(tokenizer))
    encoder = TextEncoder(json.loads(theirs.config.to_json_string(use_diff=False)), tokenizer, LENGTH)
    tokens, described = encoder.tokenize(PROMPTS), encoder.describe_weights(jnp.float32, layout)
    files = {installed_name(name): value.detach().numpy() for name, value in theirs.state_dict().items()}
    weights = {name: jax.device_put(files[name], one.sharding) for name, one in described.items()}
    ours = np.asarray(jax.jit(encoder.states)(weights, *jax.device_put((tokens.ids, tokens.mask), layout.replicated)))
    ids, mask = (torch.from_numpy(array) for array in (tokens.ids, tokens.mask))
    with torch.no_grad():
        states = theirs(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states
    expected, counts = torch.stack(states, -1).numpy(), tokens.mask > 0
    return float(np.abs(ours - expected)[counts].max() / np.abs(expected[counts]).max())


def main() -> None:
    devices = jax.devices()
    layout = Layout.create(MeshPlan(sp=len(devices)), devices)
    sys.stdout.write(json.dumps({name: difference(name, layout) for name in MAKERS}) + "\n")


if __name__ == "__main__":
    main()

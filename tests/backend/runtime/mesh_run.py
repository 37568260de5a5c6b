"""Run by `test_mesh.py` in a process with eight CPU devices: the real programs of a tiny random model on one mesh after the other.

Prints one JSON object: for every mesh the largest relative difference of the latents, and the video's PSNR in dB, against one
device.
"""

import functools
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import torch
from diffusers import AutoencoderKLWan, WanTransformer3DModel
from safetensors.numpy import save_file
from transformers import UMT5Config, UMT5EncoderModel

from backend.models.wan.model import Programs, make_programs
from backend.models.wan.text_encoder import TextEncoder
from backend.models.wan.transformer import BLOCKS, Context, layer_matrix_bytes
from backend.runtime import work
from backend.runtime.mesh import Layout, MeshPlan
from backend.runtime.program import compile_now
from backend.sampling.solvers import make_schedule, make_step_inputs, start_state
from backend.weights.read import LoadProgress, Part, load_stacked
from backend.weights.stacked import StackedWeights
from presets.loader import Quantize

HEADS = 6  # 4 chips cannot share them out evenly: two exchange heads, and gather keys from the other two
TRANSFORMER = dict(
    patch_size=(1, 2, 2),
    num_attention_heads=HEADS,
    attention_head_dim=32,
    in_channels=4,
    out_channels=4,
    text_dim=32,
    freq_dim=32,
    ffn_dim=96,
    num_layers=2,
    cross_attn_norm=True,
    qk_norm="rms_norm_across_heads",
    eps=1e-6,
)
VAE = dict(
    base_dim=8,
    z_dim=4,
    dim_mult=[1, 2, 2, 2],
    num_res_blocks=0,  # the decoder has one more than configured: one per level, and two in the middle
    attn_scales=[],
    temperal_downsample=[False, True, True],
    latents_mean=[0.1] * 4,
    latents_std=[1.5] * 4,
    scale_factor_spatial=8,
    scale_factor_temporal=4,
)
TEXT = dict(
    vocab_size=64,
    d_model=32,
    d_kv=16,
    d_ff=64,
    num_layers=2,
    num_heads=8,
    feed_forward_proj="gated-gelu",
    relative_attention_num_buckets=32,
    relative_attention_max_distance=128,
    dropout_rate=0.0,
)
LATENT_SHAPE = (1, 4, 3, 16, 16)
STEPS = 3


def make_models() -> tuple[dict, dict, dict, dict]:
    torch.manual_seed(0)
    transformer, vae, text = WanTransformer3DModel(**TRANSFORMER), AutoencoderKLWan(**VAE), UMT5EncoderModel(UMT5Config(**TEXT))
    torch.nn.init.normal_(transformer.proj_out.weight, std=0.1)
    configs = {"transformer": dict(transformer.config), "vae": dict(vae.config), "text_encoder": TEXT}
    return configs, *({name: value.numpy() for name, value in model.state_dict().items()} for model in (transformer, vae, text))


def load(transformer: dict[str, np.ndarray], programs: Programs) -> StackedWeights:
    """Write the weights to a file, and load them like the weights of any checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "transformer").mkdir()
        save_file(transformer, Path(folder) / "transformer" / "model.safetensors")
        described, part = programs.denoiser.describe_weights(jnp.dtype("float32")), Part(Path(folder), "transformer")
        progress = LoadProgress(sum(place.num_bytes for place in part.places.values()), lambda event: None)
        return load_stacked(part, described, lambda name, tensor: tensor, progress)


def place_weights(weights: dict[str, jax.Array], layout: Layout, spec) -> dict[str, jax.Array]:
    """Place weights on the mesh, each with the partition `spec(name, shape)`."""
    return {name: jax.device_put(value, layout.sharding(spec(name, value.shape))) for name, value in weights.items()}


def run(
    plan: MeshPlan, is_guided: bool, models, copied: tuple[str, ...] = (), on_demand: bool = False, quantize: Quantize = "off"
) -> tuple[np.ndarray, np.ndarray]:
    """Return the latents after the steps, and the video, for the same weights, noise and tokens."""
    configs, transformer, vae, text = models
    layout = Layout.create(plan, jax.devices()[: plan.num_devices], copied, copies_on_demand=on_demand, quantize=quantize)
    programs = make_programs(configs, TextEncoder(TEXT, None), layout, None, compiler=compile_now)
    weights = load(transformer, programs)
    generator = np.random.default_rng(0)
    branches = 2 if is_guided else 1
    ids = generator.integers(2, 64, (branches, 16)).astype(np.int32)
    mask = np.ones_like(ids)
    embedded = programs.embed_text(place_weights(text, layout, functools.partial(TextEncoder.weight_spec, layout)), ids, mask)
    text_context = programs.prepare_text(weights, embedded, np.zeros((branches, 1, 1, 16), np.float32))
    noise = generator.standard_normal(LATENT_SHAPE).astype(np.float32)
    schedule, positions = make_schedule("unipc", STEPS, 3.0), work.run(programs.denoiser.positions(LATENT_SHAPE))
    if on_demand:
        spread = programs.denoiser.spread_matrices(weights)
        copies = programs.copy_matrices(spread)
        assert all(leaf.sharding.spec != copies[BLOCKS][name].sharding.spec for name, leaf in spread[BLOCKS].items())
        weights = weights.with_stacks(copies)
    context, state = Context(text=text_context, positions=positions, condition=None), start_state(jnp.asarray(noise))
    for index in range(STEPS):
        inputs = make_step_inputs(schedule, index, 4.0 if is_guided else 1.0)
        state = programs.step(weights, state, inputs, context)
    latents = state.sample
    frames = list(decoded(programs, jax.device_put(vae, layout.replicated), latents))
    return np.asarray(latents), np.concatenate([np.asarray(frame) for frame in frames], axis=2)


def decoded(programs: Programs, weights: dict[str, jax.Array], latents: jax.Array) -> Iterator[jax.Array]:
    frames, caches = programs.decode_first(weights, latents[:, :, :1])
    yield frames
    for index in range(1, latents.shape[2]):
        frames, caches = programs.decode_next(weights, latents[:, :, index : index + 1], caches)
        yield frames


def compare(
    plan: MeshPlan, is_guided: bool, models, reference, copied: tuple[str, ...], on_demand: bool, quantize: Quantize
) -> dict[str, float]:
    latents, video = run(plan, is_guided, models, copied, on_demand, quantize)
    error = float(np.abs(latents - reference[0]).max() / np.abs(reference[0]).max())
    mean_square = float(np.square(video - reference[1]).mean())
    return {"latents": error, "psnr": float(10 * np.log10(4 / max(mean_square, 1e-20)))}


def main() -> None:
    models, found = make_models(), {}
    reference = functools.cache(lambda is_guided, quantize: run(MeshPlan(), is_guided, models, quantize=quantize))
    for words in sys.argv[1:]:
        numbers, quantize = words.partition(" ")[::2]
        quantize = quantize or "off"
        dp, sp, tp, guided, *copies = (int(word) for word in numbers.split(","))
        copied = tuple(layer_matrix_bytes(TRANSFORMER, 4))[: copies[0]] if copies else ()
        plan, on_demand = MeshPlan(dp=dp, sp=sp, tp=tp), len(copies) > 1 and bool(copies[1])
        expected = reference(bool(guided), quantize)
        found[words] = compare(plan, bool(guided), models, expected, copied, on_demand, quantize)
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()

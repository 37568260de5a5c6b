"""The negative prompt without guidance equals its makers' formula in plain PyTorch, inside diffusers' own transformer."""

from __future__ import annotations

import contextlib

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from backend.models.wan.attention import apply_nag
from backend.pipeline.warm_up import calls
from tests.parity.tiny_runs import Tiny, latents_of, run_reference

pytestmark = [pytest.mark.parity, pytest.mark.demo_model]

LATENT_TOLERANCE = 1e-3  # the project's bar
SCALE, TAU, ALPHA = 11.0, 2.5, 0.25


def formula(own: torch.Tensor, other: torch.Tensor, scale: float) -> torch.Tensor:
    """Compute equations 7 to 10 of arXiv:2505.21179 for attentions [B, S, W]."""
    beyond = scale * own - (scale - 1) * other
    ratio = beyond.norm(p=1, dim=-1, keepdim=True) / own.norm(p=1, dim=-1, keepdim=True)
    cut = torch.where(ratio > TAU, beyond / ratio * TAU, beyond)
    return ALPHA * cut + (1 - ALPHA) * own


class PlainProcessor:
    """Cross-attention of diffusers' `WanAttention` in plain PyTorch. The text is the embedding of the prompt, then the
    embedding of the negative prompt, each after the pictures' tokens.
    """

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def __call__(self, attn, hidden_states, encoder_hidden_states=None, attention_mask=None, rotary_emb=None):
        text, pictures = encoder_hidden_states, None
        if attn.add_k_proj is not None:
            pictures, text = text[:, :-512], text[:, -512:]
        query = attn.norm_q(attn.to_q(hidden_states))
        own, other = (_attended(query, attn.norm_k(attn.to_k(one)), attn.to_v(one), attn.heads) for one in text.split(1))
        result = formula(own, other, self.scale)
        if pictures is not None:
            key, value = attn.norm_added_k(attn.add_k_proj(pictures[:1])), attn.add_v_proj(pictures[:1])
            result = result + _attended(query, key, value, attn.heads)
        return attn.to_out[0](result)


def _attended(query, key, value, heads: int) -> torch.Tensor:
    query, key, value = (one.unflatten(2, (heads, -1)).transpose(1, 2) for one in (query, key, value))
    return torch.nn.functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)


@contextlib.contextmanager
def plain_nag(tiny: Tiny, request, scale: float):
    """Return diffusers' transformers with the plain processor. They get the negative prompt too if no guidance runs."""
    pipeline = tiny.reference
    with torch.no_grad():
        negative = pipeline.encode_prompt(request.negative_prompt, do_classifier_free_guidance=False, max_sequence_length=512)[0]
    patched = [one for one in (pipeline.transformer, pipeline.transformer_2) if one is not None]
    before = [(model.forward, [block.attn2.processor for block in model.blocks]) for model in patched]

    def with_both(forward):
        def run(*arguments, encoder_hidden_states, encoder_hidden_states_image=None, **others):
            texts = torch.cat([encoder_hidden_states, negative.to(encoder_hidden_states.dtype)])
            if encoder_hidden_states_image is not None:
                others["encoder_hidden_states_image"] = encoder_hidden_states_image.expand(2, -1, -1)
            return forward(*arguments, encoder_hidden_states=texts, **others)

        return run

    for model in patched:
        model.forward = with_both(model.forward)
        for block in model.blocks:
            block.attn2.processor = PlainProcessor(scale)
    try:
        yield
    finally:
        for model, (forward, processors) in zip(patched, before, strict=True):
            model.forward = forward
            for block, processor in zip(model.blocks, processors, strict=True):
                block.attn2.processor = processor


def without_guidance(tiny: Tiny, **changes):
    """A request of four steps without guidance."""
    return tiny.request(steps=4, guidance=(1.0,) * tiny.preset.num_experts, **changes)


@pytest.mark.parametrize(
    "family",
    [
        "wan2.1-t2v",
        pytest.param("wan2.1-i2v", marks=pytest.mark.slow),
        "wan2.2-t2v",
        pytest.param("wan2.2-ti2v", marks=pytest.mark.slow),
    ],
)
def test_the_latents_are_those_of_the_formula(family, tiny, pictures):
    made = tiny(family)
    images = {"image": pictures["image"]} if family == "wan2.1-i2v" else {}
    request = without_guidance(made, nag=SCALE, **images)
    with plain_nag(made, request, SCALE):
        reference = run_reference(made, request, "formula", SCALE)
    assert np.abs(latents_of(request, made.loaded) - reference).max() <= LATENT_TOLERANCE
    plain = latents_of(without_guidance(made, **images), made.loaded)
    assert np.abs(plain - run_reference(made, without_guidance(made, **images))).max() <= LATENT_TOLERANCE
    assert np.abs(plain - reference).max() > 20 * LATENT_TOLERANCE


def test_a_scale_of_one_or_no_negative_prompt_changes_nothing(tiny):
    made = tiny("wan2.1-t2v")
    plain = latents_of(without_guidance(made), made.loaded)
    for changes in ({"nag": 1.0}, {"nag": SCALE, "negative_prompt": ""}):
        np.testing.assert_array_equal(latents_of(without_guidance(made).with_changes(**changes), made.loaded), plain)


def test_guided_steps_leave_it_out(tiny):
    """Guidance on all steps reads the negative prompt itself. With guidance on the first step only, the other steps attend to
    it.
    """
    made = tiny("wan2.1-t2v")
    guided = made.request(steps=4, guidance=(4.0,))
    np.testing.assert_array_equal(latents_of(guided.with_changes(nag=SCALE), made.loaded), latents_of(guided, made.loaded))
    mixed = made.request(steps=4, guidance=(4.0,), guided_steps=1)
    assert (
        np.abs(latents_of(mixed.with_changes(nag=SCALE), made.loaded) - latents_of(mixed, made.loaded)).max() > LATENT_TOLERANCE
    )


def test_one_program_serves_every_strength(tiny):
    made = tiny("wan2.1-t2v")
    steps = [
        {
            call.program.variant_key(*call.arguments)
            for call in calls(made.loaded.model, without_guidance(made, nag=scale), ("denoise",))
        }
        for scale in (4.0, SCALE)
    ]
    assert steps[0] == steps[1]
    names = [call.program.key for call in calls(made.loaded.model, without_guidance(made, nag=SCALE), ("denoise",))]
    assert names.count("denoise_step") == 4 and names.count("prompt_keys") == 1  # no second forward


def test_the_step_cache_goes_with_it(tiny):
    made = tiny("wan2.1-t2v")
    latents = [latents_of(without_guidance(made, nag=SCALE, step_cache=cache), made.loaded) for cache in (0.0, 1e-9)]
    np.testing.assert_allclose(latents[0], latents[1], atol=1e-4)  # no step is skipped; another program adds in another order


@pytest.mark.parametrize("scale", [2.0, 11.0])
def test_the_norm_is_cut_in_each_token(scale):
    generator = np.random.default_rng(0)
    own, other = (generator.normal(size=(1, 7, 3, 4)).astype(np.float32) for _ in range(2))
    other[0, 3] = own[0, 3]  # equal outputs: no guidance
    own[0, 5] = 0  # the norm is 0: the result is 0
    found = np.asarray(apply_nag(jnp.asarray(own), jnp.asarray(other), jnp.float32(scale)))
    flat = [torch.from_numpy(one).flatten(2) for one in (own, other)]
    expected = torch.nan_to_num(formula(*flat, scale)).reshape(own.shape).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_allclose(found[0, 3], own[0, 3], atol=1e-5)
    assert not found[0, 5].any()

"""The programs that every family has whose video is one chunk."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Protocol

import jax

from backend.models.common.step_cache import StepCache
from backend.models.common.transformer import ClipTransformer
from backend.models.common.video_autoencoder import StreamedAutoencoder
from backend.runtime.mesh import Layout
from backend.runtime.program import Compiler, Program
from backend.sampling.solvers import SamplerState, StepInputs, guide, guide_by_zero_star, take_guided_step, take_still_step
from backend.weights.stacked import StackedWeights


class Embedder(Protocol):
    """An encoder of text or of pictures."""

    embed: Callable[..., Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClipPrograms:
    """One mesh, the networks laid out on it, and their programs. The step's take weights, the state, the step's inputs and the
    lane's `context`; the small one is the same at half of the video's size, the cached one has also the cache and its threshold,
    the still one the state and the inputs alone. The kept one also gives what all layers added, [B, S, D], which the reused one
    takes and adds in their place."""

    layout: Layout
    denoiser: ClipTransformer
    vae: StreamedAutoencoder
    embed_text: Program | None
    embed_image: Program | None
    encode_image: Program
    step: Program
    small_step: Program
    cached_step: Program
    zero_star_step: Program
    still_step: Program
    kept_step: Program
    reused_step: Program
    decode_first: Program
    decode_next: Program


def common_programs(
    denoiser: ClipTransformer,
    vae: Any,  # a `StreamedAutoencoder` with the family's own `encode_image`
    text: Embedder | None,
    image: Embedder | None,
    layout: Layout,
    compiler: Compiler,
) -> dict[str, Any]:
    """The fields of `ClipPrograms`."""
    program = functools.partial(Program, layout=layout, compiler=compiler)
    decoding = functools.partial(program, donated=(2,) if vae.uses_up_caches else (), places=vae.decoded_sharding)
    return {
        "layout": layout,
        "denoiser": denoiser,
        "vae": vae,
        "embed_text": text and program("the text encoder", text.embed, key="text_encode"),
        "embed_image": image and program("the image encoder", image.embed, key="image_embed"),
        "encode_image": program("the encoder", vae.encode_image, key="image_encode"),
        "step": program("the denoising step", _step_function(denoiser), key="denoise_step", donated=(1,)),
        "small_step": program("the step at half the size", _step_function(denoiser), key="small_step", donated=(1,)),
        "zero_star_step": program(
            "the denoising step of CFG-Zero*",
            _step_function(denoiser, guide_by_zero_star),
            key="denoise_step_zero_star",
            donated=(1,),
        ),
        "still_step": program("a step that is left out", take_still_step, key="denoise_step_still", donated=(0,)),
        "kept_step": program(
            "the denoising step that others reuse",
            _kept_step_function(denoiser),
            key="denoise_step_kept",
            donated=(1,),
            places=denoiser.kept_sharding,
        ),
        "reused_step": program(
            "a step that reuses another", _reused_step_function(denoiser), key="denoise_step_reused", donated=(1,)
        ),
        "cached_step": program(
            "the denoising step with its cache",
            _cached_step_function(denoiser),
            key="denoise_step_cached",
            donated=(1, 4),
            places=denoiser.cached_sharding,
        ),
        "decode_first": decoding("the decoder's first frame", vae.decode_first, key="vae_decode_first"),
        "decode_next": decoding("the decoder", vae.decode_next, key="vae_decode_next"),
    }


def _step_function(denoiser: ClipTransformer, guided: Callable = guide) -> Callable:
    def step(weights: StackedWeights, state: SamplerState, inputs: StepInputs, context: Any) -> SamplerState:
        """One guided solver step; latents [1, C, F, H, W] float32."""
        velocity = denoiser.velocity(weights, state.sample, denoiser.times(inputs), context)
        return take_guided_step(state, velocity, inputs, guided)

    return step


def _kept_step_function(denoiser: ClipTransformer) -> Callable:
    def step(weights: StackedWeights, state: SamplerState, inputs: StepInputs, context: Any) -> tuple[SamplerState, jax.Array]:
        """The same, and what all layers added to the tokens."""
        velocity, added = denoiser.kept_velocity(weights, state.sample, denoiser.times(inputs), context)
        return take_guided_step(state, velocity, inputs), added

    return step


def _reused_step_function(denoiser: ClipTransformer) -> Callable:
    def step(weights: StackedWeights, state: SamplerState, inputs: StepInputs, context: Any, added: jax.Array) -> SamplerState:
        """The same without the layers, whose weights it does not need: they add what they added before."""
        velocity = denoiser.reused_velocity(weights, state.sample, denoiser.times(inputs), context, added)
        return take_guided_step(state, velocity, inputs)

    return step


def _cached_step_function(denoiser: ClipTransformer) -> Callable:
    def step(
        weights: StackedWeights,
        state: SamplerState,
        inputs: StepInputs,
        context: Any,
        cache: StepCache,
        threshold: jax.Array,
    ) -> tuple[SamplerState, StepCache]:
        """The same, but reuses the last full step's work if the first layer shows that little has changed."""
        times = denoiser.times(inputs)
        velocity, cache = denoiser.cached_velocity(weights, state.sample, times, context, cache, threshold)
        return take_guided_step(state, velocity, inputs), cache

    return step

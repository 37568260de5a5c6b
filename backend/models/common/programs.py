"""The programs of models that denoise the whole video as one chunk."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from backend.models.common.transformer import ClipTransformer
from backend.models.common.video_autoencoder import StreamedAutoencoder
from backend.runtime.mesh import Layout
from backend.runtime.program import Compiler, Program
from backend.sampling.fresh_noise import add_fresh_noise
from backend.sampling.solvers import SamplerState, StepInputs, guide, guide_by_zero_star, take_guided_step, take_still_step
from backend.weights.stacked import StackedWeights


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClipPrograms:
    """The networks on one mesh, and their programs.

    Step programs take the weights, the sampler state, the step inputs and the step context. `still_step` takes only the sampler
    state and the step inputs. `small_step` is for half of the video's size. `cached_step` also takes the step cache and the
    threshold. `kept_step` also returns the change that all layers together made to the tokens, [B, S, D]. `reused_step` runs no
    layers. It also takes this change, and adds it to the tokens. `add_noise` takes the state after the step and a `FreshNoise`.
    """

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
    add_noise: Program
    decode_first: Program
    decode_next: Program


def common_programs(
    denoiser: ClipTransformer,
    vae: Any,  # a `StreamedAutoencoder` with the family's own `encode_image`
    text: Any,  # the encoder, None if the model has no such encoder
    image: Any,
    layout: Layout,
    compiler: Compiler,
) -> dict[str, Any]:
    """Return the fields of `ClipPrograms` by name: the networks, and the programs created for them."""
    program = functools.partial(Program, layout=layout, compiler=compiler)
    stepping = functools.partial(program, donated=(1,))
    plain = _step_function(denoiser, denoiser.velocity)
    decoding = functools.partial(program, donated=(2,) if vae.uses_up_caches else (), places=vae.decoded_sharding)
    return {
        "layout": layout,
        "denoiser": denoiser,
        "vae": vae,
        "embed_text": text and program("the text encoder", text.embed, key="text_encode"),
        "embed_image": image and program("the image encoder", image.embed, key="image_embed"),
        "encode_image": program("the encoder", vae.encode_image, key="image_encode"),
        "step": stepping("the denoising step", plain, key="denoise_step"),
        "small_step": stepping("the step at half the size", plain, key="small_step"),
        "zero_star_step": stepping(
            "the denoising step of CFG-Zero*",
            _step_function(denoiser, denoiser.velocity, guide_by_zero_star),
            key="denoise_step_zero_star",
        ),
        "still_step": program("a step that is left out", take_still_step, key="denoise_step_still", donated=(0,)),
        "kept_step": stepping(
            "the denoising step that others reuse",
            _step_function(denoiser, denoiser.kept_velocity),
            key="denoise_step_kept",
            places=denoiser.kept_sharding,
        ),
        "reused_step": stepping(
            "a step that reuses another", _step_function(denoiser, denoiser.reused_velocity), key="denoise_step_reused"
        ),
        "add_noise": program("the noise of a step", add_fresh_noise, key="fresh_noise", donated=(0,)),
        "cached_step": program(
            "the denoising step with its cache",
            _step_function(denoiser, denoiser.cached_velocity),
            key="denoise_step_cached",
            donated=(1, 4),
            places=denoiser.kept_sharding,
        ),
        "decode_first": decoding("the decoder's first frame", vae.decode_first, key="vae_decode_first"),
        "decode_next": decoding("the decoder", vae.decode_next, key="vae_decode_next"),
    }


def _step_function(denoiser: ClipTransformer, predict: Callable, guided: Callable = guide) -> Callable:
    """Return the function of a step. `predict` is a method of `denoiser` that returns the velocity.

    If `predict` returns further values, the function returns them after the sampler state. If the function gets further
    arguments, such as a step cache, it passes them to `predict`.
    """

    def step(weights: StackedWeights, state: SamplerState, inputs: StepInputs, context: object, *kept: object) -> Any:
        predicted = predict(weights, state.sample, denoiser.times(inputs), context, *kept)
        velocity, *others = predicted if isinstance(predicted, tuple) else (predicted,)
        state = take_guided_step(state, velocity, inputs, guided)
        return (state, *others) if others else state

    return step

"""What the denoiser is told besides the noisy latents: the prompt's embeddings, and the pictures in the way of the model's
family. A lane is these, prepared for one expert with or without guidance."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image

from backend.contract.geometry import Geometry
from backend.contract.request import GenerationRequest
from backend.families.wan.attention import Positions
from backend.families.wan.text_encoder import TextTokens
from backend.families.wan.transformer import Condition, FirstFrame, ImageChannels, StepCache, TextContext
from backend.media.pictures import crop_to, load_checked_image
from backend.pipeline.load import Components, Programs
from backend.weights.parking import on_devices
from backend.weights.stacked import DenoiserWeights


@dataclasses.dataclass(frozen=True, kw_only=True)
class Conditions:
    """On the host: `embeddings` [B, L, D] and their `bias`, the prompt first and second what it is guided away from; `seen`
    [pictures, tokens, D], what an image encoder makes of them; `condition` for the transformer's input. None where absent."""

    embeddings: np.ndarray
    bias: np.ndarray | None
    seen: np.ndarray | None
    condition: Condition

    def with_first_frame(self, latents: jax.Array) -> jax.Array:
        """Latents with the picture's own frame in the first place, where the family keeps it clean."""
        if not isinstance(self.condition, FirstFrame):
            return latents
        return jnp.concatenate([self.condition.latents, latents[:, :, 1:]], axis=2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lane:
    """Everything that all steps of one expert, guided or not, have in common."""

    expert: int
    programs: Programs
    weights: DenoiserWeights
    text: TextContext
    positions: Positions
    condition: Condition


def make_lane(request: GenerationRequest, components: Components, conditions: Conditions, expert: int, is_guided: bool) -> Lane:
    """Keys and values of the text and the pictures for one expert, and all else where its programs want it."""
    programs, weights = components.programs(is_guided), components.experts[expert].weights
    branches = 2 if is_guided else 1
    bias = None if conditions.bias is None else conditions.bias[:branches]
    text = programs.prepare_text(weights, *text_arguments(components, conditions.embeddings[:branches], bias, conditions.seen))
    condition = jax.device_put(conditions.condition, programs.layout.replicated)
    return Lane(
        expert=expert,
        programs=programs,
        weights=weights,
        text=text,
        condition=condition,
        positions=programs.denoiser.positions(latent_shape(request, components)),
    )


def text_arguments(components: Components, embeddings, bias, seen) -> tuple:
    """What `prepare_text` takes after the weights."""
    return (embeddings, bias) if components.image_encoder is None else (embeddings, bias, seen)


def empty_cache(lane: Lane) -> StepCache:
    """A step cache for this lane that no step has filled."""
    return StepCache.empty(lane.programs.denoiser.describe_cache(lane.text, lane.positions))


def latent_shape(request: GenerationRequest, components: Components) -> tuple[int, int, int, int, int]:
    """The latents' shape, B C F H W."""
    return request.geometry().latent_shape(components.guided.vae.latent_channels)


def tokenize(request: GenerationRequest, components: Components) -> TextTokens:
    """The prompt's tokens, and under guidance those of the negative prompt."""
    prompts = [request.prompt, request.negative_prompt] if request.is_guided else [request.prompt]
    return components.text_encoder.tokenize(prompts)


def encode(request: GenerationRequest, components: Components, tokens: TextTokens) -> Conditions:
    """Text and pictures to what the denoiser needs."""
    programs = components.programs(request.is_guided)
    with on_devices(components.text_weights) as weights:
        embeddings = np.asarray(programs.embed_text(weights, tokens.ids, tokens.mask))
    pictures = list(_pictures(request))
    return Conditions(
        embeddings=embeddings,
        bias=tokens.bias,
        seen=_seen(components, programs, pictures),
        condition=_condition(request, components, programs, pictures),
    )


def _pictures(request: GenerationRequest) -> Iterator[Image.Image]:
    """The first frame and the last, cropped to the video's size."""
    for path in filter(None, (request.image, request.last_image)):
        yield crop_to(load_checked_image(path), request.width, request.height, request.image_focus)


def _seen(components: Components, programs: Programs, pictures: list[Image.Image]) -> np.ndarray | None:
    encoder = components.image_encoder
    if encoder is None:
        return None
    pixels = jnp.asarray(encoder.preprocess(pictures), components.dtype)
    return np.asarray(programs.embed_image(components.image_weights, pixels))


def _condition(request: GenerationRequest, components: Components, programs: Programs, pictures: list[Image.Image]) -> Condition:
    if not pictures:
        return None
    pixels = [jnp.asarray(_pixels(picture), components.dtype) for picture in pictures]
    if components.family.conditioning == "first_frame":
        latents = programs.encode_image(components.vae_weights, pixels[0])
        return FirstFrame(latents=np.asarray(latents.astype(jnp.float32)))
    latents = encode_clip(programs, components.vae_weights, request.geometry(), pixels[0], *pixels[1:])
    mask = picture_mask(request.geometry(), has_last=len(pixels) > 1)
    return ImageChannels(values=np.concatenate([mask, latents], axis=1))


def _pixels(picture: Image.Image) -> np.ndarray:
    """[1, 3, 1, height, width] in [-1, 1]."""
    return np.asarray(picture, np.float32).transpose(2, 0, 1)[None, :, None] / 127.5 - 1.0


def encode_clip(
    programs: Programs, weights: dict[str, jax.Array], geometry: Geometry, first: jax.Array, last: jax.Array | None = None
) -> np.ndarray:
    """Latents [1, C, F, H, W] float32 of a clip that is grey (0) but for its first frame and, if given, its last.

    Frames are [1, 3, 1, height, width] in [-1, 1]. Latent frame by latent frame, so that a clip of any length fits.
    """
    latents, caches = programs.encode_first(weights, first)
    pieces = [latents]
    grey = jnp.zeros((1, 3, geometry.temporal_scale, *first.shape[3:]), first.dtype)
    for index in range(1, geometry.num_latent_frames):
        ends = last is not None and index == geometry.num_latent_frames - 1
        pixels = jnp.concatenate([grey[:, :, :-1], last], axis=2) if ends else grey
        latents, caches = programs.encode_next(weights, pixels, caches)
        pieces.append(latents)
    return np.concatenate([np.asarray(piece, np.float32) for piece in pieces], axis=2)


def picture_mask(geometry: Geometry, has_last: bool) -> np.ndarray:
    """[1, 4, F, H, W] float32, 1 where a pixel frame is given; a latent frame's four pixel frames lie along the channels, and
    the first one, which stands for a single pixel frame, counts in all four.

    Source: diffusers, WanImageToVideoPipeline.prepare_latents.
    """
    _, _, frames, height, width = geometry.latent_shape(1)
    mask = np.zeros((1, geometry.temporal_scale, frames, height, width), np.float32)
    mask[:, :, 0] = 1
    if has_last:
        mask[:, -1, -1] = 1
    return mask

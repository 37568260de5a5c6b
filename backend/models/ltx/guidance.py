"""LTX-2's guidance, which combines the estimates of the clean latents from up to four guidance branches. The differences between
the prompt's branch and each other branch are multiplied by factors and added to the prompt's branch. The sum is rescaled towards
the standard deviation of the prompt's branch. Video and audio have separate factors. Source: diffusers, `LTX2Pipeline`."""

import dataclasses

import jax
import jax.numpy as jnp

from backend.sampling.solvers import StepInputs
from backend.schemas.request import GenerationRequest


@dataclasses.dataclass(frozen=True, kw_only=True)
class Branches:
    """The guidance branches that run in addition to the prompt's branch, in this order: negative prompt, perturbed, isolated. The
    perturbed branch leaves out the self-attention of one layer. In the isolated branch, video and audio do not attend to each
    other."""

    has_negative: bool
    has_perturbed: bool
    has_isolated: bool


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Scales:
    """The guidance scales of one stream (video or audio). All are scalars.

    Attributes:
        negative, isolated: a scale s for the branch of this name. The difference between the prompt's branch and this branch has
            the factor s - 1, so 1 turns the branch off.
        perturbed: the factor of the difference between the prompt's branch and the perturbed branch. 0 turns the branch off.
        rescale: 0 keeps the standard deviation of the guided estimate. 1 replaces it by the standard deviation of the prompt's
            branch."""

    negative: jax.Array
    perturbed: jax.Array
    isolated: jax.Array
    rescale: jax.Array


def make_scales(request: GenerationRequest) -> tuple[Scales, Scales]:
    negative = request.guidance[0], request.sound_guidance if request.sound_guidance is not None else request.guidance[0]
    values = zip(negative, request.perturbed_guidance, request.modality_guidance, request.guidance_rescale, strict=True)
    names = ("negative", "perturbed", "isolated", "rescale")
    video, sound = (Scales(**{name: jnp.float32(one) for name, one in zip(names, row, strict=True)}) for row in values)
    return video, sound


def guide_estimate(
    seen: jax.Array, velocities: jax.Array, branches: Branches, scales: Scales, step_inputs: StepInputs
) -> jax.Array:
    """Combine the `velocities` [branches, ...] of all guidance branches to the guided estimate [1, ...] of the clean tokens."""
    estimates = list(seen - step_inputs.sigma * velocities[:, None])
    own, rest = estimates[0], estimates[1:]
    clean = own
    if branches.has_negative:
        clean = clean + (scales.negative - 1) * (own - rest.pop(0))
    if branches.has_perturbed:
        clean = clean + scales.perturbed * (own - rest.pop(0))
    if branches.has_isolated:
        clean = clean + (scales.isolated - 1) * (own - rest.pop(0))
    spread = jnp.std(own) / jnp.where(jnp.std(clean) == 0, 1, jnp.std(clean))
    return clean * (scales.rescale * spread + 1 - scales.rescale)

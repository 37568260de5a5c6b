"""The family's model. `backend.models.model.Model` describes each method."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from backend.models.model import SOUND, VIDEO, ModelPlan, Network, PromptConditions
from backend.runtime.mesh import Layout, plan_mesh, replicated_spec
from backend.runtime.program import Program
from backend.runtime.work import Call, OnHost, Put, Zeros
from backend.sampling.solvers import start_state, take_guided_step
from backend.weights.stacked import StackedWeights, stack_weights, weights_sharding

STACKS = ("narrow.", "wide.")
SOUND_CHANNELS, SOUND_LATENTS, SAMPLES = 2, 20, 400  # channels of audio and latents, latents per second, samples per latent
TEXT_BYTES = 32


def parameter_shapes(config) -> dict[str, dict[str, tuple[int, ...]]]:
    """Return the shape of every tensor of a checkpoint, by part."""
    width, channels, layers = config["width"], config["channels"], config["layers"]
    transformer = {"into.weight": (width, channels), "out.weight": (channels, width), "colour.weight": (channels, 3)}
    transformer["sound.weight"] = (SOUND_CHANNELS, width)
    for prefix in STACKS:
        transformer |= {f"{prefix}{layer}.mix.weight": (width, width) for layer in range(layers)}
        transformer |= {f"{prefix}{layer}.shift": (width,) for layer in range(layers)}
    return {
        "transformer": transformer,
        "text_encoder": {"table": (256, channels)},
        "text_encoder_2": {"table": (256, channels)},
        "vae": {"pixels.weight": (3 * 2 * 4 * 4, channels)},
        "vocoder": {"waves": (SOUND_CHANNELS, SAMPLES)},
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class DotsStepContext:
    expert: int
    is_guided: bool
    layout: Layout
    text: Any
    colour: Any


class DotsModel:
    decode_stride = preview_stride = 2
    segment = None

    def __init__(self, plan: ModelPlan) -> None:
        self.spec, self.dtype, self._config = plan.spec, plan.dtype, plan.configs["transformer"]
        mesh = plan_mesh(len(plan.devices), heads=1, is_guided=False, fixed=plan.mesh)
        self._layout = Layout.create(mesh, plan.devices, runtime=plan.runtime)
        self.networks = tuple(self._networks())
        program = functools.partial(Program, layout=self._layout, compiler=plan.compiler)
        self._texts = {
            part: program(f"the {part.replace('_', ' ')}", _embed, key=part) for part in ("text_encoder", "text_encoder_2")
        }
        self._step = program("the denoising step", _step, key="denoise_step", donated=(1,))
        self._settle = program("the memory of a chunk", _settle, key="settle")
        self._decode_first = program("the first pixels", _decode_first, key="decode_first")
        self._decode_sound = program("the sound", _decode_sound, key="decode_sound")
        self._decode_next = program("the next pixels", _decode_next, key="decode_next")

    def _networks(self):
        for part, shapes in parameter_shapes(self._config).items():
            state = {name: jax.ShapeDtypeStruct(shape, self.dtype) for name, shape in shapes.items()}
            if part == "transformer":
                stacked = jax.eval_shape(lambda tensors: stack_weights(tensors, STACKS), state)
                described = weights_sharding(stacked, self._layout, lambda name: "whole")
                yield Network(part=part, stages=frozenset({"denoise"}), described=described, expert=0)
            else:
                own = {"encode"} if part.startswith("text") else {"encode", "denoise", "decode"}
                stages = {"decode"} if part == "vocoder" else own
                described = self._layout.describe_weights(state, replicated_spec)
                yield Network(part=part, stages=frozenset(stages), described=described)

    def layout(self, is_guided):
        return self._layout

    def latent_shapes(self, request):
        video = request.geometry().latent_shape(self._config["channels"])
        return {VIDEO: video, SOUND: (1, SOUND_CHANNELS, math.ceil(request.num_frames / request.fps * SOUND_LATENTS))}

    def notes(self, request):
        return [f"{len(request.prompt)} characters were read"]

    def prompts_for_all_programs(self, example):
        return [example]

    def encode(self, weights, request, inputs):
        prompts = [request.prompt, request.negative_prompt] if request.is_guided else [request.prompt]
        ids = np.stack([_bytes_of(prompt) for prompt in prompts])
        conditions = {}
        for part, program in self._texts.items():
            embedded = yield Call(program, (weights[part], ids))
            conditions[part] = yield OnHost(lambda xp, values: values.astype(np.float32), (embedded,))
        pictures = [np.asarray(picture, np.float32) / 255 for role in ("references", "image") for picture in inputs.get(role, ())]
        conditions["colour"] = np.mean([picture.mean((0, 1)) for picture in pictures] or [np.zeros(3)], axis=0, dtype=np.float32)
        return PromptConditions(full=conditions)

    def make_step_context(self, weights, request, conditions, step_plan, step_state):
        branches = 2 if step_plan.is_guided else 1
        texts = (conditions["text_encoder"], conditions["text_encoder_2"])
        text = yield OnHost(lambda xp, one, other: (one + other)[:branches], texts)
        colour = yield Put(conditions["colour"], self._layout.replicated)
        if step_state is None:
            place = jax.ShapeDtypeStruct((self._config["channels"],), jnp.float32, sharding=self._layout.replicated)
            step_state = yield Zeros(place)
        step_context = DotsStepContext(expert=0, is_guided=step_plan.is_guided, layout=self._layout, text=text, colour=colour)
        return step_context, step_state

    def encode_flops(self, request):
        return 0.0

    def decode_flops(self, request):
        return 2.0 * math.prod(self.latent_shapes(request)[VIDEO]) * 3 * 2 * 4 * 4

    def start(self, request, conditions, noise):
        return {name: start_state(jnp.asarray(array)) for name, array in noise.items()}

    def step(self, weights, request, step_context, states, row, step_state, index):
        states = yield Call(self._step, (weights["transformer"], states, row, step_context.text, step_context.colour, step_state))
        return states, step_state

    def commit_chunk(self, weights, request, step_context, clean, step_state):
        return (yield Call(self._settle, (clean[VIDEO], step_state)))

    def skipped_steps(self, step_state):
        return 0

    def finish(self, conditions, latents):
        yield from ()
        return latents

    def decode(self, weights, request, latents, step_state):
        if step_state is None:
            return (yield Call(self._decode_first, (weights["vae"], latents)))
        return (yield Call(self._decode_next, (weights["vae"], latents, step_state)))

    def preview(self, weights, request, latents):
        return (yield from self.decode(weights, request, latents, None))[0]

    def decode_sound(self, weights, request, latents):
        return (yield Call(self._decode_sound, (weights["vocoder"], latents)))

    def attention_lengths(self, request):
        return None


def _bytes_of(prompt: str) -> np.ndarray:
    return np.frombuffer(prompt.encode()[:TEXT_BYTES].ljust(TEXT_BYTES), np.uint8).astype(np.int32)


def _embed(weights, ids):
    return weights["table"][ids].mean(1)


def _step(weights: StackedWeights, states, row, text, colour, memory):
    """Denoise video latents [1, C, F, H, W] and audio latents [1, C, T], which depend on the video. `text` is [branches, C]."""
    state = states[VIDEO]
    given = text + weights.outer["colour.weight"] @ colour + memory
    tokens = jnp.moveaxis(state.sample, 1, -1) + given[:, None, None, None, :]
    hidden = tokens @ weights.outer["into.weight"].T
    for prefix in STACKS:
        hidden, _ = jax.lax.scan(_layer, hidden, weights.stacks[prefix])
    velocity = jnp.moveaxis(hidden @ weights.outer["out.weight"].T, -1, 1).astype(jnp.float32)
    heard = hidden.mean((1, 2, 3)) @ weights.outer["sound.weight"].T
    waves = (states[SOUND].sample + heard[..., None]).astype(jnp.float32)
    return {VIDEO: take_guided_step(state, velocity, row), SOUND: take_guided_step(states[SOUND], waves, row)}


def _layer(hidden, layer):
    return jnp.tanh(hidden @ layer["mix.weight"] + layer["shift"]), None


def _settle(clean, memory):
    return 0.5 * memory + clean.mean((0, 2, 3, 4))


def _decode_sound(weights, latents):
    """Decode audio latents [1, C, T] to samples [C, samples]."""
    return jnp.tanh(latents[0][..., None] * weights["waves"][:, None]).reshape(latents.shape[1], -1)


def _pixels(weights, latents):
    """Decode latents [1, C, F, H, W] to pixels [1, 3, 2 F, 4 H, 4 W] in [-1, 1]."""
    _, channels, frames, height, width = latents.shape
    values = jnp.einsum("pc,bcfhw->bfhwp", weights["pixels.weight"], latents.astype(weights["pixels.weight"].dtype))
    values = values.reshape(1, frames, height, width, 3, 2, 4, 4).transpose(0, 4, 1, 5, 2, 6, 3, 7)
    return jnp.tanh(values.reshape(1, 3, frames * 2, height * 4, width * 4))


def _decode_first(weights, latents):
    pixels = _pixels(weights, latents)[:, :, 1:]
    return pixels, pixels[:, :, -1:]


def _decode_next(weights, latents, last):
    """Decode a later piece. Half of the previous frame is blended in, so that pieces depend on each other."""
    pixels = 0.5 * (_pixels(weights, latents) + last)
    return pixels, pixels[:, :, -1:]

"""The denoising loop: chunk by chunk, step by step. Each step is work (`backend.runtime.work`), which runs to generate a video,
or is only described with shapes to compile ahead."""

import dataclasses
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from backend.models.common.flat_attention import BlockCounts
from backend.models.model import VIDEO, Conditions, Latents, Model, States, StepContext, StepState, Weights
from backend.pipeline.prompt_schedule import Script, VideoConditions
from backend.pipeline.run import Denoised, Described, Run
from backend.runtime.mesh import with_sharding
from backend.runtime.work import Make, OnHost, Put, Wait, Work, describe, list_calls
from backend.runtime.work import run as do
from backend.sampling.enlarging import enlarge_noisy_latents
from backend.sampling.solvers import add_noise, make_step_inputs, schedule_for_request
from backend.schemas.progressive import num_half_size_steps, request_at_first_size
from backend.schemas.request import GenerationRequest
from backend.schemas.step_plan import StepPlan, plan_steps
from backend.weights.host_offload import copy_to_devices

MOST_AHEAD = 4
"""Maximum number of steps dispatched ahead of the devices. Without a limit, steps of other TPU pipelines took 3.30 s instead of
2.69 s (published by AI-Hypercomputer/maxdiffusion, not measured here)."""


def divide_into_chunks(model: Model, request: GenerationRequest) -> list[dict[str, tuple[int, ...]]]:
    """Return the shapes of each chunk's latents by stream ("video", "sound"). A whole video may be one chunk. The last chunk may
    be shorter. All streams are divided at the same times."""
    shapes = model.latent_shapes(request)
    num_frames = shapes[VIDEO][2]
    chunks = []
    for first in range(0, num_frames, model.spec.chunk or num_frames):
        end = min(first + (model.spec.chunk or num_frames), num_frames)
        lengths = {name: shape[2] * end // num_frames - shape[2] * first // num_frames for name, shape in shapes.items()}
        chunks.append({name: (*shape[:2], lengths[name], *shape[3:]) for name, shape in shapes.items()})
    return chunks


class ChunkNoise:
    """Draws the noise of a seed for one chunk after another, float32, with PyTorch on the CPU as in diffusers. Each chunk's noise
    is drawn for the video, then for the audio. So a longer video of the same seed starts with the same noise."""

    def __init__(self, seed: int, chunks: Sequence[dict[str, tuple[int, ...]]]) -> None:
        self._seed, self.chunks = seed, chunks
        self._generator, self._drawn = torch.Generator("cpu").manual_seed(seed), 0
        self._last: Latents = {}

    def draw_chunk(self, index: int) -> Latents:
        if index < self._drawn - 1:
            self._generator.manual_seed(self._seed)
            self._drawn = 0
        while self._drawn <= index:
            shapes = self.chunks[self._drawn]
            self._last = {name: torch.randn(shape, generator=self._generator).numpy() for name, shape in shapes.items()}
            self._drawn += 1
        return self._last


def draw_initial_noise(request: GenerationRequest, model: Model) -> Latents:
    """Return the whole video's noise in the shapes that the latents have in the first step."""
    noise = ChunkNoise(request.seed, divide_into_chunks(model, request_at_first_size(request)))
    pieces = [noise.draw_chunk(index) for index in range(len(noise.chunks))]
    return {name: np.concatenate([piece[name] for piece in pieces], axis=2) for name in pieces[0]}


class Denoising:
    """The loop over chunks and steps of one video, with the states that each step passes to the next."""

    def __init__(
        self, run: Run | Described, conditions: VideoConditions, earlier: Denoised | None = None, script: Script | None = None
    ) -> None:
        """Meanwhile callers may add a prompt to `script` and its conditions to `conditions`, before its block starts."""
        request = run.request
        self._run, self._all_conditions = run, conditions
        self._weights = self._weights_at_rest = run.weights
        self._loaded_expert: int | None = None
        self._script, self._text_index = script or Script(request), 0
        self._conditions = conditions.select(0)
        self.schedule, self._plan = schedule_for_request(request), plan_steps(request, run.model.spec.boundary)
        self._chunks = divide_into_chunks(run.model, request_at_first_size(request))
        self._full_size_chunks = divide_into_chunks(run.model, request) if num_half_size_steps(request) else []
        self._noise = ChunkNoise(request.seed, [*self._chunks, *self._full_size_chunks])
        self.first_step = self.steps_done = earlier.steps_done if earlier else 0
        self._finished = list(earlier.chunks) if earlier else []
        self._states: Any = earlier.states if earlier else None
        self._step_context: Any = None
        self._context_key: tuple[int, bool, bool, bool] | None = None
        self._step_state: StepState = None
        self._num_committed = 0  # number of chunks that have been committed to the step state
        self._skipped = earlier.skipped_steps if earlier else 0
        self._earlier_blocks = earlier.block_counts if earlier else (0.0, 0.0)
        self._num_ahead = 0  # number of steps dispatched since the last wait for the devices

    @property
    def total_steps(self) -> int:
        return len(self._chunks) * self.schedule.steps

    @property
    def can_save_before_next_step(self) -> bool:
        """True if the next step certainly needs only the sampler's states, and no output of an earlier step."""
        return not self._run.request.uses_step_cache and not self._reuses_previous(self.steps_done)

    def _reuses_previous(self, step: int) -> bool:
        """Return whether this step, counted from 0 over all chunks, reuses the previous step's output by the step plan."""
        return step < self.total_steps and self._plan[step % self.schedule.steps].reuses

    def count_blocks(self) -> tuple[float, float]:
        """Return two numbers of blocks of keys, summed over the steps with Sol-Attn of all processes. The first counts the
        exactly computed blocks. The second counts blocks above the threshold that the full list of exact blocks left out."""
        exact, dropped = self._earlier_blocks
        if isinstance(self._step_state, BlockCounts):
            own = np.asarray(self._step_state.totals).tolist()
            exact, dropped = exact + own[0], dropped + own[1]
        return exact, dropped

    @property
    def skipped_steps(self) -> int:
        """The number of steps that reused an earlier step's output."""
        reused = sum(map(self._reuses_previous, range(self.steps_done)))
        return self._skipped + self._run.model.skipped_steps(self._step_state) + reused

    def current_state(self) -> Denoised:
        states = self._states if self._states is not None else do(self._initial_states(0))
        skipped, blocks = self._skipped + self._run.model.skipped_steps(self._step_state), self.count_blocks()
        done, chunks = self.steps_done, tuple(self._finished)
        return Denoised(states=states, steps_done=done, chunks=chunks, skipped_steps=skipped, block_counts=blocks)

    def copy_to_host(self) -> Denoised:
        """Return `current_state` with copies on the host, because the next step overwrites the states on the devices."""
        denoised = self.current_state()
        return dataclasses.replace(denoised, states=jax.tree.map(np.array, denoised.states))

    def current_latents(self, *, is_clean: bool) -> Latents:
        """Return the current chunk's clean estimate or last sample, float32, after the last step. The inputs' frames, such as a
        first frame, are inserted in the clean estimate, and in the first chunk's sample."""
        self._num_ahead = 0
        latents = {name: state.clean if is_clean else state.sample for name, state in self._states.items()}
        if is_clean or not self._finished:
            conditions = self._conditions_at(self._plan[max(self.steps_done - 1, 0) % self.schedule.steps])
            latents = do(self._run.model.finish(conditions, latents))
        return {name: np.asarray(array, np.float32) for name, array in latents.items()}

    def free_committed_chunk(self) -> None:
        """Free the latents of the last committed chunk. Then the loop cannot return the whole video's latents any more."""
        if self._num_committed:
            self._finished[self._num_committed - 1] = {}

    def _conditions_at(self, step_plan: StepPlan) -> Conditions:
        return self._conditions.select_size(not step_plan.is_small)

    def _request_at(self, step_plan: StepPlan) -> GenerationRequest:
        return request_at_first_size(self._run.request) if step_plan.is_small else self._run.request

    def wait_for_devices(self) -> None:
        do(self._wait_for_states())

    def warm_up(self) -> None:
        """Run one step from noise for each program that has not run yet in this process. A program's first run also loads the
        program onto the devices, and that time must not count as the first step's time."""
        model, run = self._run.model, self._run
        for key in dict.fromkeys(step_plan.context_key for step_plan in self._plan):
            # These steps together call all programs of the context. If some steps reuse the previous step's output, these are the
            # first such step and the step before it.
            own_steps = [index for index, one in enumerate(self._plan) if one.context_key == key]
            reusing = next((index for index in own_steps if self._plan[index].reuses), None)
            indices = (own_steps[0],) if reusing is None else (reusing - 1, reusing)
            step_plan = self._plan[indices[0]]
            if self._has_run(step_plan, indices):
                continue
            with run.clock.measure("compile"):
                self._load_expert(step_plan.expert)
                own, conditions = self._request_at(step_plan), self._conditions_at(step_plan)
                step_context, step_state = do(model.make_step_context(self._weights, own, conditions, step_plan, None))
                states = jax.device_put(do(self._trial_states(step_plan)), step_context.layout.replicated)
                steps = self._trial_steps(self._weights, step_context, states, step_state, indices)
                jax.block_until_ready(do(steps))
                # Free the context's keys and values, because the next step context needs the memory.
                del step_context, step_state, states, steps

    def _trial_steps(
        self, weights: Weights, step_context: StepContext, states: States, step_state: StepState, indices: Sequence[int]
    ) -> Work:
        request = self._request_at(self._plan[indices[0]])
        for index in indices:
            step_inputs = make_step_inputs(self.schedule, index, self._plan[index].guidance)
            step = self._run.model.step(weights, request, step_context, states, step_inputs, step_state, index)
            states, step_state = yield from step
        return states

    def _has_run(self, step_plan: StepPlan, indices: Sequence[int]) -> bool:
        """Return whether every program that these steps call has already run with arguments of the same shapes."""
        model, request = self._run.model, self._request_at(step_plan)
        weights = {}
        for part, own in self._weights_at_rest.items():
            described = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), own)
            weights[part] = copy_to_devices(described)
        conditions = self._conditions_at(step_plan)
        step_context, step_state = describe(model.make_step_context(weights, request, conditions, step_plan, None))
        states = with_sharding(describe(self._trial_states(step_plan)), step_context.layout.replicated)
        steps = self._trial_steps(weights, step_context, states, step_state, indices)
        return all(call.program.has_run(*call.arguments) for call in list_calls(steps))

    def step(self) -> None:
        """Dispatch the next step and return before the devices have finished it."""
        do(self.next_step())

    def next_step(self) -> Work:
        """Yield the work of the next step, which may first start a new chunk or create a step context."""
        number, index = divmod(self.steps_done, self.schedule.steps)
        model, step_plan = self._run.model, self._plan[index]
        if index == 0:
            if number > len(self._finished):
                finished = yield OnHost(
                    lambda xp, latents: {name: xp.asarray(array) for name, array in latents.items()},
                    ({name: state.sample for name, state in self._states.items()},),
                )
                self._finished.append(finished)
            self._states = yield from self._initial_states(number)
        for earlier in range(self._num_committed, number):  # all earlier chunks, if the denoising resumes from files
            self._select_conditions(earlier)
            yield from self._enter_step_context(self._plan[-1])
            self._step_state = yield from model.commit_chunk(
                self._weights, self._run.request, self._step_context, self._finished[earlier], self._step_state
            )
        self._num_committed = number
        self._select_conditions(number)
        if index > 0 and self._plan[index - 1].is_small and not step_plan.is_small:
            with self._run.clock.measure("denoise"):
                self._states = yield from self._enlarge_states(
                    {name: state.sample for name, state in self._states.items()}, index
                )
        yield from self._enter_step_context(step_plan)
        if self._num_ahead == MOST_AHEAD:
            with self._run.clock.measure("denoise"):
                yield from self._wait_for_states()
        step_inputs = make_step_inputs(self.schedule, index, step_plan.guidance)
        request = self._request_at(step_plan)
        with self._run.clock.measure("denoise"):
            step = model.step(self._weights, request, self._step_context, self._states, step_inputs, self._step_state, index)
            self._states, self._step_state = yield from step
        self.steps_done += 1
        if request.mag_cache and not self._reuses_previous(self.steps_done):
            self._step_state = None
        self._num_ahead += 1

    def _select_conditions(self, block: int) -> None:
        """Select the conditions of this block. If its prompt or action is new, the next step creates a new step context."""
        text = self._script.text_index_at(block)
        if text != self._text_index:
            own = self._all_conditions.select(text, self._run.model.spec.from_inputs)
            self._text_index, self._conditions, self._step_context = text, own, None

    def _initial_states(self, number: int) -> Work:
        noise = yield self._draw_noise(number)
        request, conditions = request_at_first_size(self._run.request), self._conditions_at(self._plan[0])
        return (yield OnHost(lambda xp, *given: self._run.model.start(request, *given), (conditions, noise)))

    def _draw_noise(self, number: int) -> Make:
        """Return the operation that draws the noise of chunk `number` of `ChunkNoise.chunks`."""
        shapes = self._noise.chunks[number]
        described = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
        return Make(lambda: self._noise.draw_chunk(number), described)

    def _enlarge_states(self, samples: Latents, index: int) -> Work:
        """Yield the work that computes the full-size states before step `index` from half-size latents. Without the schedule's
        `enlarged_at`, the model enlarges the clean latents, and noise of the step's level is added."""
        model, request, level = self._run.model, self._run.request, self.schedule.enlarged_at
        if level is None:
            samples = yield from model.finish(self._conditions_at(self._plan[index - 1]), samples)
            samples = {**samples, VIDEO: (yield from model.enlarge(self._weights, request, samples[VIDEO]))}
        noise = yield self._draw_noise(len(self._chunks))

        def mix(xp: ModuleType, latents: Latents, noise: Latents) -> Latents:
            arrays = {name: xp.asarray(array) for name, array in latents.items()}
            if level is not None:
                return {name: enlarge_noisy_latents(array, noise[name], sigma=level) for name, array in arrays.items()}
            sigma = np.float32(self.schedule.sigmas[index])
            return {name: add_noise(array, noise[name], sigma) for name, array in arrays.items()}

        samples = yield OnHost(mix, (samples, noise))
        conditions = self._conditions_at(self._plan[index])
        return (yield OnHost(lambda xp, *given: model.start(request, *given), (conditions, samples)))

    def _trial_states(self, step_plan: StepPlan) -> Work:
        """Yield the work that creates states for a trial run of this step, from noise. For a full-size step after half-size
        steps, it enlarges half-size states, to run the programs for enlarging too."""
        states = yield from self._initial_states(0)
        if step_plan.is_small or not self._full_size_chunks:
            return states
        first = next(index for index, one in enumerate(self._plan) if not one.is_small)
        return (yield from self._enlarge_states({name: state.sample for name, state in states.items()}, first))

    def _enter_step_context(self, step_plan: StepPlan) -> Work:
        """Create this step's step context, unless it is the current context. A context takes much memory, so the previous context
        is freed first. With several experts, the devices must first have finished all steps that use it. Otherwise the copies of
        matrices on each chip (see `Layout.copied`) would exist for two experts at a time."""
        if self._step_context is not None and self._context_key == step_plan.context_key:
            self._load_expert(step_plan.expert)  # `free_expert` may have freed the weights, but not the step context
            return
        if self._step_context is not None and self._run.model.spec.num_experts > 1:
            with self._run.clock.measure("denoise"):
                yield from self._wait_for_states()
        model, request, step_state = self._run.model, self._request_at(step_plan), self._step_state
        if not self._run.is_described:
            self._skipped += model.skipped_steps(step_state)
        self._step_context = self._step_state = None
        with self._run.clock.measure("encode"):
            self._load_expert(step_plan.expert)
            work = model.make_step_context(self._weights, request, self._conditions_at(step_plan), step_plan, step_state)
            del step_state
            self._step_context, self._step_state = yield from work
            self._context_key = step_plan.context_key
        if self._states is not None:
            self._states = yield Put(self._states, self._step_context.layout.replicated)

    def _load_expert(self, expert: int) -> None:
        """Copy this expert's weights to the devices, if they are on the host. Free the copy of another expert first."""
        if self._loaded_expert != expert:
            self.free_expert()
            self._weights = load_expert(self._run.model, self._weights_at_rest, expert)
            self._loaded_expert = expert

    def free_expert(self) -> None:
        """Free the copy of an expert whose weights are on the host. The next step makes a new copy."""
        self._weights, self._loaded_expert = self._weights_at_rest, None

    def _wait_for_states(self) -> Work:
        yield Wait(self._states)
        self._num_ahead = 0


def load_expert(model: Model, weights: Weights, expert: int) -> Weights:
    """Return the weights, with a copy of this expert on the devices if its weights are on the host."""
    parts = [network.part for network in model.networks if network.expert == expert]
    return {**weights, **{part: copy_to_devices(weights[part]) for part in parts}}


def should_warm_up(model: Model, request: GenerationRequest) -> bool:
    """Return whether each program should run once before the first step. Its first run takes longer than later runs on
    accelerators, but not on a CPU."""
    return model.layout(request.is_guided).platform != "cpu"


def can_run_concurrently(model: Model, request: GenerationRequest) -> bool:
    """Return whether two of this video's programs may run at once. Not on a CPU that simulates devices: they would block."""
    devices = model.layout(request.is_guided).mesh.devices.ravel()
    return len(devices) == 1 or devices[0].platform != "cpu"

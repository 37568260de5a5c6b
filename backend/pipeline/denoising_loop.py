"""The denoising loop: chunk by chunk, step by step.

Each step is work (`backend.runtime.work`). To generate a video, the work is executed. To compile ahead, the work is only
described: its arrays are replaced by their shapes.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
import torch

from backend.models.common.flat_attention import BlockCounts
from backend.models.model import VIDEO, Conditions, Latents, Model, States, StepContext, StepState, Weights
from backend.pipeline.chunks import Chunk, divide_into_chunks
from backend.pipeline.prompt_schedule import Script, VideoConditions
from backend.pipeline.run import Denoised, Described, Run
from backend.runtime.mesh import with_sharding
from backend.runtime.work import Make, OnHost, Put, Wait, Work, describe, list_calls
from backend.runtime.work import run as do
from backend.sampling.enlarging import enlarge_noisy_latents
from backend.sampling.solvers import add_noise, make_step_inputs, schedule_for_request
from backend.schemas.progressive import num_half_size_steps, request_at_first_size
from backend.schemas.request import GenerationRequest
from backend.schemas.step_plan import StepPlan, plan_steps, relative_step_costs
from backend.weights.host_offload import copy_to_devices, describe_on_devices

MOST_AHEAD = 4
"""Maximum number of steps dispatched ahead of the devices. Without a limit, steps of other TPU pipelines took 3.30 s instead of
2.69 s (published by AI-Hypercomputer/maxdiffusion, not measured here)."""


class ChunkNoise:
    """Draws the noise of a seed for one chunk after another, float32. As in diffusers, PyTorch draws the noise on the CPU.

    Each chunk's noise is drawn stream by stream: for the video, then for the audio. If a video has several chunks, a longer video
    of the same seed starts with the same noise.
    """

    def __init__(self, seed: int, chunks: Sequence[Chunk]) -> None:
        self._seed, self._chunks = seed, chunks
        self._generator, self._drawn = torch.Generator("cpu").manual_seed(seed), 0
        self._last: Latents = {}

    def draw_chunk(self, index: int) -> Latents:
        if index < self._drawn - 1:
            self._generator.manual_seed(self._seed)
            self._drawn = 0
        while self._drawn <= index:
            shapes = self._chunks[self._drawn].shapes
            self._last = {name: torch.randn(shape, generator=self._generator).numpy() for name, shape in shapes.items()}
            self._drawn += 1
        return self._last


def draw_initial_noise(request: GenerationRequest, model: Model) -> Latents:
    """Return the whole video's noise in the shapes that the latents have in the first step."""
    chunks = list(divide_into_chunks(model, request_at_first_size(request)))
    noise = ChunkNoise(request.seed, chunks)
    pieces = [noise.draw_chunk(chunk.index) for chunk in chunks]
    return {name: np.concatenate([piece[name] for piece in pieces], axis=2) for name in pieces[0]}


class Denoising:
    """The loop over chunks and steps of one video, with the states that each step passes to the next."""

    def __init__(
        self,
        run: Run | Described,
        conditions: VideoConditions,
        resumed_from: Denoised | None = None,
        script: Script | None = None,
    ) -> None:
        """Create the loop. While it runs, callers may add a prompt to `script` and the prompt's conditions to `conditions`,
        before the block that uses the prompt starts."""
        request = run.request
        self._run, self._all_conditions = run, conditions
        self._weights = self._weights_at_rest = run.weights
        self._loaded_expert: int | None = None
        self._script, self._text_index = script or Script(request), 0
        self._conditions = conditions.select(0)
        self.schedule, self._plan = schedule_for_request(request), plan_steps(request, run.model.spec.boundary)
        self._chunks = list(divide_into_chunks(run.model, request_at_first_size(request)))
        self._full_size_chunks = list(divide_into_chunks(run.model, request)) if num_half_size_steps(request) else []
        self._noise = ChunkNoise(request.seed, [*self._chunks, *self._full_size_chunks])
        self.first_step = self.steps_done = resumed_from.steps_done if resumed_from else 0
        self._finished = list(resumed_from.chunks) if resumed_from else []
        self._states: States | None = resumed_from.states if resumed_from else None
        self._step_context: StepContext | None = None
        self._context_key: tuple[int, bool, bool, bool] | None = None
        self._step_state: StepState = None
        self._num_committed = 0  # number of chunks that have been committed to the step state
        self._skipped = resumed_from.skipped_steps if resumed_from else 0
        self._earlier_blocks = resumed_from.block_counts if resumed_from else (0.0, 0.0)
        self._num_ahead = 0  # number of steps dispatched since the last wait for the devices

    @property
    def total_steps(self) -> int:
        return len(self._chunks) * self.schedule.steps

    @property
    def step_costs(self) -> list[float]:
        """The relative cost of each step of the video, as estimated by `relative_step_costs`."""
        return relative_step_costs(self._run.request) * len(self._chunks)

    @property
    def uses_step_cache(self) -> bool:
        """True if the request uses the step cache, with which a step can reuse the output of an earlier step.

        A saved state does not contain this output, so a resumed run must start with a step that does not reuse it. Whether a step
        reuses the output is known only after the step. Therefore the caller copies the sampler's states before each step, and
        saves the copy only if the step computed its own output.
        """
        return self._run.request.uses_step_cache

    @property
    def can_save_before_next_step(self) -> bool:
        """True if it is known beforehand that the next step needs only the sampler's states, and no output of an earlier step."""
        return not self.uses_step_cache and not self._reuses_previous(self.steps_done)

    def _reuses_previous(self, step: int) -> bool:
        """Return whether the step plan makes this step reuse the previous step's output. `step` counts from 0 over all chunks."""
        return step < self.total_steps and self._plan[step % self.schedule.steps].reuses

    @property
    def num_sparse_steps(self) -> int:
        """The number of steps with Sol-Attn so far, in all chunks."""
        return sum(self._plan[step % self.schedule.steps].is_sparse for step in range(self.steps_done))

    def count_blocks(self) -> tuple[float, float]:
        """Return two numbers of blocks of keys, summed over the steps with Sol-Attn of this process and of earlier processes.

        The first number counts the blocks that attention computed exactly. The second counts the blocks above Sol-Attn's
        threshold that were approximated, because the list of exact blocks was full.
        """
        exact, dropped = self._earlier_blocks
        if isinstance(self._step_state, BlockCounts):
            own = np.asarray(self._step_state.totals).tolist()
            exact, dropped = exact + own[0], dropped + own[1]
        return exact, dropped

    @property
    def skipped_steps(self) -> int:
        """Return the number of steps that reused an earlier step's output."""
        reused = sum(map(self._reuses_previous, range(self.steps_done)))
        return self._skipped + self._run.model.skipped_steps(self._step_state) + reused

    def current_state(self) -> Denoised:
        """Return the sampler's states and the finished chunks after the steps so far."""
        states = self._states if self._states is not None else do(self._initial_states(self._chunks[0]))
        skipped = self._skipped + self._run.model.skipped_steps(self._step_state)
        return Denoised(
            states=states,
            steps_done=self.steps_done,
            chunks=tuple(self._finished),
            skipped_steps=skipped,
            block_counts=self.count_blocks(),
        )

    def copy_to_host(self) -> Denoised:
        """Return `current_state` with copies of the sampler's states on the host. The next step overwrites the states on the
        devices."""
        denoised = self.current_state()
        return dataclasses.replace(denoised, states=jax.tree.map(np.array, denoised.states))

    def current_sample(self) -> Latents:
        """Return the current chunk's latents after the last step. In the first chunk, insert frames from the inputs, such as a
        first frame. Waits for the step."""
        self._num_ahead = 0
        sample = {name: state.sample for name, state in self._current_states.items()}
        return _as_float32(sample if self._finished else do(self._run.model.finish(self._current_conditions(), sample)))

    def free_committed_chunk(self) -> None:
        """Free the latents of the last committed chunk. After this call, the loop cannot return the whole video's latents."""
        if self._num_committed:
            self._finished[self._num_committed - 1] = {}

    def clean_estimate(self) -> Latents:
        """Return the clean estimate of the current chunk, with frames from the inputs, such as a first frame, inserted. Waits for
        the last step."""
        self._num_ahead = 0
        clean = {name: state.clean for name, state in self._current_states.items()}
        return _as_float32(do(self._run.model.finish(self._current_conditions(), clean)))

    @property
    def _current_states(self) -> States:
        assert self._states is not None, "`_start_chunk` comes first"
        return self._states

    @property
    def _current_step_context(self) -> StepContext:
        assert self._step_context is not None, "`_enter_step_context` comes first"
        return self._step_context

    def _current_conditions(self) -> Conditions:
        """Return the conditions for the current latent size, full or half."""
        return self._conditions_at(self._plan[max(self.steps_done - 1, 0) % self.schedule.steps])

    def _conditions_at(self, step_plan: StepPlan) -> Conditions:
        return self._conditions.select_size(not step_plan.is_small)

    def _request_at(self, step_plan: StepPlan) -> GenerationRequest:
        return request_at_first_size(self._run.request) if step_plan.is_small else self._run.request

    def wait_for_devices(self) -> None:
        """Wait until the devices have finished the last step."""
        do(self._wait_for_states())

    def warm_up(self) -> None:
        """Run one step from noise for each program that has not run yet in this process, and drop the results.

        Each expert has one program for guided and one for unguided steps. A program's first run also loads the program onto the
        devices, and that time must not count as the first step's time.
        """
        model, run = self._run.model, self._run
        for indices in _first_steps_of_each_context(self._plan):
            step_plan = self._plan[indices[0]]
            if self._has_run(step_plan, indices):
                continue
            with run.clock.measure("compile"):
                self._load_expert(step_plan.expert)
                own, conditions = self._request_at(step_plan), self._conditions_at(step_plan)
                step_context, step_state = do(model.make_step_context(self._weights, own, conditions, step_plan, None))
                states = jax.device_put(do(self._trial_states(step_plan)), step_context.layout.replicated)
                steps = self._trial_steps(self._weights, own, step_context, states, step_state, indices)
                jax.block_until_ready(do(steps))
                # Free the context's keys and values, because the next step context needs the memory.
                del step_context, step_state, states, steps

    def _trial_steps(
        self,
        weights: Weights,
        request: GenerationRequest,
        step_context: StepContext,
        states: States,
        step_state: StepState,
        indices: Sequence[int],
    ) -> Work:
        """Yield the work of the steps `indices` one after another, for a trial run."""
        for index in indices:
            step_inputs = make_step_inputs(self.schedule, index, self._plan[index].guidance)
            states, step_state = yield from self._run.model.step(
                weights, request, step_context, states, step_inputs, step_state, index
            )
        return states

    def _has_run(self, step_plan: StepPlan, indices: Sequence[int]) -> bool:
        """Return whether every program that the steps `indices` call has already run with arguments of the same shapes."""
        model, request = self._run.model, self._request_at(step_plan)
        weights = {part: describe_on_devices(own) for part, own in self._weights_at_rest.items()}
        step_context, step_state = describe(
            model.make_step_context(weights, request, self._conditions_at(step_plan), step_plan, None)
        )
        states = with_sharding(describe(self._trial_states(step_plan)), step_context.layout.replicated)
        steps = self._trial_steps(weights, request, step_context, states, step_state, indices)
        return all(call.program.has_run(*call.arguments) for call in list_calls(steps))

    def step(self) -> None:
        """Dispatch the next step and return before the devices have finished it. After the end of a chunk, the next chunk
        starts."""
        do(self.next_step())

    def next_step(self) -> Work:
        """Yield the work of the next step. Before the step, start a new chunk or create a step context if needed."""
        number, index = divmod(self.steps_done, self.schedule.steps)
        if index == 0:
            yield from self._start_chunk(self._chunks[number])
        yield from self._commit_earlier_chunks(self._chunks[number])
        self._select_conditions(number)
        step_plan = self._plan[index]
        if index > 0 and self._plan[index - 1].is_small and not step_plan.is_small:
            yield from self._change_to_full_size(index)
        yield from self._enter_step_context(step_plan)
        if self._num_ahead == MOST_AHEAD:
            with self._run.clock.measure("denoise"):
                yield from self._wait_for_states()
        step_inputs = make_step_inputs(self.schedule, index, step_plan.guidance)
        with self._run.clock.measure("denoise"):
            model, request = self._run.model, self._request_at(step_plan)
            step = model.step(
                self._weights, request, self._current_step_context, self._current_states, step_inputs, self._step_state, index
            )
            self._states, self._step_state = yield from step
        self.steps_done += 1
        if request.mag_cache and not self._reuses_previous(self.steps_done):
            self._step_state = None
        self._num_ahead += 1

    def _start_chunk(self, chunk: Chunk) -> Work:
        """Append the previous chunk's latents to the finished chunks, and start this chunk from its noise."""
        if chunk.index > len(self._finished):
            samples = {name: state.sample for name, state in self._current_states.items()}
            self._finished.append((yield OnHost(_as_arrays, (samples,))))
        self._states = yield from self._initial_states(chunk)

    def _commit_earlier_chunks(self, chunk: Chunk) -> Work:
        """Commit the previous chunk to the step state, or all earlier chunks if the denoising resumes from files."""
        for number in range(self._num_committed, chunk.index):
            clean = self._finished[number]
            self._select_conditions(number)
            yield from self._enter_step_context(self._plan[-1])
            model, request = self._run.model, self._run.request
            self._step_state = yield from model.commit_chunk(
                self._weights, request, self._current_step_context, clean, self._step_state
            )
        self._num_committed = chunk.index

    def _select_conditions(self, block: int) -> None:
        """Select the conditions of this block. If the block has another prompt or action than the previous block, drop the step
        context, so that the next step creates a new context."""
        text = self._script.text_index_at(block)
        if text != self._text_index:
            own = self._all_conditions.select(text, self._run.model.spec.from_inputs)
            self._text_index, self._conditions, self._step_context = text, own, None

    def _initial_states(self, chunk: Chunk) -> Work:
        """Yield the work that creates the states before this chunk's first step."""
        noise = yield self._draw_noise(chunk, chunk.index)
        request, conditions = request_at_first_size(self._run.request), self._conditions_at(self._plan[0])
        return (yield from self._start_states(request, conditions, noise))

    def _draw_noise(self, chunk: Chunk, number: int) -> Make:
        """Return the operation that draws the noise of a chunk. `number` is the chunk's index among all chunks of
        `ChunkNoise`."""
        described = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in chunk.shapes.items()}
        return Make(lambda: self._noise.draw_chunk(number), described)

    def _start_states(self, request: GenerationRequest, conditions: Conditions, latents: Latents) -> Work:
        return (yield OnHost(lambda xp, *given: self._run.model.start(request, *given), (conditions, latents)))

    def _change_to_full_size(self, index: int) -> Work:
        """Yield the work that replaces half-size states by full-size states before step `index`."""
        samples = {name: state.sample for name, state in self._current_states.items()}
        with self._run.clock.measure("denoise"):
            self._states = yield from self._enlarge_states(samples, index)

    def _enlarge_states(self, samples: Latents, index: int) -> Work:
        """Yield the work that computes the full-size states before step `index` from half-size latents.

        If the schedule's `enlarged_at` is set, the noisy latents are enlarged directly. Otherwise the model enlarges the clean
        latents. Then noise is added, so that the latents have the noise level of step `index`.
        """
        model, request, level = self._run.model, self._run.request, self.schedule.enlarged_at
        if level is None:
            samples = yield from model.finish(self._conditions_at(self._plan[index - 1]), samples)
            samples = {**samples, VIDEO: (yield from model.enlarge(self._weights, request, samples[VIDEO]))}
        noise = yield self._draw_noise(self._full_size_chunks[0], len(self._chunks))
        mix = functools.partial(_add_noise, sigma=self.schedule.sigmas[index])
        if level is not None:
            mix = functools.partial(_enlarge_noisy, sigma=level)
        samples = yield OnHost(mix, (samples, noise))
        return (yield from self._start_states(request, self._conditions_at(self._plan[index]), samples))

    def _trial_states(self, step_plan: StepPlan) -> Work:
        """Yield the work that creates the sampler states for a trial run of this step, from noise.

        For a full-size step after half-size steps, the work creates half-size states and enlarges them. So the trial run also
        runs the programs that enlarge states.
        """
        states = yield from self._initial_states(self._chunks[0])
        if step_plan.is_small or not self._full_size_chunks:
            return states
        first = next(index for index, one in enumerate(self._plan) if not one.is_small)
        return (yield from self._enlarge_states({name: state.sample for name, state in states.items()}, first))

    def _enter_step_context(self, step_plan: StepPlan) -> Work:
        """Create this step's step context, unless it is the current context.

        A context takes much memory, so the previous context is freed first. With several experts, the devices must first have
        finished all steps that use the previous context. Otherwise the copies of matrices that each chip has during an expert's
        steps (see `Layout.copied`) would exist for two experts at a time.
        """
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
    """Return the weights, with a copy of this expert on the devices if its weights are on the host. The copy exists until the
    caller drops the result."""
    parts = [network.part for network in model.networks if network.expert == expert]
    return {**weights, **{part: copy_to_devices(weights[part]) for part in parts}}


def should_warm_up(model: Model, request: GenerationRequest) -> bool:
    """Return whether each program should run once before the first step. A program's first run takes longer than later runs on
    accelerators, but not on a CPU."""
    return model.layout(request.is_guided).platform != "cpu"


def _first_steps_of_each_context(plan: Sequence[StepPlan]) -> Iterator[tuple[int, ...]]:
    """Yield, for each step context, the indices of steps that together call all of the context's programs.

    Usually this is only the context's first step. If some of the context's steps reuse the previous step's output, the indices
    are the first such step and the step before it. Contexts differ by expert, guidance, size and attention.
    """
    context_keys = dict.fromkeys(step_plan.context_key for step_plan in plan)
    for step_context in context_keys:
        own = [index for index, step_plan in enumerate(plan) if step_plan.context_key == step_context]
        reusing = next((index for index in own if plan[index].reuses), None)
        yield (own[0],) if reusing is None else (reusing - 1, reusing)


def _add_noise(xp: ModuleType, clean: Latents, noise: Latents, *, sigma: float) -> Latents:
    return {name: add_noise(xp.asarray(array), noise[name], np.float32(sigma)) for name, array in clean.items()}


def _enlarge_noisy(xp: ModuleType, latents: Latents, noise: Latents, *, sigma: float) -> Latents:
    return {name: enlarge_noisy_latents(xp.asarray(array), noise[name], sigma=sigma) for name, array in latents.items()}


def _as_arrays(xp: ModuleType, latents: Latents) -> Latents:
    return {name: xp.asarray(array) for name, array in latents.items()}


def _as_float32(latents: Latents) -> Latents:
    return {name: np.asarray(array, np.float32) for name, array in latents.items()}

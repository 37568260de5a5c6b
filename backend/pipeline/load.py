"""Load a model with its weights onto the devices, or describe the model without weights, also for devices that this machine does
not have."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import math
import platform
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from backend.checkpoints.checkpoint import Checkpoint
from backend.checkpoints.fingerprints import fingerprint_files
from backend.checkpoints.speed import Speed
from backend.errors import ModelError, Stopped
from backend.models import find_family
from backend.models.model import STAGES, Model, ModelPlan, Network, Stage
from backend.models.spec import Family
from backend.pipeline.background_warm_up import BackgroundWarmUp
from backend.pipeline.loaded import LoadedModel
from backend.pipeline.model_cache import ModelCache
from backend.pipeline.model_files import ModelFiles, find_lora_file, open_model
from backend.runtime.context import RuntimeContext
from backend.runtime.executables import ExecutableFolders
from backend.runtime.program import Compiler
from backend.schemas.events import Event, Loading
from backend.schemas.request import GenerationRequest
from backend.settings import from_environment
from backend.weights.cached_network import CachedNetwork, Content
from backend.weights.expert import Expert
from backend.weights.host_offload import copy_to_devices, device_bytes
from backend.weights.lora import ScaledLora, read_lora
from backend.weights.read import LoadProgress, Part, check_flat, check_stacked, checkpoint_shapes, load_flat
from backend.weights.stacked import StackedWeights
from presets import LoraChoice, Preset

EXPERT_NAMES = ("high", "low")  # names of the experts of a model with two experts: for high, then for low noise
LIBRARIES = ("jax", "jaxlib", "torch", "torchax", "diffusers", "transformers")


def load(
    preset: Preset,
    model: str | None,
    on_event: Callable[[Event], None],
    mesh: Mapping[str, int | None] | None = None,
    executables: Path | None = None,
    stages: Collection[Stage] = STAGES,
    files: ModelFiles | None = None,
    request: GenerationRequest | None = None,
    model_cache: ModelCache | None = None,
    is_used: bool = True,
    runtime: RuntimeContext | None = None,
) -> LoadedModel:
    """Load the preset's model, or the checkpoint `model` (a folder or a Hub id) in its place.

    Args:
        on_event: called with events that report the progress, such as the bytes read.
        mesh: maps names of mesh axes to fixed sizes.
        executables: a folder of precompiled programs.
        stages: the stages that will run. Networks that no stage uses are not read.
        files: the checkpoint, if the caller has already opened it.
        request: its programs are prepared while the weights are read.
        model_cache: networks in this cache are not read again. The new model is added to the cache.
        is_used: False if the model is loaded for a later job. It must then fit on the devices beside the current model.
        runtime: the context of this process, by default a new one.

    Raises: Stopped if not `is_used` and the model does not fit beside the current model. ModelError if the checkpoint is missing,
    incomplete or of another kind. RequestError if the devices or the model do not allow the mesh. Any error that `on_event`
    raises.
    """
    use_compilation_cache()
    model_cache, runtime = model_cache or ModelCache(), runtime or RuntimeContext()
    files = files or open_model(preset, model, on_event)
    fingerprints = fingerprint_files(files.paths)  # before reading, so that a later check detects a change during reading
    folders = [folder for folder in (executables, from_environment().executables_dir) if folder]
    plan = ModelPlan(
        spec=_with_boundary(files, preset),
        configs=files.checkpoint.configs,
        folder=files.checkpoint.folder,
        devices=jax.devices(),
        mesh=mesh or {},
        stages=frozenset(stages),
        dtype=jnp.dtype(preset.dtype),
        compiler=ExecutableFolders(folders),
        quantize=preset.quantize,
        runtime=runtime,
    )
    instance = files.family.model()(plan)
    with BackgroundWarmUp(instance, request, on_event):
        networks = _load_networks(files.checkpoint, files.family, instance, preset, on_event, stages, model_cache, is_used)
    versions = {"python": platform.python_version()} | {name: importlib.metadata.version(name) for name in LIBRARIES}
    loaded = LoadedModel(
        source=files.source,
        family=files.family,
        model=instance,
        networks=networks,
        versions=versions,
        reserve_program_memory=model_cache.reserve_program_memory,
        runtime=runtime,
    )
    model_cache.add((files.source, preset.weight_format), loaded, fingerprints, is_used=is_used)
    return loaded


def describe_model(
    preset: Preset,
    devices: Sequence[jax.Device],
    compiler: Compiler,
    mesh: Mapping[str, int | None] | None = None,
    folder: Path | None = None,
    num_copies: int | None = None,
    runtime: RuntimeContext | None = None,
) -> Model:
    """Return the preset's model on these devices without weights, for compiling its programs.

    If the checkpoint's `folder` is given, the tokenizer is read from there. `num_copies` is a number of matrices in each layer:
    every chip has a whole copy of these matrices. None selects a number that fits into the memory.

    Raises: RequestError for a mesh that the devices or the model do not allow.
    """
    family, spec = find_family(preset)
    plan = ModelPlan(
        spec=spec,
        configs=preset.network_configs(),
        folder=folder,
        devices=devices,
        mesh=mesh or {},
        stages=frozenset(STAGES),
        dtype=jnp.dtype(preset.dtype),
        compiler=compiler,
        quantize=preset.quantize,
        num_copies=num_copies,
        runtime=runtime or RuntimeContext(),
    )
    return family.model()(plan)


def _with_boundary(files: ModelFiles, preset: Preset) -> Any:
    """Return the spec of the checkpoint. If the checkpoint states no boundary between experts, the preset's boundary is set."""
    spec = files.spec
    return spec if spec.boundary is not None else dataclasses.replace(spec, boundary=preset.boundary)


def _load_networks(
    checkpoint: Checkpoint,
    family: Family,
    model: Model,
    preset: Preset,
    on_event: Callable[[Event], None],
    stages: Collection[Stage],
    model_cache: ModelCache,
    is_used: bool,
) -> dict[str, CachedNetwork]:
    """Load the networks of these stages and merge the preset's own LoRAs. Return the networks by part of the checkpoint. All
    files are checked before the first file is read."""
    networks = [network for network in model.networks if network.stages & set(stages)]
    parts = {network.part: Part(checkpoint, network.part, network.renamed, network.tied) for network in networks}
    sizes = {network.part: _check_network(network, parts[network.part]) for network in networks}
    contents = {network.part: Content.of_part(parts[network.part], network.described, network.arranged) for network in networks}
    cached_networks = {part: network for part, content in contents.items() if (network := model_cache.find_network(content))}
    missing = [network for network in networks if network.part not in cached_networks]
    needed = sum(map(_network_bytes, missing)), _bytes_per_device(missing)
    if is_used:
        model_cache.make_room_for(cached_networks.values(), *needed)
    elif not model_cache.try_make_room_beside(cached_networks.values(), *needed):
        raise Stopped
    progress = LoadProgress(sum(sizes[network.part] for network in missing), _add_speed(on_event))
    loaded = {}
    for network in networks:
        content, part = contents[network.part], parts[network.part]
        if network.part in cached_networks:
            loaded[network.part] = cached_networks[network.part]
        elif not isinstance(network.described, StackedWeights):
            weights = load_flat(part, network.described, progress)
            loaded[network.part] = CachedNetwork(content, weights if network.arrange is None else network.arrange(weights))
        else:
            assert network.expert is not None, "only transformers are stacked"
            loras = _read_loras(network.expert, preset.loras, checkpoint_shapes(network.described), family, on_event)
            loaded[network.part] = CachedNetwork(content, expert=Expert(part, network.described, progress, loras))
    return loaded


def _check_network(network: Network, part: Part) -> int:
    """Check that a network's files contain the network's tensors, and return the bytes to read. Raises: ModelError if the files
    contain other tensors."""
    described = network.described
    stacked = isinstance(described, StackedWeights)
    names = check_stacked(part, described) if stacked else check_flat(part, described)
    return sum(part.places[name].num_bytes for name in names)


def _network_bytes(network: Network) -> int:
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(network.program_weights))


def _bytes_per_device(networks: Sequence[Network]) -> int:
    """Return how many bytes of each device reading these networks needs. A transformer that is later moved to the host is on the
    devices while it is read."""
    at_rest = {network.part: device_bytes(network.program_weights, network.tied) for network in networks}
    loading = (
        device_bytes(copy_to_devices(network.described)) - at_rest[network.part]
        for network in networks
        if network.expert is not None
    )
    return sum(at_rest.values()) + max(loading, default=0)


def _add_speed(on_event: Callable[[Event], None]) -> Callable[[Event], None]:
    """Return a function that calls `on_event`, and adds the current reading speed to each event that reports reading."""
    speed = Speed()

    def report(event: Event) -> None:
        is_reading = isinstance(event, Loading) and event.bytes_total
        on_event(dataclasses.replace(event, bytes_per_second=speed(event.bytes_done)) if is_reading else event)

    return report


def merge_loras(
    loaded: LoadedModel,
    choices: Sequence[LoraChoice],
    on_event: Callable[[Event], None],
    control_downscale: int | None = None,
) -> list[str]:
    """Merge these LoRAs into the experts, and remove all other LoRAs. For each LoRA, return a sentence that states which keys of
    the LoRA's file were used.

    `control_downscale` is the factor by which a control clip is smaller than the video, None without a control clip. Reads and
    writes nothing if the same LoRAs are already merged. Raises: ModelError, also for a LoRA that was trained with control clips
    of another size; RequestError; any error of `on_event`.
    """
    notes = []
    for index, expert in enumerate(loaded.experts):
        loras = _read_loras(index, choices, expert.shapes, loaded.family, on_event)
        if control_downscale is not None:
            _check_downscale(loras, control_downscale)
        which = f" (the {EXPERT_NAMES[index]}-noise expert)" if len(loaded.experts) > 1 else ""
        notes += [lora.file.describe_keys() + which for lora in loras]
        expert.merge(loras, on_event)
    return notes


def _check_downscale(loras: Sequence[ScaledLora], given: int) -> None:
    for lora in loras:
        trained = lora.file.control_downscale
        if trained not in (None, given):
            what = f"The LoRA {lora.file.name} was trained with control clips made {trained} times smaller,"
            raise ModelError(what, f"and the request has control_downscale={given}", f"set control_downscale to {trained}")


def _read_loras(
    index: int,
    choices: Sequence[LoraChoice],
    shapes: Mapping[str, tuple[int, ...]],
    family: Family,
    on_event: Callable[[Event], None],
) -> tuple[ScaledLora, ...]:
    """Read the chosen LoRAs that change expert `index`. LoRAs with a scale of 0 are left out."""
    chosen = [choice for choice in choices if choice.expert in ("both", EXPERT_NAMES[index]) and choice.scale]
    return tuple(
        ScaledLora(file=read_lora(find_lora_file(choice, on_event), shapes, index, family.lora_names), scale=choice.scale)
        for choice in chosen
    )


def use_compilation_cache() -> None:
    """Store compiled programs on disk, so that a second start compiles nothing."""
    folder = from_environment().compiled_dir
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)

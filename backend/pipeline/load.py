"""Load a model with its weights onto the devices, or describe it without weights, also for devices that this machine lacks."""

import contextlib
import dataclasses
import importlib.metadata
import logging
import math
import platform
import threading
from collections import deque
from collections.abc import Collection, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from backend.checkpoints.fingerprints import fingerprint_files
from backend.checkpoints.speed import Speed
from backend.errors import ModelError, Stopped
from backend.models import find_family
from backend.models.model import STAGES, Model, ModelPlan, Network, Stage
from backend.models.spec import Family
from backend.pipeline.loaded import LoadedModel
from backend.pipeline.model_cache import ModelCache
from backend.pipeline.model_files import ModelFiles, OnEvent, find_lora_file, open_model
from backend.pipeline.warm_up import warm_up
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

logger = logging.getLogger(__name__)


def load(
    preset: Preset,
    model: str | None,
    on_event: OnEvent,
    mesh: Mapping[str, int | None] | None = None,
    executables: Path | None = None,
    stages: Collection[Stage] = STAGES,
    files: ModelFiles | None = None,
    request: GenerationRequest | None = None,
    model_cache: ModelCache | None = None,
    is_used: bool = True,
    runtime: RuntimeContext | None = None,
) -> LoadedModel:
    """Load the preset's model, or the checkpoint `model` (a folder or a Hub id) in its place. `mesh` maps names of mesh axes to
    fixed sizes. `executables` is a folder of precompiled programs. Networks that none of the `stages` uses are not read. `files`
    is the checkpoint, if it is already open. The programs of `request` are prepared while the weights are read. The model is
    added to `model_cache`, whose networks are not read again. If not `is_used`, the model must fit on the devices beside the
    current model.

    Raises: Stopped if it does not fit beside the current model. ModelError if the checkpoint is missing, incomplete or of another
    kind. RequestError if the devices or the model do not allow the mesh. Any error of `on_event`.
    """
    use_compilation_cache()
    model_cache, runtime = model_cache or ModelCache(), runtime or RuntimeContext()
    files = files or open_model(preset, model, on_event)
    fingerprints = fingerprint_files(files.paths)  # before reading, so that a later check detects a change during reading
    folders = [folder for folder in (executables, from_environment().executables_dir) if folder]
    spec: Any = files.spec
    plan = ModelPlan(
        spec=spec if spec.boundary is not None else dataclasses.replace(spec, boundary=preset.boundary),
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
    needed_networks = [network for network in instance.networks if network.stages & set(stages)]
    with warm_up_in_background(instance, request, on_event):
        networks = _load_networks(files, needed_networks, preset, on_event, model_cache, is_used)
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
    """Return the preset's model on these devices without weights, for compiling its programs. The tokenizer is read from
    `folder`, the checkpoint, if it is given. Every chip has a whole copy of `num_copies` matrices of each layer, None for as many
    as fit into the memory. Raises: RequestError for a mesh that the devices or the model do not allow."""
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


@contextlib.contextmanager
def warm_up_in_background(model: Model, request: GenerationRequest | None, on_event: OnEvent) -> Generator[None]:
    """Prepare the request's programs in a thread while the `with` block reads weights, because reading waits for the disk. At the
    end of the block, wait for the program in progress. After an error in the block the model is not used, so do not wait, which
    could take minutes. A program that fails here is prepared again later, and that attempt reports the error."""
    if request is None:
        yield
        return
    is_closed, last_events = threading.Event(), deque[Event](maxlen=1)

    def prepare_programs() -> None:
        try:
            for event in warm_up(model, request):
                last_events.append(event)
                if is_closed.is_set():
                    return
        except Exception as error:  # the later warm-up raises the same error, with an explanation
            logger.info("A program could not be prepared in the background (%s)", error)

    thread = threading.Thread(target=prepare_programs, name="background-warm-up", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_closed.set()
    if thread.is_alive() and last_events:
        on_event(last_events[-1])
    thread.join()


def _load_networks(
    files: ModelFiles, networks: Sequence[Network], preset: Preset, on_event: OnEvent, cache: ModelCache, is_used: bool
) -> dict[str, CachedNetwork]:
    """Load these networks, by part of the checkpoint, with the preset's own LoRAs, after all files are checked."""
    parts = {network.part: Part(files.checkpoint, network.part, network.renamed, network.tied) for network in networks}
    sizes = {}  # bytes to read. The checks raise ModelError if the files contain other tensors
    for network in networks:
        described, part = network.described, parts[network.part]
        is_stacked = isinstance(described, StackedWeights)
        names = check_stacked(part, described) if is_stacked else check_flat(part, described)
        sizes[network.part] = sum(part.places[name].num_bytes for name in names)
    contents = {network.part: Content.of_part(parts[network.part], network.described, network.arranged) for network in networks}
    cached_networks = {part: network for part, content in contents.items() if (network := cache.find_network(content))}
    missing = [network for network in networks if network.part not in cached_networks]
    leaves = [leaf for network in missing for leaf in jax.tree.leaves(network.program_weights)]
    at_rest = {network.part: device_bytes(network.program_weights, network.tied) for network in missing}
    # A transformer that is later moved to the host is on the devices while it is read.
    experts = [network for network in missing if network.expert is not None]
    loading = [device_bytes(copy_to_devices(network.described)) - at_rest[network.part] for network in experts]
    num_bytes = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)
    needed = num_bytes, sum(at_rest.values()) + max(loading, default=0)
    if is_used:
        cache.make_room_for(cached_networks.values(), *needed)
    elif not cache.try_make_room_beside(cached_networks.values(), *needed):
        raise Stopped
    speed = Speed()

    def report(event: Event) -> None:
        is_reading = isinstance(event, Loading) and event.bytes_total
        on_event(dataclasses.replace(event, bytes_per_second=speed(event.bytes_done)) if is_reading else event)

    progress = LoadProgress(sum(sizes[network.part] for network in missing), report)
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
            loras = _read_loras(network.expert, preset.loras, checkpoint_shapes(network.described), files.family, on_event)
            loaded[network.part] = CachedNetwork(content, expert=Expert(part, network.described, progress, loras))
    return loaded


def merge_loras(
    loaded: LoadedModel, choices: Sequence[LoraChoice], on_event: OnEvent, control_downscale: int | None = None
) -> list[str]:
    """Merge these LoRAs into the experts, and remove all other LoRAs. For each LoRA, return a sentence about the used keys of its
    file. `control_downscale` is the factor by which a control clip is smaller than the video, None without a control clip. Reads
    and writes nothing if the same LoRAs are already merged. Raises: ModelError, also for a LoRA that was trained with control
    clips of another size; RequestError; any error of `on_event`."""
    notes = []
    for index, expert in enumerate(loaded.experts):
        loras = _read_loras(index, choices, expert.shapes, loaded.family, on_event)
        for lora in loras if control_downscale is not None else ():
            trained = lora.file.control_downscale
            if trained not in (None, control_downscale):
                what = f"The LoRA {lora.file.name} was trained with control clips made {trained} times smaller,"
                rule = f"and the request has control_downscale={control_downscale}"
                raise ModelError(what, rule, f"set control_downscale to {trained}")
        which = f" (the {EXPERT_NAMES[index]}-noise expert)" if len(loaded.experts) > 1 else ""
        notes += [lora.file.describe_keys() + which for lora in loras]
        expert.merge(loras, on_event)
    return notes


def _read_loras(
    index: int, choices: Sequence[LoraChoice], shapes: Mapping[str, tuple[int, ...]], family: Family, on_event: OnEvent
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

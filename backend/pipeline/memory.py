"""Compute the bytes that a model and its programs need on each device, from the compiler's memory analysis."""

from collections import Counter
from collections.abc import Hashable, Iterable

import jax

from backend.models.model import Model, Stage
from backend.pipeline.warm_up import STAGES, calls
from backend.runtime.work import Call
from backend.schemas.request import GenerationRequest
from backend.weights.host_offload import copy_to_devices, device_bytes
from backend.weights.stacked import StackedWeights


def program_bytes(compiled: jax.stages.Compiled) -> int | None:
    """Return the bytes of one device that a running program uses, None if the compiler does not report them."""
    memory = compiled.memory_analysis()
    if memory is None:
        return None
    kept = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    return kept + memory.temp_size_in_bytes + memory.generated_code_size_in_bytes


def max_bytes_beside_weights(model: Model, calls: Iterable[Call]) -> int:
    """Return how many bytes of one device the largest program uses while it runs, besides the model's weights. Programs that are
    not compiled, or whose compiler reports no memory, count as 0."""
    needed: dict[Hashable, int] = {}
    for call in calls:
        variant = call.program.variant_key(*call.arguments)
        if variant in needed:
            continue
        executable = call.program.executable(*call.arguments)
        whole = program_bytes(executable) if executable is not None else None
        at_rest = sum(weight_bytes(model, among=call.arguments).values())
        needed[variant] = max(0, (whole or 0) - at_rest)
    return max(needed.values(), default=0)


def weight_bytes(model: Model, among: object = None) -> dict[str, int]:
    """Return how many bytes of each device the weights take, by part of the checkpoint, 0 for networks on the host. With the tree
    `among`, such as a program's arguments, only weights in that tree are counted."""
    return {network.part: device_bytes(network.program_weights, network.tied, among) for network in model.networks}


def unread_bytes(model: Model, request: GenerationRequest) -> dict[str, int]:
    """Return, by program key, how many bytes of each device are taken by arrays that the program does not read. If the
    transformers are stored on the host, a copy of one transformer is on the devices until the denoising ends. Meanwhile, other
    programs run, such as the decoder of previews. In a live video, all stages take turns. Therefore the past blocks' keys and the
    decoder's state also exist while the programs of other stages run."""
    experts = [network.described for network in model.networks if network.expert is not None]
    most = max((device_bytes(copy_to_devices(expert)) - device_bytes(expert) for expert in experts), default=0)
    unread = Counter[str]()
    if most:
        for call in calls(model, request, ("denoise",)):
            if not any(isinstance(argument, StackedWeights) for argument in call.arguments):
                unread[call.program.key] = most
    if request.resolved_preset.live:
        # The bytes of each device that a program's arguments take, without weights, by stage and program. If a program is called
        # with different arguments, the largest size counts.
        by_stage: dict[Stage, dict[str, int]] = {stage: {} for stage in STAGES}
        for stage, sizes in by_stage.items():
            for call in calls(model, request, (stage,)):
                placed = [leaf for leaf in jax.tree.leaves(call.arguments) if getattr(leaf, "sharding", None) is not None]
                size = device_bytes(placed) - sum(weight_bytes(model, among=placed).values())
                sizes[call.program.key] = max(size, sizes.get(call.program.key, 0))
        states = {stage: max(sizes.values(), default=0) for stage, sizes in by_stage.items() if stage != "encode"}
        for stage, sizes in by_stage.items():
            # The state of the stage "denoise" includes the copy of the transformer.
            unread |= Counter(dict.fromkeys(sizes, sum(states.values()) - states.get(stage, 0)))
    return dict(unread)

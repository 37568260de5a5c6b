"""How many bytes a model and its programs need on each device, by what the compiler says."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

import jax

from backend.models.model import Model
from backend.runtime.work import Call
from backend.weights.host_offload import device_bytes


def program_bytes(compiled: jax.stages.Compiled) -> int | None:
    """All that a program needs while it runs; None if its compiler does not say."""
    memory = compiled.memory_analysis()
    if memory is None:
        return None
    kept = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    return kept + memory.temp_size_in_bytes + memory.generated_code_size_in_bytes


def needed_beside_weights(model: Model, calls: Iterable[Call]) -> int:
    """The most bytes that one of these programs takes of a device while it runs, beside the model's weights at rest; programs
    that are not compiled, or whose compiler does not say it, count nothing."""
    needed: dict[Hashable, int] = {}
    for call in calls:
        variant = call.program.variant(*call.arguments)
        if variant in needed:
            continue
        executable = call.program.executable(*call.arguments)
        whole = program_bytes(executable) if executable is not None else None
        at_rest = sum(weight_bytes(model, among=call.arguments).values())
        needed[variant] = max(0, (whole or 0) - at_rest)
    return max(needed.values(), default=0)


def weight_bytes(model: Model, among: Any = None) -> dict[str, int]:
    """Bytes at rest, by network, 0 for one that is parked on the host; with `among`, of those that are in these arguments."""
    return {network.part: device_bytes(network.at_rest, network.tied, among) for network in model.networks}

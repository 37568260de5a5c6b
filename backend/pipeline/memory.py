"""How many bytes a model and its programs need on each device, by what the compiler says."""

from __future__ import annotations

from typing import Any

import jax

from backend.families.model import Model
from backend.weights.parking import device_bytes


def program_bytes(compiled: jax.stages.Compiled) -> int | None:
    """All that a program needs while it runs; None if its compiler does not say."""
    memory = compiled.memory_analysis()
    if memory is None:
        return None
    kept = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    return kept + memory.temp_size_in_bytes + memory.generated_code_size_in_bytes


def weight_bytes(model: Model, among: Any = None) -> dict[str, int]:
    """Bytes at rest, by network, 0 for one that is parked on the host; with `among`, of those that are in these arguments."""
    return {network.part: device_bytes(network.at_rest, network.tied, among) for network in model.networks}

"""The JAX devices that a worker reports, and descriptions of TPU slices for compiling on machines without a TPU."""

import jax
from jax.experimental import topologies

from backend.schemas.worker import Device

# Slices whose host has fewer chips than libtpu assumes. The values are the real numbers of chips along the host's three axes.
CHIPS_OF_A_HOST = {"v6e:1x1": (1, 1, 1), "v5e:1x1": (1, 1, 1)}


def device_facts() -> list[Device]:
    """Describe the JAX devices of all hosts. Only devices of this host can have memory figures."""
    facts = []
    for device in jax.devices():
        stats = (device.process_index == jax.process_index() and device.memory_stats()) or {}
        memory = {name: stats.get(name) for name in ("bytes_in_use", "bytes_limit")}
        facts.append(Device(name=str(device), kind=device.device_kind, **memory))
    return facts


def described_devices(topology: str) -> list[jax.Device]:
    """Describe the chips of a slice such as "v6e:2x4". libtpu compiles programs for them on a machine without a TPU."""
    bounds = CHIPS_OF_A_HOST.get(topology)
    options = {"chips_per_host_bounds": bounds} if bounds else {}
    return topologies.get_topology_desc(platform="tpu", topology_name=topology, **options).devices

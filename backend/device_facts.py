"""The devices of this process, as the worker reports them. Changes nothing on them."""

import jax

from backend.worker_facts import Device


def device_facts() -> list[Device]:
    """JAX's devices with their memory, where they tell."""
    return [_facts(device) for device in jax.local_devices()]


def _facts(device: jax.Device) -> Device:
    told = device.memory_stats() or {}
    return Device(name=str(device), kind=device.device_kind, bytes_in_use=told.get("bytes_in_use"),
                  bytes_limit=told.get("bytes_limit"))  # fmt: skip

"""Divide one machine's cores or TPU chips among several workers. Reads only device files, because jax would reserve the chips."""

import os
from dataclasses import dataclass
from pathlib import Path

from backend.errors import RequestError

FIRST_PORT = 8476  # libtpu's default; each process on one machine needs a different port

# The shape of a worker's block of chips, by (number of chips of the machine, number of chips of the worker).
# Source: jax 0.10.2, jax/_src/test_multiprocess.py.
_BLOCKS = {
    (1, 1): "1,1,1", (4, 1): "1,1,1", (4, 2): "1,2,1", (4, 4): "2,2,1", (8, 1): "1,1,1", (8, 4): "2,2,1", (8, 8): "2,4,1",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The cores and devices of one machine. `chips` are libtpu's chip numbers. `has_gpu` is True if jax may use an NVIDIA GPU."""

    cores: tuple[int, ...]
    chips: tuple[int, ...] = ()
    has_gpu: bool = False


@dataclass(frozen=True, kw_only=True)
class Share:
    """The cores or the chips that one worker may use. If both tuples are empty, the worker uses the whole machine."""

    cores: tuple[int, ...] = ()
    chips: tuple[int, ...] = ()
    block: str = ""
    port: int = 0

    def variables(self) -> dict[str, str]:
        """Return the environment that limits a worker to its share. Torch and its libraries read the OMP and MKL variables."""
        if not self.chips:
            threads = str(len(self.cores))
            cores = ",".join(map(str, self.cores))
            return {"STUDIO_CORES": cores, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads} if self.cores else {}
        return {  # libtpu treats the worker's chips as a slice with one process
            "TPU_VISIBLE_CHIPS": ",".join(map(str, self.chips)),
            "TPU_CHIPS_PER_PROCESS_BOUNDS": self.block,
            "TPU_PROCESS_BOUNDS": "1,1,1",
            "TPU_PROCESS_ADDRESSES": f"localhost:{self.port}",
            "TPU_PROCESS_PORT": str(self.port),
            "CLOUD_TPU_TASK_ID": "0",
            "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # without it, libtpu allows one process per machine
        }


def shares_of(machine: Machine, count: int) -> tuple[Share, ...]:
    """Divide the machine into `count` shares. A single share is empty, which means the whole machine. Raises: RequestError."""
    total, what = (len(machine.chips), "TPU chip") if machine.chips else (len(machine.cores), "core")
    limit = f"{total} {what}{'' if total == 1 else 's'}"
    if machine.chips:
        allowed = sorted(total // size for all_chips, size in _BLOCKS if all_chips == total) or [1]
    elif machine.has_gpu:
        allowed, limit = [1], "its GPU is not shared"
    else:
        allowed = list(range(1, total + 1))
    if count not in allowed:
        nearest = max((number for number in allowed if number <= count), default=1)
        listed = " or ".join(filter(None, (", ".join(map(str, allowed[:-1])), str(allowed[-1]))))
        rule = f"from 1 to {allowed[-1]}" if len(allowed) == allowed[-1] > 2 else listed
        raise RequestError(f"workers={count}", f"must be {rule} on this machine ({limit})", f"give --workers {nearest}")
    if count == 1:
        return (Share(),)
    if not machine.chips:
        return tuple(Share(cores=_part(machine.cores, number, count)) for number in range(count))
    chips, block = machine.chips, _BLOCKS[len(machine.chips), len(machine.chips) // count]
    return tuple(Share(chips=_part(chips, number, count), block=block, port=FIRST_PORT + number) for number in range(count))


def find_machine(devices: Path, platforms: str, visible_chips: str) -> Machine:
    """Describe this machine, from the folder /dev and the values of JAX_PLATFORMS and TPU_VISIBLE_CHIPS ("" if not set)."""
    has_affinity = hasattr(os, "sched_getaffinity")
    cores = tuple(sorted(os.sched_getaffinity(0)) if has_affinity else range(os.cpu_count() or 1))
    if platforms.split(",")[0] == "cpu":
        return Machine(cores=cores)
    # The device files of TPU chips are accel0, accel1 ... (v2 to v5e), or vfio's numbered groups (v5p and later).
    chips = tuple(range(len(list(devices.glob("accel[0-9]*")) or list(devices.glob("vfio/[0-9]*")))))
    if chips and visible_chips:
        chips = split_numbers(visible_chips)
    return Machine(cores=cores, chips=chips, has_gpu=any((devices / name).exists() for name in ("nvidia0", "dxg")))


def split_numbers(text: str) -> tuple[int, ...]:
    """Parse numbers separated by commas, such as "0,1"."""
    return tuple(int(number) for number in text.split(",") if number)


def _part(numbers: tuple[int, ...], number: int, count: int) -> tuple[int, ...]:
    """Split `numbers` into `count` contiguous parts and return part `number`. Sizes of parts differ by at most one."""
    return numbers[len(numbers) * number // count : len(numbers) * (number + 1) // count]

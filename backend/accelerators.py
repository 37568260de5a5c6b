"""Find the accelerators of this machine in the system's files. Imports no jax, which would reserve the chips."""

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from backend.files import read_text

Platform = Literal["tpu", "gpu"]

# PCI ids of vendors and of TPU chips. Network cards can have Google's vendor id too, so the chip's id must also match.
# Source: jax 0.10.2, jax/_src/hardware_utils.py.
_GOOGLE, _NVIDIA = "0x1ae0", "0x10de"
_TPU_CHIPS = {"0x0027": "v3", "0x005e": "v4", "0x0062": "v5p", "0x0063": "v5e", "0x006f": "v6e", "0x0076": "tpu7x"}
# A CPU counts as fast enough for denoising steps of at most this many floating-point operations. Two cores take a few seconds
# for such a step.
MOST_FLOPS_ON_A_CPU = 1e12
# The prefix of the PCI classes of graphics cards (VGA, 3D). The audio device of a graphics card has another class.
_DISPLAY_CLASS = "0x03"
_TPU_TYPES = {"v5litepod": "v5e"}  # maps names in Google's machine types to chip names


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    """All devices of one kind on a machine.

    `chip` is a TPU's generation, such as "v6e", or a GPU's model, "" if not known. `files` are the device files, through
    which programs use the devices. `has_driver` is False if the driver of a GPU is missing.
    """

    platform: Platform
    count: int
    chip: str = ""
    files: tuple[str, ...] = ()
    has_driver: bool = True

    def __str__(self) -> str:
        """Return a text such as "8 TPU v6e chips"."""
        words = ("TPU", self.chip, "chip") if self.platform == "tpu" else (self.chip or "NVIDIA GPU",)
        return f"{self.count} {' '.join(filter(None, words))}{'s' if self.count > 1 else ''}"

    @property
    def verb(self) -> str:
        return "are" if self.count > 1 else "is"


@dataclass(frozen=True, kw_only=True)
class Holder:
    """A process that has a device open."""

    pid: int
    name: str


def find_accelerators(root: Path, tpu_type: str = "") -> tuple[Accelerator, ...]:
    """Find the TPU chips and NVIDIA GPUs of the machine whose files are under `root`.

    `tpu_type` is the value of TPU_ACCELERATOR_TYPE, such as "v6e-8", "" if it is not set. Google's images and clusters set it.
    """
    on_bus = [
        tuple(read_text(device / name).strip() for name in ("vendor", "device", "class"))
        for device in sorted((root / "sys/bus/pci/devices").glob("*"))
    ]
    found = []

    named = tpu_type.partition("-")[0]
    chips = [_TPU_CHIPS[device] for vendor, device, _ in on_bus if vendor == _GOOGLE and device in _TPU_CHIPS]
    files = _device_files(root, "dev", r"accel\d+")
    # Other kinds of devices have files in /dev/vfio too. These files count only if the bus or the machine type shows a TPU.
    if not files and (chips or named):
        files = _device_files(root, "dev/vfio", r"\d+")
    if chips or files:
        chip = chips[0] if chips else _TPU_TYPES.get(named, named)
        found.append(Accelerator(platform="tpu", count=len(chips) or len(files), chip=chip, files=files))

    num_cards = sum(vendor == _NVIDIA and kind.startswith(_DISPLAY_CLASS) for vendor, _, kind in on_bus)
    known = sorted((root / "proc/driver/nvidia/gpus").glob("*/information"))
    files = _device_files(root, "dev", r"nvidia\d+|dxg")  # /dev/dxg is the GPU in Windows' subsystem for Linux
    if count := len(known) or len(files) or num_cards:
        model = re.search(r"^Model:\s*(.+?)\s*$", read_text(known[0]) if known else "", re.MULTILINE)
        has_driver = bool(known or files) or (root / "proc/driver/nvidia/version").exists()
        chip = model[1] if model else ""
        found.append(Accelerator(platform="gpu", count=count, chip=chip, files=files, has_driver=has_driver))
    return tuple(found)


def find_holders(root: Path, files: Sequence[str]) -> tuple[Holder, ...]:
    """Find the processes that have any of these device files open, if this user may see them."""
    holders = []
    for folder in sorted((root / "proc").glob("[0-9]*"), key=lambda folder: int(folder.name)):
        with contextlib.suppress(OSError):  # the process has ended, or belongs to another user
            if any(str(link.readlink()) in files for link in (folder / "fd").iterdir()):
                holders.append(Holder(pid=int(folder.name), name=read_text(folder / "comm").strip() or "?"))
    return tuple(holders)


def _device_files(root: Path, folder: str, pattern: str) -> tuple[str, ...]:
    """Return the paths (without `root`) of the files in `folder` whose names match, sorted by the number in the name."""
    names = [path.name for path in (root / folder).glob("*") if re.fullmatch(pattern, path.name)]
    return tuple(f"/{folder}/{name}" for name in sorted(names, key=lambda name: (len(name), name)))

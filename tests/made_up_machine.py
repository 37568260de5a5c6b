"""Made-up machines: a folder with the system files of a TPU VM, of a machine with a GPU, or of a machine without either."""

from pathlib import Path

NETWORK_CARD = ("0x1ae0", "0x0042", "0x020000")  # Google's network card, on every VM of Google Cloud
TPU_IDS = {"v5e": "0x0063", "v5p": "0x0062", "v6e": "0x006f", "tpu7x": "0x0076"}


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def plain_machine(root: Path) -> Path:
    """Write a machine without accelerators, with a network card and a process."""
    add_pci(root, NETWORK_CARD)
    write(root / "proc/1/comm", "init")
    (root / "proc/1/fd").mkdir(exist_ok=True)
    (root / "dev").mkdir(exist_ok=True)
    return root


def tpu_machine(root: Path, chip: str = "v6e", count: int = 8, files: str | None = "vfio") -> Path:
    """Write a TPU VM.

    `files` is "vfio" or "accel", depending on its generation, or None if a container hides the device files.
    """
    plain_machine(root)
    for _ in range(count):
        add_pci(root, ("0x1ae0", TPU_IDS[chip], "0x120000"))
    for number in range(count if files else 0):
        write(root / "dev" / (f"vfio/{number}" if files == "vfio" else f"accel{number}"), "")
    if files == "vfio":
        write(root / "dev/vfio/vfio", "")
    return root


def gpu_machine(root: Path, *, driver: bool = True, files: bool = True) -> Path:
    """Write a machine with one H200, with or without its driver and device files."""
    plain_machine(root)
    add_pci(root, ("0x10de", "0x2335", "0x030200"))
    add_pci(root, ("0x10de", "0x22a3", "0x068000"))  # NVSwitch, which computes nothing
    if driver:
        write(root / "proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.1")
    if driver and files:
        write(root / "proc/driver/nvidia/gpus/0000:01:00.0/information", "Model: \t\t NVIDIA H200\nIRQ: 1")
        write(root / "dev/nvidia0", "")
    return root


def add_pci(root: Path, device: tuple[str, str, str]) -> None:
    place = root / "sys/bus/pci/devices"
    place.mkdir(parents=True, exist_ok=True)
    folder = place / f"0000:00:{len(list(place.iterdir())):02x}.0"
    for name, value in zip(("vendor", "device", "class"), device, strict=True):
        write(folder / name, value)


def open_in(root: Path, file: str, pid: int = 4321, name: str = "python3") -> None:
    """Add a process that has this device file open."""
    write(root / f"proc/{pid}/comm", name)
    (root / f"proc/{pid}/fd").mkdir()
    (root / f"proc/{pid}/fd/7").symlink_to(file)

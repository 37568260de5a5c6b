"""Read the memory of this machine or container. Imports no library."""

import re
from pathlib import Path

from backend.files import read_text


def machine_memory(root: Path = Path("/")) -> tuple[int, int] | None:
    """Return the total and the free bytes of the machine. None if the system does not report them."""
    rows = dict(re.findall(r"^(\w+):\s+(\d+) kB", read_text(root / "proc/meminfo"), re.MULTILINE))
    if "MemAvailable" not in rows:
        return None
    return int(rows["MemTotal"]) * 1024, int(rows["MemAvailable"]) * 1024


def free_memory(root: Path = Path("/")) -> int:
    """Return the free bytes of the machine, or of the container if they are fewer. 0 if the system reports neither.

    Memory that the system uses to cache files counts as free.
    """
    machine = machine_memory(root)
    free = [machine[1]] if machine else []
    group = root / "sys/fs/cgroup"
    most, used = read_text(group / "memory.max").strip(), read_text(group / "memory.current").strip()
    if most.isdigit() and used.isdigit():
        files = re.search(r"^inactive_file (\d+)$", read_text(group / "memory.stat"), re.MULTILINE)
        free.append(max(0, int(most) - int(used) + (int(files[1]) if files else 0)))
    return min(free, default=0)

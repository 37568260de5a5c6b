"""The memory of this machine, or of the container that we run in. Imports no library."""

import re
from pathlib import Path


def memory_of_machine(root: Path = Path("/")) -> tuple[int, int] | None:
    """All bytes, and those that are free for use; None if the system does not say."""
    rows = dict(re.findall(r"^(\w+):\s+(\d+) kB", _text(root / "proc/meminfo"), re.MULTILINE))
    if "MemAvailable" not in rows:
        return None
    return int(rows["MemTotal"]) * 1024, int(rows["MemAvailable"]) * 1024


def free_memory(root: Path = Path("/")) -> int:
    """Bytes that are free for use, of the machine's and of what the container's limit leaves; 0 if the system does not say.
    What the system keeps of files that were read counts as free."""
    machine = memory_of_machine(root)
    free = [machine[1]] if machine else []
    group = root / "sys/fs/cgroup"
    most, used = _text(group / "memory.max").strip(), _text(group / "memory.current").strip()
    if most.isdigit() and used.isdigit():
        files = re.search(r"^inactive_file (\d+)$", _text(group / "memory.stat"), re.MULTILINE)
        free.append(max(0, int(most) - int(used) + (int(files[1]) if files else 0)))
    return min(free, default=0)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""

"""The checks of `doctor` that need no jax. The values to check are arguments, so that tests can produce each fault."""

import errno
import platform
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx2

from backend.catalog.weights_here import has_weights
from backend.engine.disk import RESERVE_BYTES, format_gigabytes, needed_bytes
from backend.host_memory import machine_memory
from backend.imports import installed_version
from backend.schemas.check import Check
from backend.schemas.request import example_request
from backend.settings import PROJECT_FOLDER, Settings, module_environment
from backend.workers.bad_versions import find_bad_versions
from backend.workers.unused_accelerator import Surroundings, pinned_version
from presets import Preset, list_presets
from presets.needs import find_needs

PYTHONS = ((3, 11), (3, 13))  # the oldest and newest Python for which all requirements are released
# `memory_check` warns if fewer bytes are free. The demo model's worker and its server take 1.3 GB (docs/performance.md).
LEAST_MEMORY = 3 * 2**30
HUB_SECONDS = 4.0


def python_check(found: tuple[int, int] = sys.version_info[:2]) -> Check:
    words, (oldest, newest) = ".".join(map(str, found)), PYTHONS
    if oldest <= found <= newest:
        return Check(name="Python", state="ok", found=words)
    allowed = f"{words}; the studio runs on {'.'.join(map(str, oldest))} to {'.'.join(map(str, newest))}"
    return Check(name="Python", state="fault", found=allowed, fix="`uv venv --python 3.11 .venv`, then install again")


def packages_check(installer: str, requirements: Path = PROJECT_FOLDER / "requirements.txt") -> Check:
    """Check that the packages have the versions in the requirements. Build labels, as in "2.13.0+cpu", are ignored."""
    wanted = re.findall(r"^([\w.-]+)==(\S+)", requirements.read_text("utf-8"), re.MULTILINE)
    found = {name: installed_version(name, "missing") for name, _ in wanted}
    others = [f"{name} {found[name]}, not {number}" for name, number in wanted if found[name].partition("+")[0] != number]
    if not others:
        return Check(name="packages", state="ok", found=f"{len(wanted)}, as {requirements.name} names them")
    differences = f"{', '.join(others[:4])}{' and more' if len(others) > 4 else ''}"
    return Check(name="packages", state="warning", found=differences, fix=f"`{installer} -r {requirements.name}`")


def tpu_pair_check(here: Surroundings, python: str = platform.python_version()) -> Check:
    """Check the versions of jax, jaxlib and libtpu, if the machine has a TPU.

    A libtpu other than the required version is a warning, other mismatches are faults.
    """
    jax, jaxlib, libtpu = (here.versions.get(name, "") for name in ("jax", "jaxlib", "libtpu"))
    tpu = next((one for one in here.accelerators if one.platform == "tpu"), None)
    found = f"jax {jax}, jaxlib {jaxlib}, libtpu {libtpu or 'not installed'}"
    fix = f"`{here.installer} -r requirements-tpu.txt`"
    if tpu is None:
        return Check(name="TPU runtime", state="skipped", found=f"{found}; this machine has no TPU")
    if jax != jaxlib or not libtpu:
        return Check(name="TPU runtime", state="fault", found=f"{found}: they do not belong together", fix=fix)
    if bad := find_bad_versions({**here.versions, "python": python}, tpu.chip):
        return Check(name="TPU runtime", state="fault", found=f"{found}: {bad.reason}", fix=fix)
    if libtpu != pinned_version("libtpu"):
        found += f": our programs were compiled with libtpu {pinned_version('libtpu')}"
        return Check(name="TPU runtime", state="warning", found=found, fix=fix)
    return Check(name="TPU runtime", state="ok", found=found)


def memory_check(root: Path = Path("/")) -> Check:
    memory = machine_memory(root)
    if memory is None:
        return Check(name="host memory", state="skipped", found="the system does not report it")
    total, free = memory
    found = f"{format_gigabytes(free)} of {format_gigabytes(total)} are free"
    if free >= LEAST_MEMORY:
        return Check(name="host memory", state="ok", found=found)
    return Check(name="host memory", state="warning", found=found, fix="end other programs, or take a larger machine")


def disk_check(folder: Path, preset: Preset) -> Check:
    needed, free = needed_bytes(example_request(preset)) + RESERVE_BYTES, shutil.disk_usage(_nearest_existing(folder)).free
    found = f"{format_gigabytes(free)} are free, a video of {preset.name} needs {format_gigabytes(needed)} while it is made"
    if free >= needed:
        return Check(name="disk", state="ok", found=found)
    return Check(name="disk", state="fault", found=found, fix="free space, or choose a folder on another disk with --data-dir")


def folder_check(name: str, folder: Path, option: str) -> Check:
    """Check that the folder can be written, or created. `option` names what changes the folder."""
    place = _nearest_existing(folder)
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"\0" * 4096)
    except OSError as error:
        reason = "the disk is full" if error.errno == errno.ENOSPC else f"cannot be written ({error.strerror})"
        return Check(name=name, state="fault", found=f"{folder}: {reason}", fix=f"choose a writable folder with {option}")
    return Check(name=name, state="ok", found=f"{folder}" if place == folder else f"{folder}, not created yet")


def port_check(port: int = 7860, host: str = "127.0.0.1") -> Check:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            found = f"{port} cannot be taken ({error.strerror})"
            return Check(name="port", state="warning", found=found, fix=f"`python app.py --port {port + 1}`")
    return Check(name="port", state="ok", found=f"{port} is free")


def presets_check() -> Check:
    every = list_presets()
    here = [preset.name for preset in every if has_weights(preset)]
    return Check(name="presets", state="ok", found=f"{len(here)} of {len(every)} need no download: {', '.join(here) or 'none'}")


def weights_check(preset: Preset, cache: Path) -> Check:
    """Check that the preset's checkpoint and LoRAs are on this machine, or that the Hub's cache has space for the weights."""
    if has_weights(preset):
        return Check(name="checkpoint", state="ok", found=f"{preset.model_source} is here")
    needs, free = find_needs(preset.model), shutil.disk_usage(_nearest_existing(cache)).free
    found, fix = f"{preset.model_source} is not here yet", f"`python app.py models download {preset.name}`"
    if needs is None:
        return Check(name="checkpoint", state="warning", found=found, fix=fix)
    found += f": its weights need at least {format_gigabytes(needs.weight_bytes)}, and {format_gigabytes(free)} are free"
    if free >= needs.weight_bytes + RESERVE_BYTES:
        return Check(name="checkpoint", state="warning", found=found, fix=fix)
    fix = f"free space in {cache}, or choose a folder on another disk with HF_HOME"
    return Check(name="checkpoint", state="fault", found=found, fix=fix)


def hub_check(address: str, *, is_needed: bool) -> Check:
    """Check that the Hub answers. If no download is needed, an unreachable Hub is not a fault."""
    state = "fault" if is_needed else "skipped"
    rest = "" if is_needed else ": nothing needs it here"
    if not address:
        fix = "leave HF_HUB_OFFLINE out" if is_needed else ""
        return Check(name="Hub", state=state, found=f"is not used, because HF_HUB_OFFLINE is set{rest}", fix=fix)
    try:
        answer = httpx2.head(address, timeout=HUB_SECONDS, follow_redirects=False)
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        found = f"{address} does not answer ({error or type(error).__name__}){rest}"
        fix = "allow network access to it, or copy the checkpoint here and give its folder with --model" if is_needed else ""
        return Check(name="Hub", state=state, found=found, fix=fix)
    return Check(name="Hub", state="ok", found=f"{address} answers ({answer.status_code})")


def sandbox_check(module: str = "backend.media.system_calls") -> Check:
    """Check that the sandbox can filter system calls, in a separate process, because a filter cannot be removed."""
    tried = subprocess.run([sys.executable, "-m", module], env=module_environment(), capture_output=True, check=False)
    if tried.returncode == 0:
        return Check(name="sandbox", state="ok", found="uploaded files are opened without network access")
    found = "this kernel cannot filter system calls: uploaded files are opened with limits of memory, time and files only"
    return Check(name="sandbox", state="warning", found=found, fix="use a Linux kernel with seccomp, on x86-64 or ARM64")


def machine_checks(settings: Settings, here: Surroundings, preset: Preset, hub: tuple[str, Path]) -> list[Check]:
    """Run all checks. `hub` is the Hub's address and its cache folder."""
    address, cache = hub
    weights = weights_check(preset, cache)
    return [
        python_check(),
        packages_check(here.installer),
        tpu_pair_check(here),
        memory_check(),
        disk_check(settings.data_dir, preset),
        folder_check("data folder", settings.data_dir, "--data-dir"),
        folder_check("compiled programs", settings.cache_dir, "STUDIO_CACHE_DIR"),
        folder_check("Hub's cache", cache, "HF_HOME"),
        sandbox_check(),
        port_check(),
        presets_check(),
        weights,
        hub_check(address, is_needed=weights.state != "ok"),
    ]


def _nearest_existing(folder: Path) -> Path:
    return next(one for one in (folder, *folder.parents) if one.exists())

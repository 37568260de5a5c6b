"""Explain why an accelerator of this machine is not used, and how to fix it. Imports neither jax nor torch."""

import importlib.util
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Self

from backend.accelerators import Accelerator, Holder, find_holders
from backend.imports import installed_version
from backend.schemas.worker import Device, UnusedAccelerator
from backend.settings import PROJECT_FOLDER, accelerators_here, chosen_platforms
from backend.workers.bad_versions import RELEASED_WITH

PACKAGES = ("jax", "jaxlib", "libtpu", "numpy", "jax-cuda13-plugin", "jax-cuda12-plugin")
LOCK_FILE = "/tmp/libtpu_lockfile"  # libtpu's lock for the whole machine
_TAIL_BYTES = 8_000  # number of bytes read from the end of a log, enough for libtpu's last message and the stack trace after it
_GPU_NAMES = {"gpu", "cuda", "rocm"}  # names of jax's GPU platforms
_TPU_REQUIREMENTS = "requirements-tpu.txt"


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """The facts about this machine that decide whether jax can use an accelerator. `platforms` is JAX_PLATFORMS, empty if jax
    chooses. `versions` has the installed `PACKAGES`. `installer` is the command that installs packages. `holders` returns the
    processes that have any of the given files open."""

    accelerators: tuple[Accelerator, ...] = ()
    platforms: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    installer: str = "pip install"
    holders: Callable[[Sequence[str]], tuple[Holder, ...]] = lambda files: ()

    @classmethod
    def of_this_process(cls, root: Path = Path("/")) -> Self:
        """Collect the facts of this process's environment and of the machine whose files are under `root`."""
        return cls(
            accelerators=accelerators_here(root),
            platforms=chosen_platforms(),
            versions=installed_versions(),
            installer=_install_command(),
            holders=partial(find_holders, root),
        )


def find_unused(devices: Sequence[Device] | Exception, root: Path = Path("/")) -> UnusedAccelerator | None:
    """Explain the unused accelerator of this machine. `devices` are jax's devices, or the error that jax raised instead."""
    here = Surroundings.of_this_process(root)
    return explain_error(here, str(devices)) if isinstance(devices, Exception) else explain_unused(here, devices)


def explain_unused(here: Surroundings, devices: Sequence[Device]) -> UnusedAccelerator | None:
    """Return why jax uses no accelerator of this machine. None if jax uses one, or if the machine has no accelerator."""
    kinds = {device.kind for device in devices}
    taken = (kinds & {"cpu"}) | {"tpu" if kind.upper().startswith("TPU") else "gpu" for kind in kinds - {"cpu"}}
    left = [accelerator for accelerator in here.accelerators if accelerator.platform not in taken]
    if not left or (taken - {"cpu"}):  # jax uses one kind of accelerator at a time, so other kinds are not reported
        return None
    accelerator, names = left[0], {"tpu"} if left[0].platform == "tpu" else _GPU_NAMES
    if here.platforms and not names & set(here.platforms):
        chosen = ",".join(here.platforms)
        found = f"{accelerator} {accelerator.verb} here and left alone, because JAX_PLATFORMS={chosen} says so"
        return UnusedAccelerator(found=found, fix="leave JAX_PLATFORMS out to use what is here", is_fault=False)
    if accelerator.platform == "gpu":
        if not accelerator.has_driver:
            found = f"{accelerator} {accelerator.verb} here, but NVIDIA's driver is not, so everything runs on the CPU"
            return UnusedAccelerator(found=found, fix="`sudo ubuntu-drivers install`, then restart the machine")
        if not accelerator.files:
            found = f"{accelerator} {accelerator.verb} here, but no device file leads there, so everything runs on the CPU"
            return UnusedAccelerator(found=found, fix="start the container with `--gpus all`")
        jax = here.versions.get("jax", "")
        plugins = {name: found for name, found in here.versions.items() if name.endswith("-plugin")}
        if jax not in plugins.values():
            wrong = (f"{name} {found} does not belong to jax {jax}" for name, found in plugins.items())
            what = next(wrong, "jax is built for CPUs")
            found = f"{accelerator} {accelerator.verb} here, but {what}, so everything runs on the CPU"
            return UnusedAccelerator(found=found, fix=f'`{here.installer} "jax[cuda12]=={jax}"`, then start again')
        return _gpu_refusal(here)
    if not accelerator.files:
        them = "them" if accelerator.count > 1 else "it"
        found = f"{accelerator} {accelerator.verb} on this machine's bus, but there is no device file for {them}"
        fix = "start a container with `--privileged`; on the machine itself, create it again with the image of its chips"
        return UnusedAccelerator(found=found, fix=fix)
    if "libtpu" not in here.versions:
        found = f"{accelerator} {accelerator.verb} here, but libtpu is not installed, so everything runs on the CPU"
        return UnusedAccelerator(found=found, fix=f"`{here.installer} -r {_TPU_REQUIREMENTS}`, then start again")
    if holders := here.holders(accelerator.files):
        return _explain_holder(str(accelerator), holders[0].pid, holders[0].name)
    found = f"{accelerator} {accelerator.verb} here, but jax uses the CPU"
    return UnusedAccelerator(found=found, fix="`python app.py doctor` says why")


def explain_error(here: Surroundings, error: str) -> UnusedAccelerator | None:
    """Explain a runtime's error about an accelerator. None for other errors. Sources of the messages: libtpu 0.0.51, run without
    a TPU and with its lock held; jax issues 10192 and 22416; gvisor issue 11545."""
    tpu = next((one for one in here.accelerators if one.platform == "tpu"), None)
    chips = str(tpu) if tpu else "the TPU chips"
    if found := re.search(r"in use by (?:a )?process with pid (\d+)", error):
        return _explain_holder(chips, int(found[1]), "")
    if re.search(r"resource busy|already in used? by", error, re.IGNORECASE):
        if holders := here.holders(tpu.files) if tpu else ():  # this user may see the process, which the error does not name
            return _explain_holder(chips, holders[0].pid, holders[0].name)
        where = tpu.files[0] if tpu and tpu.files else "/dev/vfio/0"
        fix = f"`sudo fuser -v {where}` shows it; end it, then start again"
        return UnusedAccelerator(found=f"Another process holds {chips}", fix=fix)
    if "lockfile" in error:
        if holders := here.holders((LOCK_FILE, *(tpu.files if tpu else ()))):
            return _explain_holder(chips, holders[0].pid, holders[0].name)
        found = f"libtpu's lock, {LOCK_FILE}, keeps {chips} from being used, and no process of yours has it"
        fix = f"`sudo fuser -v {LOCK_FILE} || sudo rm {LOCK_FILE}` shows who has it, or removes it"
        return UnusedAccelerator(found=found, fix=fix)
    if re.search(r"PJRT.{0,40}API version|PJRT_\w+ size", error):
        # Install the versions that this project requires. If its libtpu is installed, install the one that jax requires.
        pair = " and ".join(f"{name} {here.versions[name]}" for name in ("jaxlib", "libtpu") if name in here.versions)
        is_ours = here.versions.get("libtpu") == pinned_version("libtpu")
        own = RELEASED_WITH.get(here.versions.get("jax", "")) if is_ours else None
        fix = f'{here.installer} "libtpu=={own}.*"' if own else f"{here.installer} -r {_TPU_REQUIREMENTS}"
        found = f"{pair or 'jax and libtpu'} do not belong together"
        return UnusedAccelerator(found=found, fix=f"`{fix}`, then start again")
    if re.search(r"libtpu\.so.{0,200}(No such file|cannot open)|(Failed to open|not found).{0,100}libtpu\.so", error):
        found = "libtpu is installed, but its library cannot be loaded"
        return UnusedAccelerator(found=found, fix=f"`{here.installer} --force-reinstall -r {_TPU_REQUIREMENTS}`")
    if re.search(r"No \w+ device found", error) and tpu is None:
        found = "jax is set to use a TPU, but this machine has none"
        return UnusedAccelerator(found=found, fix="leave JAX_PLATFORMS out, or start on a TPU VM")
    if tpu and re.search(r"Permission denied|Operation not permitted", error):
        found = f"{chips} {tpu.verb} here, but this user may not open {tpu.files[0] if tpu.files else 'them'}"
        return UnusedAccelerator(found=found, fix=f"`sudo chmod a+rw {' '.join(tpu.files)}`")
    if re.search(r"initialize backend '(cuda|gpu)'|CUDA_ERROR_", error):
        return _gpu_refusal(here)
    return None


def explain_from_log(log: Path, root: Path = Path("/")) -> UnusedAccelerator | None:
    """Explain the error that ended a worker before it had devices, from the end of its log."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return None
    return explain_error(Surroundings.of_this_process(root), text)


def installed_versions() -> dict[str, str]:
    return {name: found for name in PACKAGES if (found := installed_version(name, ""))}


def _gpu_refusal(here: Surroundings) -> UnusedAccelerator:
    gpu = next((one for one in here.accelerators if one.platform == "gpu"), None)
    found = f"{gpu} {gpu.verb} here, but CUDA does not take it" if gpu else "jax is set to use a GPU, but this machine has none"
    fix = "`nvidia-smi` shows the driver, and who uses it" if gpu else "leave JAX_PLATFORMS out"
    return UnusedAccelerator(found=found, fix=fix)


def _explain_holder(chips: str, pid: int, name: str) -> UnusedAccelerator:
    who = f"{pid} ({name})" if name else f"{pid}"
    return UnusedAccelerator(found=f"Another process, {who}, holds {chips}", fix=f"`kill {pid}`, then start again")


def pinned_version(package: str) -> str:
    """Return the version of a package in the requirements for TPUs, "" if they do not name the package."""
    lines = [(PROJECT_FOLDER / name).read_text("utf-8") for name in (_TPU_REQUIREMENTS, "requirements.txt")]
    match = re.search(rf"^{re.escape(package)}==(\S+)", "\n".join(lines), re.MULTILINE)
    return match[1] if match else ""


def _install_command() -> str:
    """Return the command that installs into this environment, for use in the project's folder. It does not contain folders
    outside the project, because visitors see it too."""
    prefix = Path(sys.prefix)
    is_inside = prefix.is_relative_to(PROJECT_FOLDER)
    where = str(prefix.relative_to(PROJECT_FOLDER)) if is_inside else ""
    if importlib.util.find_spec("pip") is None:  # uv created the environment
        return f"uv pip install --python {where}" if where else "uv pip install"
    return f"{where}/bin/pip install" if where else "python -m pip install"

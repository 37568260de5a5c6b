"""Read the environment. This module names all environment variables of the project and their defaults."""

import os
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from backend.accelerators import Accelerator, find_accelerators
from backend.shares import Machine, Share, find_machine, split_numbers
from backend.startup import project_name

PROJECT_FOLDER = Path(__file__).resolve().parent.parent
DATA_VARIABLE = "STUDIO_DATA_DIR"
CACHE_VARIABLE = "STUDIO_CACHE_DIR"
_DATA_FOLDERS = ("runs", "drafts", "engines", "comparisons", "logs", "loras", "upscalers", "magnitudes")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The folders of the studio.

    STUDIO_DATA_DIR sets `data_dir`, by default `data` in the project or, for an installed wheel, the project's folder in
    XDG_DATA_HOME or ~/.local/share. STUDIO_CACHE_DIR sets `cache_dir`, by default `cache` in `data_dir`. It can be deleted.
    """

    data_dir: Path
    cache_dir: Path
    compiled_dir: Path = field(init=False)  # JAX's compilation cache
    executables_dir: Path = field(init=False)  # precompiled programs, in addition to --executables
    kernels_dir: Path = field(init=False)  # records about kernels that crashed
    runs_dir: Path = field(init=False)  # the folders of jobs
    drafts_dir: Path = field(init=False)  # inputs of instant drafts; each draft's folder is deleted when the draft ends
    engines_dir: Path = field(init=False)  # the engines' lock files
    uploads_dir: Path = field(init=False)  # uploads, with one subfolder per server
    comparisons_dir: Path = field(init=False)  # exported comparisons, which may be deleted and exported again
    logs_dir: Path = field(init=False)  # the workers' logs
    loras_dir: Path = field(init=False)  # LoRA files that requests may use
    upscalers_dir: Path = field(init=False)  # upscalers that requests may use
    magnitudes_dir: Path = field(init=False)  # results of `measure-cache`, one file per checkpoint

    def __post_init__(self) -> None:
        folders = {f"{name}_dir": self.data_dir / name for name in _DATA_FOLDERS}
        folders |= {"uploads_dir": self.data_dir / "tmp", "compiled_dir": self.cache_dir / "jax"}
        folders |= {f"{name}_dir": self.cache_dir / name for name in ("executables", "kernels")}
        for name, folder in folders.items():
            object.__setattr__(self, name, folder)  # the class is frozen


def from_environment(data_dir: Path | None = None, environment: Mapping[str, str] = os.environ) -> Settings:
    """Read the settings from the environment. `data_dir`, if given, replaces STUDIO_DATA_DIR."""
    folder = Path(data_dir or environment.get(DATA_VARIABLE) or _default_data_dir(environment)).expanduser().absolute()
    cache = Path(environment.get(CACHE_VARIABLE) or folder / "cache").expanduser().absolute()
    return Settings(data_dir=folder, cache_dir=cache)


def _default_data_dir(environment: Mapping[str, str], project: Path = PROJECT_FOLDER) -> Path:
    if project.parent.name not in ("site-packages", "dist-packages"):
        return project / "data"
    # Data in the folder of an installed wheel would be lost, because an upgrade deletes this folder.
    return Path(environment.get("XDG_DATA_HOME") or "~/.local/share") / project_name()


def use_data_dir(folder: Path | None, environment: MutableMapping[str, str] = os.environ) -> None:
    """Set STUDIO_DATA_DIR for this process and its child processes. Do nothing for None."""
    if folder is not None:
        environment[DATA_VARIABLE] = str(folder.expanduser().absolute())


def worker_environment(
    settings: Settings, environment: Mapping[str, str] = os.environ, share: Share | None = None
) -> dict[str, str]:
    """Return the environment for a worker process: the settings of this process, and the limits of the worker's share."""
    own = {DATA_VARIABLE: str(settings.data_dir), CACHE_VARIABLE: str(settings.cache_dir)}
    return {**environment, **own, **(share.variables() if share else {})}


def read_secret(name: Literal["STUDIO_HOSTS_SECRET", "STUDIO_AUTH"], environment: Mapping[str, str] = os.environ) -> str:
    """Return the secret in the variable `name` or in the file that the variable `name`_FILE names, "" if neither is set.

    STUDIO_HOSTS_SECRET is the secret that the hosts of a worker share. STUDIO_AUTH is USER:PASSWORD for visitors. A password on
    the command line would appear in the list of processes. Raises: OSError if the file cannot be read.
    """
    if file := environment.get(f"{name}_FILE"):
        return environment.get(name) or Path(file).expanduser().read_text("utf-8").strip()
    return environment.get(name, "")


def rewriter_key(environment: Mapping[str, str] = os.environ) -> str:
    """Return the key of the endpoint that rewrites prompts, "" if it is not set."""
    return environment.get("STUDIO_REWRITER_KEY", "").strip()


def own_cores(environment: Mapping[str, str] = os.environ) -> tuple[int, ...]:
    """Return the cores that this worker may use (STUDIO_CORES, such as "0,1"). An empty tuple means all cores."""
    return split_numbers(environment.get("STUDIO_CORES", ""))


def this_machine(environment: Mapping[str, str] = os.environ) -> Machine:
    """Describe the cores of this machine, and the devices that JAX_PLATFORMS and TPU_VISIBLE_CHIPS allow."""
    return find_machine(Path("/dev"), environment.get("JAX_PLATFORMS", ""), environment.get("TPU_VISIBLE_CHIPS", ""))


def accelerators_here(root: Path = Path("/"), environment: Mapping[str, str] = os.environ) -> tuple[Accelerator, ...]:
    return find_accelerators(root, environment.get("TPU_ACCELERATOR_TYPE", ""))


def chosen_platforms(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    return tuple(filter(None, environment.get("JAX_PLATFORMS", "").lower().split(",")))


def leave_out_idle_libtpu(environment: MutableMapping[str, str] = os.environ, root: Path = Path("/")) -> None:
    """Prevent jax from loading libtpu on a machine without TPU and GPU. Call this before jax is imported.

    With libtpu and without TPU, a profiler trace crashes the process (jax 0.10.2, libtpu 0.0.51).
    """
    if not accelerators_here(root, environment):
        environment.setdefault("JAX_PLATFORMS", "cpu")


def hub_address(environment: Mapping[str, str] = os.environ) -> str:
    """Return the address of the Hub (HF_ENDPOINT), or "" if the Hub must not be used (HF_HUB_OFFLINE)."""
    is_offline = environment.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
    return "" if is_offline else environment.get("HF_ENDPOINT", "").rstrip("/") or "https://huggingface.co"


def log_file(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the file that receives the server's output, or None. The program that starts the server sets STUDIO_LOG."""
    return Path(environment["STUDIO_LOG"]).expanduser().absolute() if environment.get("STUDIO_LOG") else None


def use_upload_folder(folder: Path, environment: MutableMapping[str, str] = os.environ) -> None:
    environment["GRADIO_TEMP_DIR"] = str(folder)


def drop_gradio_ports(environment: MutableMapping[str, str] = os.environ) -> None:
    """Remove Gradio's variables for ports, which the server does not use. Invalid values would make the import of Gradio fail."""
    for name in ("GRADIO_SERVER_PORT", "GRADIO_NUM_PORTS"):
        environment.pop(name, None)


def has_screen(environment: Mapping[str, str] = os.environ) -> bool:
    return bool(environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY"))


def compiler_flags(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the compilers' variables that are set (XLA_FLAGS, LIBTPU_INIT_ARGS). They change the compiled programs."""
    return {name: environment[name] for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS") if environment.get(name)}


def module_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment for a process that runs one of the project's modules from any folder (PYTHONPATH)."""
    paths = filter(None, (str(PROJECT_FOLDER), environment.get("PYTHONPATH")))
    return {**environment, "PYTHONPATH": os.pathsep.join(paths)}


def tpu_compiler_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment in which libtpu compiles without a TPU. The caller must set it before jax is imported."""
    return {
        **environment,
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_ACCELERATOR_TYPE": "v6e-8",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_WORKER_ID": "0",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # allows other processes to compile at the same time
        "TPU_MIN_LOG_LEVEL": "3",
        "TPU_STDERR_LOG_LEVEL": "3",
    }

"""Read the environment. This module names all environment variables of the project and their defaults."""

import os
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from backend.accelerators import Accelerator, find_accelerators
from backend.shares import Machine, Share, find_machine, split_numbers
from backend.startup import project_name

PROJECT_FOLDER = Path(__file__).resolve().parent.parent
DATA_VARIABLE = "STUDIO_DATA_DIR"
CACHE_VARIABLE = "STUDIO_CACHE_DIR"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The folders of the studio.

    `data_dir` contains the job store, the jobs' folders and the logs. The variable STUDIO_DATA_DIR sets `data_dir`. The default
    is `data` in the project or, for an installed wheel, the project's folder in XDG_DATA_HOME or ~/.local/share.
    `cache_dir` contains compiled programs and can be deleted. The variable STUDIO_CACHE_DIR sets `cache_dir`. The default is
    `cache` in `data_dir`.
    """

    data_dir: Path
    cache_dir: Path

    @property
    def executables_dir(self) -> Path:
        """The folder where the engine looks for precompiled programs, in addition to --executables."""
        return self.cache_dir / "executables"

    @property
    def compiled_dir(self) -> Path:
        """The folder of JAX's compilation cache."""
        return self.cache_dir / "jax"

    @property
    def kernels_dir(self) -> Path:
        """The folder of the records about kernels that crashed."""
        return self.cache_dir / "kernels"

    @property
    def runs_dir(self) -> Path:
        """The folder that contains the folders of jobs."""
        return self.data_dir / "runs"

    @property
    def drafts_dir(self) -> Path:
        """The folder of the inputs of instant drafts. Each draft's folder is deleted when the draft ends."""
        return self.data_dir / "drafts"

    @property
    def engines_dir(self) -> Path:
        """The folder of the engines' lock files."""
        return self.data_dir / "engines"

    @property
    def uploads_dir(self) -> Path:
        """The folder of uploads, with one subfolder per server."""
        return self.data_dir / "tmp"

    @property
    def comparisons_dir(self) -> Path:
        """The folder of exported comparisons. They may be deleted, because they can be exported again."""
        return self.data_dir / "comparisons"

    @property
    def logs_dir(self) -> Path:
        """The folder of the workers' logs."""
        return self.data_dir / "logs"

    @property
    def loras_dir(self) -> Path:
        """The folder of LoRA files that requests may use."""
        return self.data_dir / "loras"

    @property
    def upscalers_dir(self) -> Path:
        """The folder of upscalers that requests may use."""
        return self.data_dir / "upscalers"

    @property
    def magnitudes_dir(self) -> Path:
        """The folder of the results of `measure-cache`, one file per checkpoint."""
        return self.data_dir / "magnitudes"


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
    """Return the environment for a worker process.

    It has the same settings as this process and limits the worker to its share of the machine (STUDIO_CORES and the variables of
    libtpu, OpenMP and MKL; see `Share`).
    """
    own = {DATA_VARIABLE: str(settings.data_dir), CACHE_VARIABLE: str(settings.cache_dir)}
    return {**environment, **own, **(share.variables() if share else {})}


def hosts_secret(environment: Mapping[str, str] = os.environ) -> str:
    """Return the secret that the hosts of a worker share (STUDIO_HOSTS_SECRET or the file STUDIO_HOSTS_SECRET_FILE).

    "" if neither is set. Raises: OSError if the file cannot be read.
    """
    return _secret("STUDIO_HOSTS_SECRET", environment)


def visitors_password(environment: Mapping[str, str] = os.environ) -> str:
    """Return USER:PASSWORD for visitors (STUDIO_AUTH or the file STUDIO_AUTH_FILE).

    "" if neither is set. A password on the command line would appear in the list of processes.
    Raises: OSError if the file cannot be read.
    """
    return _secret("STUDIO_AUTH", environment)


def _secret(name: str, environment: Mapping[str, str]) -> str:
    if file := environment.get(f"{name}_FILE"):
        return environment.get(name) or Path(file).expanduser().read_text("utf-8").strip()
    return environment.get(name, "")


def rewriter_key(environment: Mapping[str, str] = os.environ) -> str:
    """Return the key of the endpoint that rewrites prompts (STUDIO_REWRITER_KEY), "" if it is not set."""
    return environment.get("STUDIO_REWRITER_KEY", "").strip()


def own_cores(environment: Mapping[str, str] = os.environ) -> tuple[int, ...]:
    """Return the cores that this worker may use (STUDIO_CORES, such as "0,1"). An empty tuple means all cores."""
    return split_numbers(environment.get("STUDIO_CORES", ""))


def this_machine(environment: Mapping[str, str] = os.environ) -> Machine:
    """Describe the cores of this machine, and the devices that JAX_PLATFORMS and TPU_VISIBLE_CHIPS allow."""
    return find_machine(Path("/dev"), environment.get("JAX_PLATFORMS", ""), environment.get("TPU_VISIBLE_CHIPS", ""))


def accelerators_here(root: Path = Path("/"), environment: Mapping[str, str] = os.environ) -> tuple[Accelerator, ...]:
    """Find the accelerators of the machine whose files are under `root`, with TPU_ACCELERATOR_TYPE from the environment."""
    return find_accelerators(root, environment.get("TPU_ACCELERATOR_TYPE", ""))


def chosen_platforms(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the platforms in JAX_PLATFORMS. Empty if it is not set."""
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
    """Return the file that receives the server's output (STUDIO_LOG, set by the program that starts the server), or None."""
    return Path(environment["STUDIO_LOG"]).expanduser().absolute() if environment.get("STUDIO_LOG") else None


def use_upload_folder(folder: Path, environment: MutableMapping[str, str] = os.environ) -> None:
    """Set the folder in which Gradio stores uploads (GRADIO_TEMP_DIR)."""
    environment["GRADIO_TEMP_DIR"] = str(folder)


def drop_gradio_ports(environment: MutableMapping[str, str] = os.environ) -> None:
    """Remove Gradio's variables for ports (GRADIO_SERVER_PORT, GRADIO_NUM_PORTS).

    The server always uses --port, and an invalid value would make the import of Gradio fail.
    """
    for name in ("GRADIO_SERVER_PORT", "GRADIO_NUM_PORTS"):
        environment.pop(name, None)


def has_screen(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether this process runs on a desktop (DISPLAY or WAYLAND_DISPLAY)."""
    return bool(environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY"))


def compiler_flags(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the compilers' variables that are set (XLA_FLAGS, LIBTPU_INIT_ARGS). They change the compiled programs."""
    return {name: environment[name] for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS") if environment.get(name)}


def compiler_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment for a process that compiles for this machine's devices."""
    return dict(environment)


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

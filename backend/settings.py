"""The one place that reads the environment. Every variable is listed here, with its default and its reason."""

import os
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from backend.accelerators import Accelerator, find_accelerators
from backend.shares import Machine, Share, find_machine, split
from backend.startup import project_name

PROJECT_FOLDER = Path(__file__).resolve().parent.parent
DATA_VARIABLE = "STUDIO_DATA_DIR"
CACHE_VARIABLE = "STUDIO_CACHE_DIR"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Where the studio keeps things.

    `data_dir` (STUDIO_DATA_DIR, else `data` in the project, else for an installed wheel the project's folder in
    XDG_DATA_HOME or ~/.local/share): the job store, the run folders, the logs.
    `cache_dir` (STUDIO_CACHE_DIR, else `cache` in `data_dir`): compiled programs, safe to delete.
    """

    data_dir: Path
    cache_dir: Path

    @property
    def executables_dir(self) -> Path:
        """Where the engine always looks for precompiled programs, besides the folder of --executables."""
        return self.cache_dir / "executables"

    @property
    def compiled_dir(self) -> Path:
        """Where JAX keeps the programs that workers compile."""
        return self.cache_dir / "jax"

    @property
    def kernels_dir(self) -> Path:
        """What is known of kernels that did not run well."""
        return self.cache_dir / "kernels"

    @property
    def runs_dir(self) -> Path:
        """The jobs' folders."""
        return self.data_dir / "runs"

    @property
    def engines_dir(self) -> Path:
        """The life signs of engines."""
        return self.data_dir / "engines"

    @property
    def uploads_dir(self) -> Path:
        """What visitors send, in a folder for each server."""
        return self.data_dir / "tmp"

    @property
    def comparisons_dir(self) -> Path:
        """Comparisons that were saved as one video; each can be made again."""
        return self.data_dir / "comparisons"

    @property
    def logs_dir(self) -> Path:
        """The workers' logs."""
        return self.data_dir / "logs"

    @property
    def loras_dir(self) -> Path:
        """The LoRA files that requests may name."""
        return self.data_dir / "loras"

    @property
    def upscalers_dir(self) -> Path:
        """The files of models that make videos larger, which requests may name."""
        return self.data_dir / "upscalers"

    @property
    def magnitudes_dir(self) -> Path:
        """What `measure-cache` has measured, a file for each checkpoint."""
        return self.data_dir / "magnitudes"


def from_environment(data_dir: Path | None = None, environment: Mapping[str, str] = os.environ) -> Settings:
    """The settings; `data_dir`, if given, is used in place of the environment's."""
    folder = Path(data_dir or environment.get(DATA_VARIABLE) or _default_data_dir(environment)).expanduser().absolute()
    cache = Path(environment.get(CACHE_VARIABLE) or folder / "cache").expanduser().absolute()
    return Settings(data_dir=folder, cache_dir=cache)


def _default_data_dir(environment: Mapping[str, str], project: Path = PROJECT_FOLDER) -> Path:
    if project.parent.name not in ("site-packages", "dist-packages"):
        return project / "data"
    return Path(environment.get("XDG_DATA_HOME") or "~/.local/share") / project_name()  # a wheel's folder goes with its version


def use_data_dir(folder: Path | None, environment: MutableMapping[str, str] = os.environ) -> None:
    """Makes `from_environment` give this data folder, if it is one, everywhere in this process and in those that it starts
    (STUDIO_DATA_DIR)."""
    if folder is not None:
        environment[DATA_VARIABLE] = str(folder.expanduser().absolute())


def worker_environment(
    settings: Settings, environment: Mapping[str, str] = os.environ, share: Share | None = None
) -> dict[str, str]:
    """The environment for a worker process, so that `from_environment` there gives the same settings, and so that it keeps to
    its share of the machine (STUDIO_CORES and the variables of libtpu, OpenMP and MKL; see `Share`)."""
    own = {DATA_VARIABLE: str(settings.data_dir), CACHE_VARIABLE: str(settings.cache_dir)}
    return {**environment, **own, **(share.variables() if share else {})}


def hosts_secret(environment: Mapping[str, str] = os.environ) -> str:
    """What the hosts of one worker know and nobody else does (STUDIO_HOSTS_SECRET), else what the file STUDIO_HOSTS_SECRET_FILE
    holds; "" if neither is set. Raises: OSError if the file cannot be read."""
    return _secret("STUDIO_HOSTS_SECRET", environment)


def visitors_password(environment: Mapping[str, str] = os.environ) -> str:
    """USER:PASSWORD for visitors (STUDIO_AUTH), else what the file STUDIO_AUTH_FILE holds; "" if neither is set. Neither stands
    in a list of processes, as a command line does. Raises: OSError if the file cannot be read."""
    return _secret("STUDIO_AUTH", environment)


def _secret(name: str, environment: Mapping[str, str]) -> str:
    if file := environment.get(f"{name}_FILE"):
        return environment.get(name) or Path(file).expanduser().read_text("utf-8").strip()
    return environment.get(name, "")


def rewriter_key(environment: Mapping[str, str] = os.environ) -> str:
    """The key for the endpoint that writes prompts, in STUDIO_REWRITER_KEY; "" for none."""
    return environment.get("STUDIO_REWRITER_KEY", "").strip()


def own_cores(environment: Mapping[str, str] = os.environ) -> tuple[int, ...]:
    """The cores that this worker must keep to (STUDIO_CORES, such as "0,1"); empty: all."""
    return split(environment.get("STUDIO_CORES", ""))


def this_machine(environment: Mapping[str, str] = os.environ) -> Machine:
    """What workers can share here, as far as JAX_PLATFORMS and TPU_VISIBLE_CHIPS leave it to them."""
    return find_machine(Path("/dev"), environment.get("JAX_PLATFORMS", ""), environment.get("TPU_VISIBLE_CHIPS", ""))


def accelerators_here(root: Path = Path("/"), environment: Mapping[str, str] = os.environ) -> tuple[Accelerator, ...]:
    """The accelerators of the machine whose files lie under `root`; TPU_ACCELERATOR_TYPE names its chips if the bus does not."""
    return find_accelerators(root, environment.get("TPU_ACCELERATOR_TYPE", ""))


def chosen_platforms(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """The platforms that jax may use, if somebody has chosen them (JAX_PLATFORMS), else none."""
    return tuple(filter(None, environment.get("JAX_PLATFORMS", "").lower().split(",")))


def leave_out_idle_libtpu(environment: MutableMapping[str, str] = os.environ, root: Path = Path("/")) -> None:
    """Keeps jax, before it is imported, from loading a libtpu that has no TPU here: a trace would crash the process then (jax
    0.10.2, libtpu 0.0.51)."""
    if not accelerators_here(root, environment):
        environment.setdefault("JAX_PLATFORMS", "cpu")


def hub_address(environment: Mapping[str, str] = os.environ) -> str:
    """The address of the Hub (HF_ENDPOINT), or "" if nothing may be asked of it (HF_HUB_OFFLINE)."""
    is_offline = environment.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
    return "" if is_offline else environment.get("HF_ENDPOINT", "").rstrip("/") or "https://huggingface.co"


def log_file(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The file where the server's output goes, by what has started it (STUDIO_LOG); None if nobody has said."""
    return Path(environment["STUDIO_LOG"]).expanduser().absolute() if environment.get("STUDIO_LOG") else None


def use_upload_folder(folder: Path, environment: MutableMapping[str, str] = os.environ) -> None:
    """Makes Gradio keep uploads in this folder (GRADIO_TEMP_DIR)."""
    environment["GRADIO_TEMP_DIR"] = str(folder)


def drop_gradio_ports(environment: MutableMapping[str, str] = os.environ) -> None:
    """Forgets Gradio's variables for ports (GRADIO_SERVER_PORT, GRADIO_NUM_PORTS): --port is always used, and a wrong value
    would end Gradio as it is imported."""
    for name in ("GRADIO_SERVER_PORT", "GRADIO_NUM_PORTS"):
        environment.pop(name, None)


def has_screen(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process belongs to a desktop (DISPLAY or WAYLAND_DISPLAY)."""
    return bool(environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY"))


def compiler_flags(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The compilers' own variables (XLA_FLAGS, LIBTPU_INIT_ARGS) that are set: they change what is compiled."""
    return {name: environment[name] for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS") if environment.get(name)}


def compiler_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment for a process that compiles for this machine's own devices."""
    return dict(environment)


def module_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment for a process that runs one of our modules from any folder (PYTHONPATH)."""
    paths = filter(None, (str(PROJECT_FOLDER), environment.get("PYTHONPATH")))
    return {**environment, "PYTHONPATH": os.pathsep.join(paths)}


def gpu_sharing_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment in which jax takes a GPU's memory as it needs it, so that PyTorch can have it afterwards."""
    return {**environment, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def tpu_compiler_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment in which libtpu compiles where there is no TPU; it reads these before jax is imported."""
    return {
        **environment,
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_ACCELERATOR_TYPE": "v6e-8",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_WORKER_ID": "0",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # another process may be compiling too
        "TPU_MIN_LOG_LEVEL": "3",
        "TPU_STDERR_LOG_LEVEL": "3",
    }

"""The studio in a hosted notebook: `Kaggle` and `Colab` have the methods that the cells of `notebooks/` call.

The notebook's kernel never imports jax, because the chips open for one process only. The server is a separate process with its
own Python environment. A third process counts the chips and ends before the server starts. See docs/notebooks.md.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, ClassVar, Literal

import httpx

from wan_studio.errors import StudioError
from wan_studio.events import Event
from wan_studio.notebook import make_display
from wan_studio.server import find_project
from wan_studio.studio import Studio

PYTHON = "3.12"  # the version in the server's environment; all versions in the lock support it
TOKEN = "HF_TOKEN"  # the secret with the Hub's token, and the variable that huggingface_hub reads
PROGRAMS = "wan-studio-programs"  # the folder of compiled programs among the outputs and the inputs of a notebook
INPUT_DEPTH = 4  # Kaggle mounts outputs of notebooks and data sets up to this many folders below /kaggle/input
METADATA = ("metadata.google.internal", 80)
METADATA_SECONDS, HUB_SECONDS = 2.0, 10.0
STATUS_SECONDS = 15.0  # tunnels close connections after about 100 silent seconds, and notebooks after minutes
_POLL_SECONDS = 0.5
_TAIL_CHARACTERS = 2000
# Variables of a notebook's image that change which packages are installed, or which library and chips the server uses. The
# image's jax and torch_xla set the last four when they are imported.
DROPPED = (
    "PYTHONHOME", "PYTHONPATH", "PIP_CONSTRAINT", "PIP_TARGET", "UV_BUILD_CONSTRAINT", "UV_CONSTRAINT", "UV_OVERRIDE",
    "UV_PRERELEASE", "UV_SYSTEM_PYTHON", "LIBTPU_INIT_ARGS", "TPU_LIBRARY_PATH", "TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES",
)  # fmt: skip


FOLDERS = {"STUDIO_DATA_DIR": "data", "STUDIO_CACHE_DIR": "programs", "HF_HOME": "huggingface", "UV_CACHE_DIR": "uv"}
"""The folders in `HostedNotebook.scratch` by their variables. A variable that is set keeps its value."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A result of the preflight in the form of `app.py doctor`. A fault stops the notebook. `fix` states what to do."""

    name: str
    state: Literal["ok", "warning", "fault", "skipped"]
    found: str
    fix: str = ""

    def __str__(self) -> str:
        line = f"{self.state:8} {self.name}: {self.found}"
        return f"{line}\n{'':9}-> {self.fix}" if self.fix else line


class HostedNotebook:
    """A notebook of one host. `root` replaces the file system's root in tests.

    `scratch` is a large folder that is lost with the session. `outputs` keeps videos. `python` is the program of the server's
    environment, which STUDIO_VENV can name. The environment variables of this process are prepared for the server, which inherits
    them.
    """

    scratch_folder: ClassVar[str]
    outputs_folder: ClassVar[str]
    choose_tpu: ClassVar[str]
    allow_internet: ClassVar[str]
    add_secret: ClassVar[str]
    restart: ClassVar[str]
    # Running the first cell again creates a new notebook, which must know the server of the earlier one.
    _studio: ClassVar[Studio | None] = None

    def __init__(self, root: str = "") -> None:
        self._root = Path(root or "/")
        self.scratch, self.outputs = self._root / self.scratch_folder, self._root / self.outputs_folder
        self._venv = Path(os.environ.get("STUDIO_VENV") or self.scratch / "venv")
        self.python = self._venv / "bin" / "python"
        for name, folder in FOLDERS.items():
            os.environ.setdefault(name, str(self.scratch / folder))
        self._dropped = drop_variables(os.environ)

    def install(self) -> None:
        """Create the server's environment with Python 3.12 and the locked packages. Do nothing if STUDIO_VENV names one.

        Raises: StudioError.
        """
        if "STUDIO_VENV" in os.environ and self.python.is_file():
            return
        own = {"STUDIO_VENV": str(self._venv), "STUDIO_PYTHON": PYTHON}
        try:
            self._run(["bash", "deploy/start.sh", "install"], "Installing the server's packages", own)
        except StudioError as error:
            raise StudioError(f"{error}\nIf the network was not reached: {self.allow_internet}") from None

    def preflight(self) -> str:
        """Check the session, print each finding, and return the name of the best preset. Raises: StudioError after a fault."""
        findings, report = [*self._check_variables(), *self._check_kernel(), *self._check_lock()], {}
        if all(finding.state != "fault" for finding in findings):
            report = self._examine()
            findings += [*map(self._translate, report["checks"]), self._check_tpu(report), self._check_token()]
        for finding in findings:
            sys.stdout.write(f"{finding}\n")
        if any(finding.state == "fault" for finding in findings):
            raise StudioError("Do what the line after each fault says. Then run this cell again.")
        return report["recommended"]

    def start(self, preset: str, *, share: bool = False) -> Studio:
        """Download the preset's model, start the server, and show its state in the cell. A running server is stopped first.

        With `share`, the page gets a public link, which is printed with its password. Otherwise only this notebook can use the
        server. Raises: StudioError.
        """
        if self._studio is not None:
            self._studio.close()
        self.attach_programs()
        self._run([str(self.python), "app.py", "models", "download", preset], f"Downloading the model of {preset}")
        show, started = make_display() or _print_event, time.monotonic()
        options = ["--share"] if share else ["--no-instant"]
        studio = HostedNotebook._studio = Studio.local(
            os.environ["STUDIO_DATA_DIR"],
            python=self.python,
            options=options,
            folder=self.outputs / "videos",
            on_wait=lambda line: show(_event(f"Starting the server, {time.monotonic() - started:.0f} s: {line}")),
        )
        show(_event(f"The server runs. Models: {', '.join(studio.models())}", phase="finished"))
        sys.stdout.write(self._describe_page(share))
        return studio

    def keep_open(self, minutes: float) -> None:
        """Show the server's state for some minutes, so that the session stays active while visitors use the page.

        Interrupting the cell ends the wait. Raises: StudioError if the server ends.
        """
        show, until = make_display() or _print_event, time.monotonic() + 60 * minutes
        with contextlib.suppress(KeyboardInterrupt):
            while (left := until - time.monotonic()) > 0:
                text = f"{self._describe_server()}. This cell ends in {left / 60:.0f} min"
                show(_event(text, fraction=1 - left / 60 / minutes))
                self.save_programs()
                time.sleep(min(STATUS_SECONDS, left))
        self.save_programs()
        show(_event(self._describe_server(), phase="finished"))

    def attach_programs(self) -> None:
        """Use the compiled programs of an earlier session, where the host keeps files."""

    def save_programs(self) -> None:
        """Keep the compiled programs for later sessions, where the host keeps files."""

    def _read_secret(self) -> str | None:
        """Return the secret with the Hub's token. May raise any exception of the host's library."""
        raise NotImplementedError

    def _check_variables(self) -> list[Finding]:
        """Report dropped variables. Set TPU_PROCESS_ADDRESSES if a TPU has no metadata server, which libtpu would wait for."""
        found = [f"{', '.join(self._dropped)} of the image do not reach the server"] if self._dropped else []
        is_set = {"TPU_PROCESS_ADDRESSES", "TPU_SKIP_MDS_QUERY"} & os.environ.keys()
        if os.environ.get("TPU_ACCELERATOR_TYPE") and not is_set and not has_metadata_server():
            os.environ["TPU_PROCESS_ADDRESSES"] = "local"
            found.append("no metadata server answers, so TPU_PROCESS_ADDRESSES=local was set")
        return [Finding(name="variables", state="ok", found="; ".join(found))] if found else []

    def _check_kernel(self) -> list[Finding]:
        """Check that neither this kernel nor its server uses the chips."""
        if self._studio is not None and self._studio._server is not None and self._studio._server.is_running:
            found = "the server of this notebook runs already and uses the chips"
            return [Finding(name="kernel", state="fault", found=found, fix="`studio.close()` stops it")]
        if any(map(self._is_chip, _open_files(Path("/proc/self")))):
            fix = f"{self.restart}, start at the first cell, and import neither jax nor torch_xla in this notebook"
            found = "this notebook's kernel has opened the chips, so the server cannot open them"
            return [Finding(name="kernel", state="fault", found=found, fix=fix)]
        return []

    def _check_lock(self) -> list[Finding]:
        """Remove libtpu's lock file if a crashed process has left it: no process has the lock file or a chip open."""
        lock = self._root / "tmp/libtpu_lockfile"
        if not lock.exists():
            return []
        opened = [path for folder in Path("/proc").glob("[0-9]*") for path in _open_files(folder)]
        if str(lock) in opened or any(map(self._is_chip, opened)):
            return []  # the process that counts the chips names the owner
        try:
            lock.unlink()
        except OSError:
            fix = f"`sudo rm {lock}`"
            return [Finding(name="lock", state="fault", found=f"{lock} is left from another account's process", fix=fix)]
        return [Finding(name="lock", state="ok", found=f"{lock} was left from a process that crashed, and was removed")]

    def _check_tpu(self, report: Mapping[str, Any]) -> Finding:
        """Compare the chips that jax found with the chips of the session's type, such as v5litepod-8 or v5e-1."""
        chips = sum(device["kind"].startswith("TPU") for device in report["devices"])
        kind = os.environ.get("TPU_ACCELERATOR_TYPE", "")
        if not chips:
            found = "this session has no TPU that jax can use; the demo model runs on the processor"
            return Finding(name="TPU", state="warning", found=found, fix=self.choose_tpu)
        expected = re.search(r"-(\d+)$", kind)
        if expected and chips < int(expected[1]):
            found = f"jax finds {chips} of the {expected[1]} chips of {kind}"
            return Finding(name="TPU", state="warning", found=found, fix="stop the session, and start another one")
        return Finding(
            name="TPU", state="ok", found=f"{chips} {'chip' if chips == 1 else 'chips'}, counted in a separate process"
        )

    def _check_token(self) -> Finding:
        """Read the Hub's token from the host's secrets, pass it to the server, and check it at the Hub."""
        if not os.environ.get(TOKEN):
            with contextlib.suppress(Exception):  # each host's library raises its own errors, also if the secret is missing
                os.environ[TOKEN] = self._read_secret() or ""
        if not os.environ.get(TOKEN):
            os.environ.pop(TOKEN, None)
            found = f"the secret {TOKEN} is missing; models without a licence agreement download without it"
            return Finding(name="token", state="skipped", found=found, fix=self.add_secret)
        address = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
        try:
            headers = {"authorization": f"Bearer {os.environ[TOKEN]}"}
            status = httpx.get(f"{address}/api/whoami-v2", headers=headers, timeout=HUB_SECONDS).status_code
        except httpx.HTTPError:
            return Finding(
                name="token", state="skipped", found=f"the secret {TOKEN} could not be checked: the Hub does not answer"
            )
        if status == 401:
            fix = f"create a token at {address}/settings/tokens, and store it as the secret {TOKEN}"
            return Finding(name="token", state="warning", found=f"the Hub refuses the token in the secret {TOKEN}", fix=fix)
        return Finding(name="token", state="ok", found=f"the secret {TOKEN} is passed to the server")

    def _translate(self, check: Mapping[str, Any]) -> Finding:
        """Return a finding of `app.py doctor`. An unreachable Hub gets the fix of this host."""
        if check["name"] == "Hub" and check["state"] != "ok":
            found = "the Hub cannot be reached, so no model can be downloaded"
            return Finding(name="internet", state="warning", found=found, fix=self.allow_internet)
        return Finding(name=check["name"], state=check["state"], found=check["found"], fix=check["mend"])

    def _examine(self) -> Mapping[str, Any]:
        """Run `app.py doctor --quick` in the server's environment, and return its findings. Raises: StudioError."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "findings.json"
            with contextlib.suppress(StudioError):  # exit code 1 reports a fault, and the file has it
                self._run([str(self.python), "app.py", "doctor", "--quick", "--json", str(file)], "Counting the chips")
            try:
                return json.loads(file.read_text("utf-8"))
            except (OSError, ValueError):
                raise StudioError("The check of the machine ended early: run the first cell again, which installs it") from None

    def _is_chip(self, path: str) -> bool:
        return re.fullmatch(rf"{re.escape(str(self._root / 'dev'))}/(accel|vfio/)\d+", path) is not None

    def _describe_page(self, share: bool) -> str:
        server = self._studio._server if self._studio else None
        if server is None or not share:
            return "Use it from the next cells. The page has no link.\n"
        if server.share_url is None:
            return f"The public link could not be created: {self.allow_internet}. The next cells work without it.\n"
        return (
            f"Your page, do not publish this link: {server.share_url.rstrip('/')}/?operator={server.key}\n"
            f"For others: {server.share_url}, user studio, password {server.password}\n"
        )

    def _describe_server(self) -> str:
        """Return the worker's state and the number of queued videos. Raises: StudioError if the server has ended."""
        if self._studio is None:
            raise StudioError("The server was not started: run the cell that starts it")
        try:
            health = self._studio._http.get("healthz").json()
        except (httpx.TransportError, ValueError) as error:
            raise StudioError(f"The server does not answer ({error!r}): run the cell that starts it again") from error
        detail = f" ({health['detail']})" if "detail" in health else ""
        return f"The worker is {health['worker']}{detail}, {health.get('waiting', 0)} queued"

    def _run(self, words: Sequence[str], what: str, variables: Mapping[str, str] | None = None) -> None:
        """Run a program in the project's folder, and show its last line in the cell. Raises: StudioError if it fails."""
        show, started = make_display() or _print_event, time.monotonic()
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                words,
                cwd=find_project(),
                env={**os.environ, **(variables or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            try:
                while process.poll() is None:
                    *_, line = _tail(output.fileno()).split("\n")
                    show(_event(f"{what}, {time.monotonic() - started:.0f} s: {line}"))
                    time.sleep(_POLL_SECONDS)
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)
                raise
            text, seconds = _tail(output.fileno()), time.monotonic() - started
        if process.returncode:
            show(_event(f"{what} failed", phase="failed"))
            raise StudioError(f"{what} failed. The end of its output:\n{text}")
        show(_event(f"{what}: done in {seconds:.0f} s", phase="finished"))


class Kaggle(HostedNotebook):
    """A notebook on Kaggle. The outputs have at most 20 GB, so models and caches are in /kaggle/tmp, which is lost."""

    scratch_folder = "kaggle/tmp/wan-studio"
    outputs_folder = "kaggle/working"
    choose_tpu = (
        "choose TPU v5e-8 under Settings, Accelerator; if the session still has no TPU, as in some new accounts, stop it"
        " and start another one"
    )
    allow_internet = "turn on Internet under Settings, which needs an account with a verified phone number"
    add_secret = f"add {TOKEN} under Add-ons, Secrets, and attach it to this notebook"
    restart = "restart the session (Run, Restart and clear cell outputs)"

    def attach_programs(self) -> None:
        """Copy compiled programs from the notebook's inputs, if an earlier version's output is attached."""
        inputs = self._root / "kaggle/input"
        places = [one for depth in range(INPUT_DEPTH) for one in inputs.glob(f"{'*/' * depth}{PROGRAMS}")]
        for place in places:
            copy_new_files(place, Path(os.environ["STUDIO_CACHE_DIR"]))
        found = ", ".join(map(str, places)) or "none, so the first video of each size compiles its programs"
        sys.stdout.write(f"Attached compiled programs: {found}\n")

    def save_programs(self) -> None:
        """Copy the compiled programs to the outputs. A later session attaches this notebook's output as an input."""
        copy_new_files(Path(os.environ["STUDIO_CACHE_DIR"]), self.outputs / PROGRAMS)

    def _read_secret(self) -> str | None:
        return resolve_name("kaggle_secrets:UserSecretsClient")().get_secret(TOKEN)


class Colab(HostedNotebook):
    """A notebook on Colab. Its rules forbid a page instead of the notebook, unless the runtime uses paid compute units."""

    scratch_folder = "content/wan-studio"
    outputs_folder = "content"
    choose_tpu = "choose v5e-1 TPU or v6e-1 TPU under Runtime, Change runtime type"
    allow_internet = "disconnect and delete the runtime (Runtime menu), and connect again"
    add_secret = f"add {TOKEN} under Secrets (the key at the left), and allow this notebook to use it"
    restart = "restart the session (Runtime, Restart session)"

    def _read_secret(self) -> str | None:
        return resolve_name("google.colab.userdata:get")(TOKEN)


def drop_variables(environment: MutableMapping[str, str]) -> list[str]:
    """Remove the variables in `DROPPED`, and return the names of the removed variables."""
    return [name for name in DROPPED if environment.pop(name, "")]


def has_metadata_server() -> bool:
    """Return whether Google Cloud's metadata server accepts connections."""
    try:
        socket.create_connection(METADATA, METADATA_SECONDS).close()
    except OSError:
        return False
    return True


def copy_new_files(source: Path, target: Path) -> None:
    """Copy the files that `target` lacks or has in an older version. Leave out the records of kernels that crashed here."""
    for file in source.rglob("*"):
        copy = target / file.relative_to(source)
        is_new = not copy.exists() or copy.stat().st_mtime < file.stat().st_mtime
        if file.is_file() and is_new and "kernels" not in file.relative_to(source).parts:
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)


def _open_files(process: Path) -> list[str]:
    """Return the paths of the files that a process has open, as far as this account may see them."""
    found = []
    with contextlib.suppress(OSError):  # another account's process, or it has ended
        for link in (process / "fd").iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile
                found.append(str(link.readlink()))
    return found


def _event(text: str, *, fraction: float = 0.0, phase: str = "starting") -> Event:
    fraction = 1.0 if phase == "finished" else fraction
    return Event(
        phase=phase, fraction=fraction, text=text, index=0, total=0, seconds_left=None, ahead=0, preview=None, outcome={}
    )


def _print_event(event: Event) -> None:
    if event.is_final:
        sys.stdout.write(f"{event.text}\n")


def _tail(file: int) -> str:
    """Return the end of an open file without moving its position, which the writing process shares."""
    size = os.fstat(file).st_size
    return os.pread(file, _TAIL_CHARACTERS, max(0, size - _TAIL_CHARACTERS)).decode("utf-8", "replace").strip()

"""Store compiled programs as files. A later process loads the files, on this or another machine, and compiles nothing.

A file's name contains a digest of everything that determines the executable. The digest covers the program's text, the compiler's
options and flags, the versions of jax, jaxlib and libtpu, and the devices with their positions. The text contains shapes,
shardings and the code of our kernels. A changed program has another file name, so an outdated executable never runs. Every file
can be deleted. The program is then compiled again.

The files are pickles. Therefore anyone who can write into the folder can run code in this process, as with jax's own cache.
"""

import dataclasses
import hashlib
import json
import logging
import pickle
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
from jax.experimental.serialize_executable import deserialize_and_load, serialize

from backend.files import replace_file
from backend.imports import installed_version
from backend.runtime.mesh import Layout
from backend.runtime.program import Compilation, Program, compile_now
from backend.settings import compiler_flags

SUFFIX = ".executable"
FORMAT = 1
_LOCATIONS = re.compile(r"\s*loc\([^\n]*\)|^#loc.*$", re.MULTILINE)

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Identity:
    """The facts that determine an executable: the program, the mesh, the devices, the versions and the flags.

    `digest` is a hash of these values and of the program's text. The identity is stored with the executable.
    """

    program: str
    mesh: str
    devices: str
    versions: dict[str, str]
    flags: dict[str, str]
    digest: str


def identify_program(name: str, lowered: jax.stages.Lowered, layout: Layout) -> Identity:
    """Return the identity of this lowered program. A stored executable with the same identity can be used for the program."""
    libraries = ("jax", "jaxlib", *(["libtpu"] if layout.platform == "tpu" else []))
    versions = {library: installed_version(library) for library in libraries}
    flags = compiler_flags() | {key: str(value) for key, value in sorted(layout.compiler_options.items())}
    devices, mesh = _describe_devices(layout), layout.plan_text
    text = _LOCATIONS.sub("", lowered.as_text())
    digest = hashlib.sha256((json.dumps([FORMAT, name, mesh, devices, versions, flags]) + text).encode()).hexdigest()
    return Identity(program=name, mesh=mesh, devices=devices, versions=versions, flags=flags, digest=digest)


def _describe_devices(layout: Layout) -> str:
    """Return the kind, number and positions of the devices, in the mesh's order."""
    devices = layout.mesh.devices.flatten()
    places = [f"{device.id}@{getattr(device, 'coords', '')}" for device in devices]
    return f"{len(devices)} x {devices[0].device_kind}: {' '.join(places)}"


class ExecutableFolders:
    """A `Compiler` that loads executables from files in `folders`. It compiles programs whose executable is in no folder."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = [folder for folder in folders if any(folder.glob(f"*{SUFFIX}"))] if folders else []

    def __call__(self, program: Program, lowered: jax.stages.Lowered) -> Compilation:
        loaded = self._load(program, lowered)
        return compile_now(program, lowered) if loaded is None else Compilation(loaded, is_loaded=True)

    def _load(self, program: Program, lowered: jax.stages.Lowered) -> jax.stages.Compiled | None:
        if not self._folders:
            return None
        name, layout = program.name, program.layout
        needed = identify_program(name, lowered, layout)
        path = next((path for folder in self._folders if (path := _executable_path(folder, needed)).is_file()), None)
        if path is None:
            logger.info("%s: no precompiled executable fits (%s; %s); compiling", name, needed.devices, needed.mesh)
            return None
        try:
            started = time.monotonic()
            executable = read_executable(path, lowered, layout)
        except Exception as error:  # a driver can raise any error for a file from another machine; compiling still works
            logger.warning("%s: %s cannot be loaded (%s); compiling", name, path.name, error)
            return None
        logger.info("%s: loaded from %s in %.1f s", name, path.name, time.monotonic() - started)
        return executable


@dataclasses.dataclass(kw_only=True)
class ExecutableWriter:
    """A `Compiler` that compiles programs and writes the executables to `folder`. Skips programs whose file exists.

    Calls `report(name, path, seconds)` for each program. `seconds` is the time to compile and write, None if the file existed.
    """

    folder: Path
    report: Callable[[str, Path, float | None], None]

    def __call__(self, program: Program, lowered: jax.stages.Lowered) -> Compilation:
        name, needed = program.name, identify_program(program.name, lowered, program.layout)
        path, started = _executable_path(self.folder, needed), time.monotonic()
        if path.is_file():
            self.report(name, path, None)
            return Compilation(None)
        compilation = compile_now(program, lowered)
        assert compilation.executable is not None, "`compile_now` returns an executable"
        write_executable(path, needed, compilation.executable)
        self.report(name, path, time.monotonic() - started)
        return compilation


def write_executable(path: Path, key: Identity, compiled: jax.stages.Compiled) -> None:
    """Write an executable and its identity to a file."""
    payload, _, _ = serialize(compiled)
    with replace_file(path) as part:
        part.write_bytes(pickle.dumps({"identity": dataclasses.asdict(key), "payload": payload}))


def read_executable(path: Path, lowered: jax.stages.Lowered, layout: Layout) -> jax.stages.Compiled:
    """Load the executable in a file onto the layout's devices. Raises: any error, if JAX's runtime cannot load the file."""
    content = pickle.loads(path.read_bytes())
    devices = list(layout.mesh.devices.flatten())
    by_id = sorted(devices, key=lambda device: device.id)
    return deserialize_and_load(
        content["payload"], lowered.in_tree, lowered.out_tree, backend=devices[0].client, execution_devices=by_id
    )


def _executable_path(folder: Path, key: Identity) -> Path:
    words = re.sub(r"[^a-z0-9]+", "-", key.program.lower()).strip("-")
    return folder / f"{words}-{key.digest[:32]}{SUFFIX}"

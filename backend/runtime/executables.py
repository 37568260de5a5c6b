"""Store compiled programs as files. A later process loads the files, on this or another machine, and compiles nothing.

A file's name contains a digest of everything that determines the executable, so an outdated executable never runs. The files are
pickles. Therefore anyone who can write into the folder can run code in this process, as with jax's own cache.
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
    """The facts that determine an executable. `digest` is a hash of them and of the program's text, which contains shapes,
    shardings and the code of our kernels. The identity is stored with the executable.
    """

    program: str
    mesh: str
    devices: str
    versions: dict[str, str]
    flags: dict[str, str]
    digest: str


def identify_program(name: str, lowered: jax.stages.Lowered, layout: Layout) -> Identity:
    libraries = ("jax", "jaxlib", *(["libtpu"] if layout.platform == "tpu" else []))
    versions = {library: installed_version(library) for library in libraries}
    flags = compiler_flags() | {key: str(value) for key, value in sorted(layout.compiler_options.items())}
    chips, mesh = layout.mesh.devices.flatten(), layout.plan_text
    places = " ".join(f"{device.id}@{getattr(device, 'coords', '')}" for device in chips)
    devices = f"{len(chips)} x {chips[0].device_kind}: {places}"
    text = _LOCATIONS.sub("", lowered.as_text())
    digest = hashlib.sha256((json.dumps([FORMAT, name, mesh, devices, versions, flags]) + text).encode()).hexdigest()
    return Identity(program=name, mesh=mesh, devices=devices, versions=versions, flags=flags, digest=digest)


class ExecutableFolders:
    """A `Compiler` that loads executables from files in `folders`. It compiles programs whose executable is in no folder."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = [folder for folder in folders if any(folder.glob(f"*{SUFFIX}"))] if folders else []

    def __call__(self, program: Program, lowered: jax.stages.Lowered) -> Compilation:
        if not self._folders:
            return compile_now(program, lowered)
        name, needed = program.name, identify_program(program.name, lowered, program.layout)
        path = next((path for folder in self._folders if (path := _executable_path(folder, needed)).is_file()), None)
        if path is None:
            logger.info("%s: no precompiled executable fits (%s; %s); compiling", name, needed.devices, needed.mesh)
            return compile_now(program, lowered)
        executable = None
        try:
            started, devices = time.monotonic(), list(program.layout.mesh.devices.flatten())
            executable = deserialize_and_load(
                pickle.loads(path.read_bytes())["payload"],
                lowered.in_tree,
                lowered.out_tree,
                backend=devices[0].client,
                execution_devices=sorted(devices, key=lambda device: device.id),
            )
        except Exception as error:  # a driver can raise any error for a file from another machine; compiling still works
            logger.warning("%s: %s cannot be loaded (%s); compiling", name, path.name, error)
        if executable is None:
            return compile_now(program, lowered)
        logger.info("%s: loaded from %s in %.1f s", name, path.name, time.monotonic() - started)
        return Compilation(executable, is_loaded=True)


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
        payload, _, _ = serialize(compilation.executable)
        with replace_file(path) as part:
            part.write_bytes(pickle.dumps({"identity": dataclasses.asdict(needed), "payload": payload}))
        self.report(name, path, time.monotonic() - started)
        return compilation


def _executable_path(folder: Path, key: Identity) -> Path:
    words = re.sub(r"[^a-z0-9]+", "-", key.program.lower()).strip("-")
    return folder / f"{words}-{key.digest[:32]}{SUFFIX}"

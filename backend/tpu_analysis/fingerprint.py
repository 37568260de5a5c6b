"""What the costs of a compiled program follow from, as one short text: a program that has the same need not be compiled again.

Set jax's option `jax_traceback_in_locations_limit` to 0 before anything is lowered, or the kernels hold the paths and lines of
their sources.
"""

import ast
import functools
import hashlib
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import jax

from backend.runtime.program import Program
from backend.settings import PROJECT_FOLDER

_OF_TPU = tuple(PROJECT_FOLDER / "backend" / "tpu_analysis" / name for name in ("hlo_cost.py", "kernels_cost.py", "report.py"))
_OF_ATTENTION = tuple(PROJECT_FOLDER / "kernels" / "attention" / name for name in ("block_sizes.py", "block_sizes.json"))
_READERS = (PROJECT_FOLDER / "backend" / "chips.py", *_OF_TPU, *_OF_ATTENTION)


def fingerprint(program: Program, lowered: jax.stages.Lowered) -> str:
    """The hash of the program as it is given to the compiler, the compiler's version, the code that reads its answer, and the
    slice: the same text is given for chips of another kind."""
    parts = [lowered.as_text(), repr(program.layout.compiler_options), version("jaxlib"), version("libtpu")]
    parts += [_meaning(path) for path in _READERS]
    return of_slice(_digest(parts), list(program.layout.mesh.devices.flatten()))


def of_slice(digest: str, devices: Sequence[jax.Device]) -> str:
    """The fingerprint on these devices of what has this digest."""
    sides = [max(places) + 1 for places in zip(*(device.coords for device in devices), strict=True)]
    return _digest([digest, f"{len(devices)} x {devices[0].device_kind}, {'x'.join(map(str, sides))}"])


def _digest(parts: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


@functools.cache
def _meaning(path: Path) -> str:
    """Return the file without comments, docstrings and imports, so that texts and names of modules may change."""
    text = path.read_text("utf-8")
    return _written(ast.parse(text)) if path.suffix == ".py" else text


def _written(part: object) -> str:
    """Return a part of a syntax tree as text. Omit empty fields, because each version of Python adds some."""
    if isinstance(part, list):
        return f"[{','.join(text for text in map(_written, part) if text)}]"
    if not isinstance(part, ast.AST):
        return repr(part)
    is_docstring = isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant)
    if is_docstring or isinstance(part, ast.Import | ast.ImportFrom):
        return ""
    fields = (f"{name}={_written(value)}" for name, value in ast.iter_fields(part) if value not in (None, []))
    return f"{type(part).__name__}({','.join(fields)})"

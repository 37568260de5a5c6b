"""A hash of everything that determines the costs of a compiled program. A program with an equal hash is not compiled again.

Set jax's option `jax_traceback_in_locations_limit` to 0 before lowering. Otherwise the hash depends on the paths and line
numbers of the kernels' source files.
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

_ANALYSIS_FILES = tuple(
    PROJECT_FOLDER / "backend" / "tpu_analysis" / name for name in ("hlo_cost.py", "kernels_cost.py", "report.py")
)
_ATTENTION_FILES = tuple(PROJECT_FOLDER / "kernels" / "attention" / name for name in ("block_sizes.py", "block_sizes.json"))
_READERS = (PROJECT_FOLDER / "backend" / "chips.py", *_ANALYSIS_FILES, *_ATTENTION_FILES)


def fingerprint(program: Program, lowered: jax.stages.Lowered) -> str:
    """Return the hash of the lowered program, its options, the compiler's version, the code that reads the costs, and the slice.

    The slice is included because the lowered program can be equal for chips of different kinds.
    """
    parts = [lowered.as_text(), repr(program.layout.compiler_options), version("jaxlib"), version("libtpu")]
    parts += [_meaning(path) for path in _READERS]
    return fingerprint_for_slice(_hash_parts(parts), list(program.layout.mesh.devices.flatten()))


def fingerprint_for_slice(digest: str, devices: Sequence[jax.Device]) -> str:
    """Return the fingerprint of a program that is compiled for these devices. `digest` is the hash of everything else."""
    sides = [max(places) + 1 for places in zip(*(device.coords for device in devices), strict=True)]
    return _hash_parts([digest, f"{len(devices)} x {devices[0].device_kind}, {'x'.join(map(str, sides))}"])


def _hash_parts(parts: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


@functools.cache
def _meaning(path: Path) -> str:
    """Return the file without comments, docstrings and imports, so that changes of texts and of names of modules do not change
    the fingerprint."""
    text = path.read_text("utf-8")
    return _to_text(ast.parse(text)) if path.suffix == ".py" else text


def _to_text(part: object) -> str:
    """Return a part of a syntax tree as text. Omit empty fields, because each version of Python adds some."""
    if isinstance(part, list):
        return f"[{','.join(text for text in map(_to_text, part) if text)}]"
    if not isinstance(part, ast.AST):
        return repr(part)
    is_docstring = isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant)
    if is_docstring or isinstance(part, ast.Import | ast.ImportFrom):
        return ""
    fields = (f"{name}={_to_text(value)}" for name, value in ast.iter_fields(part) if value not in (None, []))
    return f"{type(part).__name__}({','.join(fields)})"

"""Imports in test files that run when a test first needs them.

Collecting thousands of tests must not import torch, diffusers, jax or gradio, because each of pytest-xdist's workers collects
all tests. Test files import at their top, as Python files do. While pytest rewrites the assert statements of such a file, this
module also moves its imports into the functions that use the imported names. Imports of names that the file uses while it is
imported itself, such as a decorator or a parameter of `parametrize`, stay where they are. So do imports of the standard library
and of pytest, and of names that nothing uses, such as fixtures.

The semantics follow PEP 810 (lazy imports, Python 3.15). When the project requires that version, its option replaces this module.
"""

import ast
import hashlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from _pytest.assertion import rewrite

TESTS = Path(__file__).parent
EAGER = sys.stdlib_module_names | {"pytest", "_pytest"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def install() -> None:
    """Make imports lazy in all files of tests that pytest imports from now on."""
    modules = {f"tests.{path.stem}" for path in TESTS.iterdir() if not path.name.startswith("__")}
    pytest.register_assert_rewrite(*modules - sys.modules.keys())
    rewrite_asserts: Callable[..., None] = rewrite.rewrite_asserts
    version = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:8]
    rewrite.PYC_TAIL = f".{rewrite.PYTEST_TAG}-lazy-{version}{rewrite.PYC_EXT}"  # compiled files depend on this module

    def rewrite_imports_and_asserts(tree: ast.Module, source: bytes, path: str, config: pytest.Config) -> None:
        if Path(path).is_relative_to(TESTS):  # pytest rewrites its plugins too
            move_imports(tree)
        rewrite_asserts(tree, source, path, config)

    rewrite.rewrite_asserts = rewrite_imports_and_asserts


def move_imports(tree: ast.Module) -> None:
    """Move each import at the top of `tree` that only functions use into these functions. Changes `tree`."""
    used_at_import = set(_names_used_at_import(tree))
    lazy: dict[str, ast.stmt] = {}
    kept: list[ast.stmt] = []
    for statement in tree.body:
        if not isinstance(statement, ast.Import | ast.ImportFrom):
            kept.append(statement)
            continue
        for alias in statement.names:
            one = _import_one(statement, alias)
            name = alias.asname or alias.name.partition(".")[0]
            if _package(one) in EAGER or name in used_at_import:
                kept.append(one)
            elif "." in alias.name and not alias.asname and name in lazy:  # import a.b after import a
                lazy[name].names.append(alias)
            else:
                lazy[name] = one
    used = set()
    for function in _outermost_functions(tree.body):
        wanted = set(_loaded_names(function)) - _local_names(function)
        names = [name for name in lazy if name in wanted]
        used.update(names)
        start = 1 if ast.get_docstring(function, clean=False) is not None else 0
        function.body[start:start] = [_copy_at(lazy[name], function.body[0]) for name in names]
    unused = lazy.keys() - used - set(_names_in_annotations(tree))
    kept += [lazy[name] for name in lazy if name in unused]
    start = 1 if ast.get_docstring(tree, clean=False) is not None else 0
    docstring, rest = kept[:start], kept[start:]
    future = ast.ImportFrom("__future__", [ast.alias("annotations", lineno=1, col_offset=0)], 0, lineno=1, col_offset=0)
    tree.body = [*docstring, future, *rest]


def _import_one(statement: ast.Import | ast.ImportFrom, alias: ast.alias) -> ast.Import | ast.ImportFrom:
    if isinstance(statement, ast.Import):
        return ast.copy_location(ast.Import([alias]), statement)
    return ast.copy_location(ast.ImportFrom(statement.module, [alias], statement.level), statement)


def _package(statement: ast.Import | ast.ImportFrom) -> str:
    name = statement.names[0].name if isinstance(statement, ast.Import) else statement.module or ""
    return name.partition(".")[0]


def _copy_at(statement: ast.stmt, place: ast.stmt) -> ast.stmt:
    """Return a copy of an import, on the line of `place`."""
    copied = (
        ast.Import(statement.names) if isinstance(statement, ast.Import) else ast.ImportFrom(statement.module, statement.names, 0)
    )
    return ast.fix_missing_locations(ast.copy_location(copied, place))


def _outermost_functions(body: list[ast.stmt]) -> Iterator[Function]:
    for statement in body:
        if isinstance(statement, Function):
            yield statement
        elif isinstance(statement, ast.ClassDef | ast.If | ast.Try | ast.With):
            yield from _outermost_functions(statement.body)


def _loaded_names(node: ast.AST) -> Iterator[str]:
    """Yield the names that a function or its inner functions look up, except in annotations."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield node.id
    for field, value in ast.iter_fields(node):
        if field not in ("annotation", "returns"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _loaded_names(child)


def _names_used_at_import(node: ast.AST) -> Iterator[str]:
    """Yield the names that importing the module looks up: names outside function bodies and annotations."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns") or (isinstance(node, Function | ast.Lambda) and field in ("body", "args")):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Load):
                yield child.id
            elif isinstance(child, ast.AST):
                yield from _names_used_at_import(child)
    if isinstance(node, Function | ast.Lambda):
        for default in [*node.args.defaults, *node.args.kw_defaults]:
            if default is not None:
                yield from _names_used_at_import(ast.Expr(default))
    if isinstance(node, ast.Lambda):  # a lambda cannot contain an import
        yield from (name.id for name in ast.walk(node.body) if isinstance(name, ast.Name))


def _names_in_annotations(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        for field in ("annotation", "returns"):
            if (annotation := getattr(node, field, None)) is not None:
                yield from (name.id for name in ast.walk(annotation) if isinstance(name, ast.Name))


def _local_names(function: Function) -> set[str]:
    """Return the parameters and the names that the function itself assigns, without the names of inner functions."""
    arguments = function.args
    given = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    names = {argument.arg for argument in given if argument}
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.alias):
            names.add(node.asname or node.name.partition(".")[0])
        if not isinstance(node, Function | ast.Lambda | ast.ClassDef):
            waiting.extend(ast.iter_child_nodes(node))
    return names

"""Tests of the layers: imports point down, the page's process imports nothing heavy, side effects stay in their packages."""

import ast
import functools
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from backend.settings import PROJECT_FOLDER

LAYERS = ("wan_studio", "app", "wan_ui", "backend", "kernels", "presets")  # from the top
OUTSIDE = ("training", "benchmarks", "tests")  # no layer may import these
MAY_USE_JAX = ("backend", "kernels")
HEAVY = {"jax", "jaxlib", "torch", "torchax", "diffusers", "transformers", "safetensors", "flax"}
LIGHT_LAYERS = {
    "wan_studio": {"httpx", "imageio_ffmpeg", "numpy"},  # in a notebook's kernel; the last two only while a video is decoded
    "presets": {"pydantic"},
    "wan_ui": {"gradio", "PIL", "pydantic", "starlette", "fastapi", "gradio_client", "uvicorn"},
}
MOST_LINES_OF_APP = 100
MOST_PUBLIC_METHODS = 20  # the most public functions and properties in the body of a class


def modules() -> dict[str, Path]:
    """Return the file of every module of the layers, by dotted name."""
    found = {"app": PROJECT_FOLDER / "app.py"}
    for layer in LAYERS:
        for path in (PROJECT_FOLDER / layer).rglob("*.py"):
            parts = path.relative_to(PROJECT_FOLDER).with_suffix("").parts
            found[".".join(part for part in parts if part != "__init__")] = path
    return found


MODULES = modules()


@functools.cache
def tree(name: str) -> ast.Module:
    return ast.parse(MODULES[name].read_text(encoding="utf-8"))


@functools.cache
def imports(name: str) -> tuple[str, ...]:
    """Return the dotted names that a module imports anywhere, also in functions."""
    return tuple(_imports(name))


def _imports(name: str) -> Iterator[str]:
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports relatively: write the whole name"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def own_imports(name: str) -> set[str]:
    """Return the project's modules that a module imports."""
    longest = (next((made for made in (given, given.rpartition(".")[0]) if made in MODULES), None) for given in imports(name))
    return {module for module in longest if module}


def top(name: str) -> str:
    return name.partition(".")[0]


def test_imports_point_down():
    for name in MODULES:
        allowed = LAYERS[LAYERS.index(top(name)) :]
        for imported in imports(name):
            assert top(imported) not in OUTSIDE, f"{name} imports {imported}"
            assert top(imported) not in LAYERS or top(imported) in allowed, f"{name} imports {imported}, which lies above it"


def test_the_client_imports_no_other_layer():
    """The client may run in another environment than the server, without its packages."""
    for name in (name for name in MODULES if top(name) == "wan_studio"):
        assert {top(module) for module in own_imports(name)} <= {"wan_studio"}, name


def test_only_the_lower_layers_know_jax():
    for name in MODULES:
        if top(name) not in MAY_USE_JAX:
            assert not HEAVY & {top(imported) for imported in imports(name)}, name


def test_the_kernels_know_jax_alone():
    for name in (name for name in MODULES if top(name) == "kernels"):
        assert HEAVY & {top(imported) for imported in imports(name)} <= {"jax", "jaxlib"}, name


def test_the_light_layers_need_few_packages():
    for name in (name for name in MODULES if top(name) in LIGHT_LAYERS):
        ours = {*LAYERS, *LIGHT_LAYERS[top(name)]}
        assert {top(imported) for imported in imports(name)} <= ours | sys.stdlib_module_names, name


ROOMS = (  # the packages of backend/, from the top layer down; modules in no package are the ground
    *("cli", "engine", "catalog", "worker_pool", "cluster", "multihost", "workers", "selftest", "tpu_analysis"),
    *("pipeline", "models", "sampling", "weights", "runtime", "checkpoints", "media", "prompt_rewriting", "schemas"),
)
GROUND = "ground"
LIGHT_ROOMS = (
    *("cli", "engine", "catalog", "worker_pool", "cluster", "multihost", "workers"),
    *("checkpoints", "media", "prompt_rewriting", "schemas", GROUND),
)
FACES = re.compile(r"backend\.models(\.spec|\.\w+\.(action_)?spec)?")
MODELS = re.compile(r"backend\.models\.(\w+\.)?(\w+_)?model")
PROCESSES = re.compile(r"backend\.cli\.\w+_run")  # these run in separate processes and may import jax
FAMILY_NAMES = r"(?<![A-Za-z])[Ww]an(?=[A-Z0-9.\-' ]|$)|[Hh]unyuan|VACE|(?<![a-z])[Vv]ace(?![a-z])"
TENSOR_NAMES = r"\bto_[qkv]\b|\battn[12]|\bffn\.|\bblocks\.|patch_embedding|proj_out|vision_model|embed_tokens"
MODEL_NAMES = re.compile(rf"{FAMILY_NAMES}|UMT5|umt5|CLIP|{TENSOR_NAMES}")
KIT = re.compile(r"backend\.models\.(common\.\w+|spec|layouts|model|plans)")  # what the families share


def room(name: str) -> str:
    """Return the package of a module of backend/, or `GROUND`."""
    second = name.split(".")[1] if name.count(".") else GROUND
    return second if second in ROOMS else GROUND


BACKEND = [name for name in MODULES if top(name) == "backend" and name != "backend"]


def imports_at_once(name: str) -> set[str]:
    """Return the project's modules that importing a module imports. Imports in functions and for type checkers do not count."""
    body = [node for node in tree(name).body if isinstance(node, ast.Import | ast.ImportFrom)]
    given = [f"{node.module}.{alias.name}" for node in body if isinstance(node, ast.ImportFrom) for alias in node.names]
    given += [alias.name for node in body if isinstance(node, ast.Import) for alias in node.names]
    return {found for one in given for found in (one, one.rpartition(".")[0]) if found in MODULES} | _parents(name)


def _parents(name: str) -> set[str]:
    """Return the packages that Python imports before the module."""
    parts = name.split(".")
    return {".".join(parts[:end]) for end in range(1, len(parts))} & MODULES.keys()


def brought_at_once(name: str) -> set[str]:
    """Return the packages that importing this module imports."""
    reached, waiting, packages = set(), [name], set()
    while waiting:
        if (module := waiting.pop()) not in reached:
            reached.add(module)
            waiting.extend(imports_at_once(module))
            body = [node for node in tree(module).body if isinstance(node, ast.Import | ast.ImportFrom)]
            packages |= {top(node.module) for node in body if isinstance(node, ast.ImportFrom)}
            packages |= {top(alias.name) for node in body if isinstance(node, ast.Import) for alias in node.names}
    return packages


def test_imports_between_rooms_point_down():
    for name in BACKEND:
        floors = [*ROOMS, GROUND]
        for imported in own_imports(name):
            if top(imported) == "backend" and imported != "backend":
                assert floors.index(room(imported)) >= floors.index(room(name)), f"{name} imports {imported}, which lies above it"


def arrows(name: str) -> set[str]:
    """Return all modules of the project that a module imports, also in functions and for type checkers.

    A family's `spec` module may import its model module, which `Family.model()` returns. These imports do not count.
    """
    is_face = FACES.fullmatch(name) and name != "backend.models"
    return {one for one in own_imports(name) if not (is_face and MODELS.fullmatch(one))} - {name}


def in_circles(needed: dict[str, set[str]]) -> set[str]:
    """Return the modules in import cycles. Removes modules that import no other or that no other imports, until none remain."""
    while True:
        wanted = set().union(*needed.values())
        kept = {name: others & needed.keys() for name, others in needed.items() if others & needed.keys() and name in wanted}
        if kept == needed:
            return set(kept)
        needed = kept


def test_no_modules_import_each_other_in_a_circle():
    assert in_circles({name: arrows(name) for name in MODULES}) == set()


def test_a_late_import_and_one_for_type_checkers_count(monkeypatch, tmp_path):
    for line in ("def late():\n    from backend.errors import {}", "if TYPE_CHECKING:\n    from backend.errors import {}"):
        one, other = tmp_path / "one.py", tmp_path / "other.py"
        one.write_text(line.replace("backend.errors import {}", "backend.other import thing"))
        other.write_text("from backend.one import thing")
        monkeypatch.setitem(MODULES, "backend.one", one)
        monkeypatch.setitem(MODULES, "backend.other", other)
        tree.cache_clear(), imports.cache_clear()
        assert in_circles({name: arrows(name) for name in ("backend.one", "backend.other")}) == {"backend.one", "backend.other"}
    tree.cache_clear(), imports.cache_clear()


def is_light(name: str) -> bool:
    return bool(FACES.fullmatch(name)) or (room(name) in LIGHT_ROOMS and not PROCESSES.fullmatch(name))


def test_light_modules_bring_neither_jax_nor_torch():
    for name in (name for name in ("app", *BACKEND) if name == "app" or is_light(name)):
        assert not HEAVY & brought_at_once(name), name


def assert_names_no_family(name: str) -> None:
    """Assert that neither the module's code nor its comments contain the name of a model family."""
    for number, line in enumerate(MODULES[name].read_text("utf-8").splitlines(), 1):
        assert not re.search(FAMILY_NAMES, line), f"{name}:{number} names a family: {line.strip()}"


def code_words(name: str) -> Iterator[tuple[int, str]]:
    """Yield names and strings of a module's code with their lines, without docstrings and comments, which may name tensors."""
    module = tree(name)
    prose = {
        id(node.body[0].value)
        for node in ast.walk(module)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and node.body and isinstance(node.body[0], ast.Expr)
    }
    prose |= {id(node.value) for node in ast.walk(module) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)}
    for node in ast.walk(module):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.lineno, node.value
        elif isinstance(node, ast.Name | ast.Attribute | ast.alias | ast.FunctionDef | ast.ClassDef):
            word = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else node.name
            yield getattr(node, "lineno", 0), word


def test_outside_the_families_nothing_names_a_model_or_a_tensor():
    for name in (name for name in BACKEND if room(name) != "models"):
        assert_names_no_family(name)
        for line, word in code_words(name):
            assert not MODEL_NAMES.search(word), f"{name}:{line} says {word!r}"


def test_what_the_families_share_knows_none_of_them():
    for name in (name for name in BACKEND if KIT.fullmatch(name)):
        families = {imported for imported in own_imports(name) if imported.startswith("backend.models.")}
        assert all(map(KIT.fullmatch, families)), f"{name} imports {families}"
        assert_names_no_family(name)


def test_packages_hold_no_code_but_the_registry_and_public_names():
    for name in (name for name in MODULES if MODULES[name].name == "__init__.py"):
        if name != "backend.models":
            body = [node for node in tree(name).body if not isinstance(node, ast.Import | ast.ImportFrom)]
            assert all(isinstance(node, ast.Expr | ast.Assign) for node in body), f"{name} holds code"


def test_tests_mirror_the_rooms():
    tested = {path.name for path in (PROJECT_FOLDER / "tests" / "backend").iterdir() if path.is_dir()} - {"__pycache__"}
    assert tested <= set(ROOMS)


def test_only_the_settings_read_the_environment():
    client = {"wan_studio.hosted", "wan_studio.server"}  # the client may not import the settings
    for name in MODULES.keys() - {"backend.settings", *client}:
        for node in ast.walk(tree(name)):
            is_read = isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv", "environb")
            assert not is_read, f"{name}:{node.lineno} reads the environment; add it to backend/settings.py"


def test_nothing_prints():
    for name in MODULES:
        for node in ast.walk(tree(name)):
            is_print = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
            assert not is_print, f"{name}:{node.lineno} prints; raise, log, or yield an event"


def test_every_module_says_its_job():
    for name in MODULES:
        assert ast.get_docstring(tree(name)), f"{name} has no docstring"


def test_the_app_stays_small():
    assert len(MODULES["app"].read_text().splitlines()) < MOST_LINES_OF_APP


def public_methods(node: ast.ClassDef) -> list[str]:
    """Return the names of the public functions and properties in the body of a class."""
    functions = [one.name for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [name for name in functions if not name.startswith("_")]


def test_no_class_has_many_public_methods():
    for name in MODULES:
        for node in ast.walk(tree(name)):
            if isinstance(node, ast.ClassDef):
                count = len(public_methods(node))
                assert count <= MOST_PUBLIC_METHODS, f"{name}.{node.name} has {count} public methods; split it"


WAN_UI_ROOMS = (  # the studio's layers from the top; an import points to a lower layer, or stays in its package
    ("serve",),
    ("studio",),
    ("views",),
    ("compare", "create", "edit", "library", "live", "models", "system"),
    ("view",),
    ("stage",),
    ("routes", "form"),
    ("queue",),
    ("services", "header"),
    ("gateway",),
    ("components",),
    ("i18n", "theme", "scripts", "gradio_fixes"),
)
WAN_UI_FLOORS = {room: floor for floor, rooms in enumerate(WAN_UI_ROOMS) for room in rooms}
BACKEND_FOR_WAN_UI = {
    "budget",
    "engine",
    "catalog",
    "media",
    "prompt_rewriting",
    "schemas",
    "errors",
    "settings",
    "files",
    "chips",
    "startup",
}


def wan_ui_room(name: str) -> str:
    return name.split(".")[1]


WAN_UI_MODULES = [name for name in MODULES if name.startswith("wan_ui.")]


def test_the_studios_imports_point_to_lower_floors():
    for name in WAN_UI_MODULES:
        room = wan_ui_room(name)
        for imported in own_imports(name) & set(WAN_UI_MODULES):
            other = wan_ui_room(imported)
            is_lower = WAN_UI_FLOORS[other] > WAN_UI_FLOORS[room]
            assert other == room or is_lower, f"{name} imports {imported}, which is not on a lower floor (see WAN_UI_ROOMS)"


def test_the_studio_knows_the_engine_and_no_model():
    for name in WAN_UI_MODULES:
        for imported in own_imports(name):
            is_backend, room = top(imported) == "backend", imported.split(".")[1:2]
            assert not is_backend or set(room) <= BACKEND_FOR_WAN_UI, f"{name} imports {imported}"

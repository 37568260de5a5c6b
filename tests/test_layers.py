"""The house's walls: imports point down, the page's process stays light, effects stay where they belong."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from backend.settings import PROJECT_FOLDER

LAYERS = ("app", "wan_ui", "backend", "kernels", "presets")  # from the top
OUTSIDE = ("training", "benchmarks", "tests")  # nothing in a layer may need these
MAY_USE_JAX = ("backend", "kernels")
HEAVY = {"jax", "jaxlib", "torch", "torchax", "diffusers", "transformers", "safetensors", "flax"}
LIGHT_LAYERS = {"presets": {"pydantic"}, "wan_ui": {"gradio", "PIL", "pydantic", "starlette", "fastapi", "gradio_client"}}
MOST_LINES_OF_APP = 100


def modules() -> dict[str, Path]:
    """Every module of the layers, by its dotted name."""
    found = {"app": PROJECT_FOLDER / "app.py"}
    for layer in LAYERS[1:]:
        for path in (PROJECT_FOLDER / layer).rglob("*.py"):
            parts = path.relative_to(PROJECT_FOLDER).with_suffix("").parts
            found[".".join(part for part in parts if part != "__init__")] = path
    return found


MODULES = modules()


def tree(name: str) -> ast.Module:
    return ast.parse(MODULES[name].read_text(encoding="utf-8"))


def imports(name: str) -> Iterator[str]:
    """Dotted names that a module imports anywhere, also inside functions; relative ones resolved."""
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports relatively: write the whole name"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def own_imports(name: str) -> set[str]:
    """The modules of ours that a module imports."""
    longest = (next((made for made in (given, given.rpartition(".")[0]) if made in MODULES), None) for given in imports(name))
    return {module for module in longest if module}


def top(name: str) -> str:
    return name.partition(".")[0]


@pytest.mark.parametrize("name", MODULES)
def test_imports_point_down(name):
    allowed = LAYERS[LAYERS.index(top(name)) :]
    for imported in imports(name):
        assert top(imported) not in OUTSIDE, f"{name} imports {imported}"
        assert top(imported) not in LAYERS or top(imported) in allowed, f"{name} imports {imported}, which lies above it"


@pytest.mark.parametrize("name", MODULES)
def test_only_the_lower_layers_know_jax(name):
    if top(name) not in MAY_USE_JAX:
        assert not HEAVY & {top(imported) for imported in imports(name)}


@pytest.mark.parametrize("name", [name for name in MODULES if top(name) == "kernels"])
def test_the_kernels_know_jax_alone(name):
    assert HEAVY & {top(imported) for imported in imports(name)} <= {"jax", "jaxlib"}


@pytest.mark.parametrize("name", [name for name in MODULES if top(name) in LIGHT_LAYERS])
def test_the_light_layers_need_few_packages(name):
    import sys

    ours = {*LAYERS, *LIGHT_LAYERS[top(name)]}
    assert {top(imported) for imported in imports(name)} <= ours | sys.stdlib_module_names


def reached_from(name: str) -> set[str]:
    """The modules of ours that come along when this one is imported."""
    reached, waiting = set(), [name]
    while waiting:
        if (module := waiting.pop()) not in reached:
            reached.add(module)
            waiting.extend(own_imports(module))
    return reached


def test_the_pages_process_reaches_neither_jax_nor_the_worker():
    reached = reached_from("app")
    assert "backend.engine.engine" in reached and "wan_ui.studio" in reached
    assert "backend.workers.main" not in reached
    for name in reached:
        assert not HEAVY & {top(imported) for imported in imports(name)}, f"{name} comes with the page's process"


@pytest.mark.parametrize("name", [name for name in MODULES if name != "backend.settings"])
def test_only_the_settings_read_the_environment(name):
    for node in ast.walk(tree(name)):
        is_read = isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv", "environb")
        assert not is_read, f"{name}:{node.lineno} reads the environment; add it to backend/settings.py"


@pytest.mark.parametrize("name", MODULES)
def test_nothing_prints(name):
    for node in ast.walk(tree(name)):
        is_print = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
        assert not is_print, f"{name}:{node.lineno} prints; raise, log, or yield an event"


@pytest.mark.parametrize("name", MODULES)
def test_every_module_says_its_job(name):
    assert ast.get_docstring(tree(name)), f"{name} has no docstring"


def test_the_app_stays_small():
    assert len(MODULES["app"].read_text().splitlines()) < MOST_LINES_OF_APP


WAN_UI_ROOMS = (  # the floors of the studio from the top; an import points to a lower one, or stays in its room
    ("serve",),
    ("studio",),
    ("page",),
    ("views",),
    ("compare", "library", "stage"),
    ("routes", "system", "queue", "form"),
    ("desk", "header"),
    ("parts",),
    ("words", "theme"),
)
WAN_UI_FLOORS = {room: floor for floor, rooms in enumerate(WAN_UI_ROOMS) for room in rooms}
BACKEND_FOR_WAN_UI = {"engine", "media", "contract", "errors", "settings", "files", "chips"}


def wan_ui_room(name: str) -> str:
    return name.split(".")[1]


WAN_UI_MODULES = [name for name in MODULES if name.startswith("wan_ui.")]


@pytest.mark.parametrize("name", WAN_UI_MODULES)
def test_the_studios_imports_point_to_lower_floors(name):
    room = wan_ui_room(name)
    for imported in own_imports(name) & set(WAN_UI_MODULES):
        other = wan_ui_room(imported)
        is_lower = WAN_UI_FLOORS[other] > WAN_UI_FLOORS[room]
        assert other == room or is_lower, f"{name} imports {imported}, which is not on a lower floor (see WAN_UI_ROOMS)"


@pytest.mark.parametrize("name", WAN_UI_MODULES)
def test_the_studio_knows_the_engine_and_no_model(name):
    for imported in own_imports(name):
        is_backend, room = top(imported) == "backend", imported.split(".")[1:2]
        assert not is_backend or set(room) <= BACKEND_FOR_WAN_UI, f"{name} imports {imported}"


@pytest.mark.parametrize("name", WAN_UI_MODULES)
def test_no_room_of_the_studio_goes_round_in_a_circle(name):
    room = wan_ui_room(name)
    reached, waiting = set(), [name]
    while waiting:
        within = {other for other in own_imports(waiting.pop()) if other.startswith(f"wan_ui.{room}.")}
        waiting.extend(within - reached)
        reached |= within
    assert name not in reached, f"{name} imports itself by way of {sorted(reached)}"

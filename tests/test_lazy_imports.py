"""Tests that imports of test files move into the functions that use them, and that nothing else changes."""

import ast

import pytest

from tests.lazy_imports import move_imports


def moved(source: str) -> str:
    tree = ast.parse(source)
    move_imports(tree)
    return ast.unparse(tree).replace("from __future__ import annotations", "").strip()


def same(source: str) -> str:
    return ast.unparse(ast.parse(source))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import torch\ndef f():\n    torch.ones(1)", "def f():\n    import torch\n    torch.ones(1)"),
        ("import jax.numpy as jnp\ndef f():\n    return jnp", "def f():\n    import jax.numpy as jnp\n    return jnp"),
        ("from a import b\ndef f():\n    '''Doc.'''\n    b()", "def f():\n    '''Doc.'''\n    from a import b\n    b()"),
        ("import a.b\nimport a.c\ndef f():\n    a.c", "def f():\n    import a.b, a.c\n    a.c"),
        ("import a\nclass C:\n    def f(self):\n        a", "class C:\n\n    def f(self):\n        import a\n        a"),
        ("import a\ndef f():\n    def g():\n        a", "def f():\n    import a\n\n    def g():\n        a"),
    ],
)
def test_an_import_moves_to_its_use(source, expected):
    assert moved(source) == same(expected)


@pytest.mark.parametrize(
    "source",
    [
        "import torch\n\n@torch.no_grad()\ndef f():\n    torch",  # a decorator
        "import torch\nONE = torch.ones(1)",
        "import torch\n\nclass C(torch.nn.Module):\n    pass",
        "import torch\n\ndef f(x=torch.float32):\n    pass",
        "import torch\nf = lambda: torch",
        "import json\n\ndef f():\n    json",  # a module of the standard library
        "from tests.builders import fixture\n\ndef f(fixture):\n    fixture",  # a fixture, which pytest looks up in the module
    ],
)
def test_an_import_that_the_module_itself_needs_stays(source):
    first = source.partition("\n")[0]
    assert sorted(moved(source).split("\n\n")) == sorted(same(source).split("\n\n")) or moved(source).endswith(first)
    assert f"    {first}" not in moved(source)


def test_an_import_for_annotations_alone_goes():
    assert "import" not in moved("from a import Model\ndef f(x: Model) -> Model:\n    return x")

"""Presets inherit the values of their bases."""

from pathlib import Path

import pytest

from presets.loader import BASES, find_files, resolve_values


@pytest.fixture
def write(tmp_path):
    """Return a function that writes files into a folder of presets. Dots in the values' names make tables."""
    (tmp_path / BASES).mkdir()

    def write_files(**texts: str) -> Path:
        for name, text in texts.items():
            folder = tmp_path / BASES if name.startswith("base") else tmp_path
            (folder / f"{name}.toml").write_text(text, "utf-8")
        return tmp_path

    return write_files


def test_own_values_replace_inherited_ones_and_tables_merge_by_key(write):
    folder = write(
        base_all='steps = 50\nsizes = [[96, 96]]\nzh.title = "一"\nzh.examples = ["二"]\narchitecture = { vae = "a", transformer = "b" }',
        full='base = "base_all"\nsizes = [[64, 64], [32, 32]]\narchitecture.transformer = "c"\nzh.title = "三"',
        draft='base = "full"\nsteps = 4\ntakes.video = "may"',
    )
    assert resolve_values("full", folder) == {
        "steps": 50,
        "sizes": [[64, 64], [32, 32]],
        "zh": {"title": "三", "examples": ["二"]},
        "architecture": {"vae": "a", "transformer": "c"},
    }
    assert resolve_values("draft", folder) == resolve_values("full", folder) | {"steps": 4, "takes": {"video": "may"}}
    assert [path.stem for path in find_files("draft", folder)] == ["draft", "full", "base_all"]
    assert resolve_values("base_all", folder)["architecture"] == {"vae": "a", "transformer": "b"}


def test_an_unknown_base_is_refused_with_the_file_and_the_nearest_name(write):
    folder = write(base_all="", full='base = "base_al"', draft='base = "full"')
    with pytest.raises(
        ValueError, match=r"full\.toml: base='base_al' must be the name of a preset or .*; did you mean base_all\?"
    ):
        resolve_values("draft", folder)


def test_a_base_is_never_a_path(write):
    folder = write(base_all="", full='base = "bases/base_all"')
    with pytest.raises(ValueError, match=r"full\.toml: base='bases/base_all' must be the name of a preset"):
        resolve_values("full", folder)


@pytest.mark.parametrize(("base", "circle"), [("full", "full -> full"), ("draft", "full -> draft -> full")])
def test_a_circle_is_refused_with_the_file(write, base, circle):
    folder = write(full=f'base = "{base}"', draft='base = "full"')
    with pytest.raises(ValueError, match=rf"{base}\.toml: base='full' makes a circle \({circle}\)"):
        resolve_values("full", folder)

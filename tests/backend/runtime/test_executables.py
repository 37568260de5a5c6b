"""Executables on disk are loaded if everything matches, and compiled otherwise."""

import functools
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from backend.runtime.executables import SUFFIX, ExecutableFolders, ExecutableWriter
from backend.runtime.mesh import Layout, MeshPlan
from backend.runtime.program import Program


@functools.cache
def one_device() -> Layout:
    return Layout.create(MeshPlan(), jax.devices()[:1])


@functools.cache
def eight_numbers() -> jax.Array:
    return jnp.arange(8.0)


def double(array: jax.Array) -> jax.Array:
    return array * 2


def triple(array: jax.Array) -> jax.Array:
    return array * 3


@pytest.fixture
def folder(tmp_path):
    """A folder with the program `double` for eight numbers.

    JAX's own cache is off, as in `precompile`: an executable that JAX has read from its cache cannot be written again on a CPU. A
    busy machine takes long enough to compile even this program that JAX stores it.
    """
    was_enabled = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    Program("doubling", double, one_device(), compiler=ExecutableWriter(folder=tmp_path, report=lambda *_: None)).prepare(
        eight_numbers()
    )
    jax.config.update("jax_enable_compilation_cache", was_enabled)
    return tmp_path


def program(folder, function=double, name="doubling") -> Program:
    return Program(name, function, one_device(), compiler=ExecutableFolders([folder]))


def test_what_was_written_is_loaded_and_right(folder):
    loaded = program(folder)
    assert np.array_equal(loaded(eight_numbers()), np.arange(8.0) * 2) and loaded.is_loaded(eight_numbers())


def test_another_shape_type_or_function_is_compiled(folder):
    for array in (jnp.arange(9.0), jnp.arange(8)):
        other = program(folder)
        assert np.array_equal(other(array), np.asarray(array) * 2) and not other.is_loaded(array)
    other = program(folder, triple)
    assert np.array_equal(other(eight_numbers()), np.arange(8.0) * 3) and not other.is_loaded(eight_numbers())


def test_other_flags_are_another_program(folder, monkeypatch):
    monkeypatch.setattr("backend.runtime.executables.compiler_flags", lambda: {"XLA_FLAGS": "--xla_cpu_enable_fast_math=true"})
    other = program(folder)
    other.prepare(eight_numbers())
    assert not other.is_loaded(eight_numbers())


def test_another_version_is_another_program(folder, monkeypatch):
    monkeypatch.setattr("backend.runtime.executables.installed_version", lambda package: "0.0.1")
    other = program(folder)
    other.prepare(eight_numbers())
    assert not other.is_loaded(eight_numbers())


@pytest.mark.parametrize("content", [b"", b"not a pickle", b"\x80\x04N."])
def test_a_broken_file_is_told_and_compiled_instead(folder, content, caplog):
    next(folder.glob(f"*{SUFFIX}")).write_bytes(content)
    mended = program(folder)
    with caplog.at_level(logging.WARNING):
        assert np.array_equal(mended(eight_numbers()), np.arange(8.0) * 2)
    assert "cannot be loaded" in caplog.text and not mended.is_loaded(eight_numbers())


def test_what_is_there_is_not_made_again(folder):
    told = []
    again = Program(
        "doubling", double, one_device(), compiler=ExecutableWriter(folder=folder, report=lambda *told_: told.append(told_))
    )
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    described = again.prepare(eight_numbers())
    assert described.shape == (8,) and described.sharding == one_device().replicated
    assert [seconds for _, _, seconds in told] == [None]
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_no_folder_costs_no_lookup(tmp_path):
    assert not program(tmp_path).is_loaded(eight_numbers())
    lone = Program("doubling", double, one_device(), compiler=ExecutableFolders([]))
    assert np.array_equal(lone(eight_numbers()), np.arange(8.0) * 2)

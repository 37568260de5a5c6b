"""Tests that cached files are used for the same facts only, and are replaced if they are damaged."""

import os
import time
import zlib

import numpy as np
import pytest

from backend.schemas.request import GenerationRequest
from presets import load_preset
from tests import kept as module
from tests.kept import digest, kept, programs
from tests.many_devices import quick_flags


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("STUDIO_TEST_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def counted(*facts, value=1.0):
    """Return the cached array for these facts, and the number of times that it was computed."""
    calls = []
    found = kept(lambda: calls.append(1) or np.full(3, value), *facts)
    return found.tolist(), len(calls)


def test_the_same_facts_are_not_made_twice():
    assert counted("a", 1) == ([1.0] * 3, 1)
    assert counted("a", 1, value=2.0) == ([1.0] * 3, 0)
    for others in (("a", 2), ("a1",), ("a", 1, None), ("a", "1")):
        assert counted(*others, value=2.0) == ([2.0] * 3, 1)


@pytest.mark.parametrize(
    "damage", [lambda data: data[:40], lambda data: b"", lambda data: data.replace(b"\xf0\x3f", b"\xf0\x40")]
)
def test_a_damaged_file_is_created_again(cache, damage):
    counted("a")
    (path,) = cache.rglob("*.npz")
    path.write_bytes(damage(path.read_bytes()))
    assert counted("a", value=2.0) == ([2.0] * 3, 1)
    assert counted("a", value=3.0) == ([2.0] * 3, 0)


def test_what_counts_of_a_request_are_its_settings_and_the_content_of_its_inputs(tmp_path):
    picture, copy = tmp_path / "a" / "first.png", tmp_path / "b" / "first.png"
    for path in (picture, copy):
        path.parent.mkdir()
        path.write_bytes(b"one")
    first, second = (
        GenerationRequest.from_preset(load_preset("wan-tiny"), prompt="x", seed=1, image=str(path)) for path in (picture, copy)
    )
    assert digest(first) == digest(second) != digest(first.with_changes(seed=2))
    copy.write_bytes(b"two")
    assert digest(first) != digest(second)


def test_other_versions_and_flags_have_folders_of_their_own(monkeypatch):
    usual = module.folder()
    with monkeypatch.context() as patch:
        patch.setattr(module, "_version", lambda package: "0")
        assert module.folder() != usual
    for name in module.FLAGS:
        with monkeypatch.context() as patch:
            patch.setenv(name, "something else")
            assert module.folder() != usual
    assert module.folder() == usual


def test_programs_that_are_cut_short_are_removed_but_not_while_they_are_written():
    whole, cut, new = (programs() / f"{name}-cache" for name in ("whole", "cut", "new"))
    whole.write_bytes(zlib.compress(b"a program" * 100))
    for path in (cut, new):
        path.write_bytes(whole.read_bytes()[:-5])
    for path in (whole, cut):
        os.utime(path, (time.time() - 300,) * 2)
    programs()
    assert (whole.exists(), cut.exists(), new.exists()) == (True, False, True)


@pytest.mark.parametrize(("jaxlib", "is_known"), [("0.10.2", True), ("0.11.0", True), ("0.11.1", False), ("0.12.0.1", False)])
def test_flags_for_quick_compilation_are_known_to_the_installed_xla(jaxlib, is_known):
    assert ("--xla_cpu_use_fusion_emitters=false" in quick_flags(jaxlib).split()) == is_known

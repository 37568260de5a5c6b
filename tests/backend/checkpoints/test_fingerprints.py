"""Changed files are noticed, and two files of the same bytes count as the same."""

import os
import shutil

import pytest
import torch
from safetensors.torch import save_file

from backend.checkpoints.fingerprints import fingerprint_files, have_equal_bytes, is_unchanged


@pytest.fixture
def weights(tmp_path):
    path = tmp_path / "a.safetensors"
    save_file({"w": torch.arange(1000.0)}, path)
    return path


def test_a_file_that_is_left_alone_is_unchanged(weights):
    found = fingerprint_files([weights])
    assert is_unchanged(found)
    os.chmod(weights, 0o600)
    assert is_unchanged(found)


def test_other_bytes_another_size_another_header_and_no_file_are_changes(weights):
    found, status = fingerprint_files([weights]), weights.stat()
    save_file({"w": torch.arange(1000.0) + 1}, weights)  # the same size and header, written later
    assert not is_unchanged(found)
    save_file({"v": torch.arange(1000.0)}, weights)
    os.utime(weights, ns=(status.st_atime_ns, status.st_mtime_ns))  # another program set the old time
    assert not is_unchanged(found)
    weights.unlink()
    assert not is_unchanged(found)


def test_copies_and_links_hold_the_same_and_files_of_other_values_do_not(weights, tmp_path):
    copy, link, other = tmp_path / "copy.safetensors", tmp_path / "link.safetensors", tmp_path / "other.safetensors"
    shutil.copyfile(weights, copy)
    link.symlink_to(weights)
    changed = torch.arange(1000.0)
    changed[700] += 1
    save_file({"w": changed}, other)
    mine = fingerprint_files([weights])
    assert have_equal_bytes(mine, fingerprint_files([copy])) and have_equal_bytes(mine, fingerprint_files([link]))
    assert not have_equal_bytes(mine, fingerprint_files([other]))
    assert not have_equal_bytes(mine, fingerprint_files([weights, copy]))


def test_the_hubs_files_are_known_by_their_digests(weights, tmp_path, monkeypatch):
    """The Hub's cache names each file by the digest of its bytes. The file itself is not read."""
    places = [tmp_path / "one" / ("a" * 64), tmp_path / "two" / ("a" * 64), tmp_path / "three" / ("b" * 64)]
    for place in places:
        place.parent.mkdir()
        shutil.copyfile(weights, place)
    monkeypatch.setattr("filecmp.cmp", lambda *_, **__: pytest.fail("a file was read"))
    one, two, three = (fingerprint_files([place]) for place in places)
    assert have_equal_bytes(one, two) and not have_equal_bytes(one, three)


def test_a_copy_that_changed_since_is_not_the_same(weights, tmp_path):
    copy = tmp_path / "copy.safetensors"
    shutil.copyfile(weights, copy)
    mine, others = fingerprint_files([weights]), fingerprint_files([copy])
    os.utime(weights, (0, 0))
    assert not have_equal_bytes(mine, others)

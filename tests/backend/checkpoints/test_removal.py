"""Check which files leave the Hub's cache when a source is removed, and which stay because another source needs them."""

from pathlib import Path

import pytest
from huggingface_hub.utils import WeakFileLock

from backend.checkpoints import hub_file
from backend.checkpoints.removal import remove

COMMIT = "c" * 40
BASE, TORCH = "owner/base", "owner/base+maker/live:folder/weights.pt"
TRANSFORMER = "transformer/diffusion_pytorch_model.safetensors"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(hub_file.constants, "HF_HUB_CACHE", str(tmp_path))
    return tmp_path


def put(cache: Path, repository: str, name: str, content: str = "", commit: str = COMMIT) -> Path:
    """Write a file of the repository in the layout of the Hub's cache. Equal contents share one blob."""
    folder = cache / f"models--{repository.replace('/', '--')}"
    blob, link = folder / "blobs" / f"blob-{content or name.replace('/', '-')}", folder / "snapshots" / commit / name
    for path in (blob, link):
        path.parent.mkdir(parents=True, exist_ok=True)
    blob.write_text("x" * 100)
    link.symlink_to(blob)
    return link


def test_a_checkpoint_goes_whole_and_says_what_that_frees(cache):
    for name in ("model_index.json", "vae/config.json", TRANSFORMER):
        put(cache, BASE, name)
    assert remove(BASE, ()) == 300
    assert not list(cache.glob("models--*"))


def test_what_nobody_of_ours_has_fetched_stays(cache):
    put(cache, BASE, TRANSFORMER)
    readme = put(cache, BASE, "README.md")
    assert remove(BASE, ()) == 100
    assert readme.is_file() and not (readme.parent / "transformer").exists()


def test_parts_that_another_checkpoint_needs_stay(cache):
    index, transformer = put(cache, BASE, "model_index.json"), put(cache, BASE, TRANSFORMER)
    own = put(cache, "maker/live", "folder/weights.pt")
    lora = put(cache, "maker/live", "folder/lora.pt")
    assert remove(TORCH, (BASE, "maker/live:folder/lora.pt")) == 100
    assert index.is_file() and transformer.is_file() and lora.is_file() and not own.exists()


def test_the_base_goes_but_for_what_the_makers_file_needs(cache):
    index, transformer = put(cache, BASE, "model_index.json"), put(cache, BASE, TRANSFORMER)
    put(cache, "maker/live", "folder/weights.pt")
    assert remove(BASE, (TORCH,)) == 100
    assert index.is_file() and not transformer.exists()


def test_of_two_transformers_in_one_repository_one_goes_alone(cache):
    index, transformer = put(cache, BASE, "model_index.json"), put(cache, BASE, TRANSFORMER)
    other = put(cache, BASE, TRANSFORMER.replace("transformer/", "transformer_full/"))
    assert remove(f"{BASE}#transformer_full", (BASE,)) == 100
    assert index.is_file() and transformer.is_file() and not other.exists()


def test_one_file_of_many_goes_alone(cache):
    one, other = put(cache, "owner/loras", "a [v2].safetensors"), put(cache, "owner/loras", "a v.safetensors")
    assert remove("owner/loras:a [v2].safetensors", ()) == 100
    assert other.is_file() and not one.exists()


def test_a_content_that_another_commit_links_to_stays_until_its_last_link(cache):
    put(cache, BASE, TRANSFORMER, "same")
    put(cache, BASE, TRANSFORMER, "same", commit="d" * 40)
    put(cache, BASE, "README.md", "same")
    assert remove(BASE, ()) == 0  # the README shares the blob
    (cache / "models--owner--base" / "snapshots" / COMMIT / "README.md").unlink()
    put(cache, BASE, TRANSFORMER, "same", commit="e" * 40)
    assert remove(BASE, ()) == 100


def test_what_is_begun_goes_but_not_under_a_writers_hands(cache):
    folder = cache / "models--owner--base" / "blobs"
    folder.mkdir(parents=True)
    for name in ("1" * 64, "2" * 64):
        (folder / f"{name}.incomplete").write_text("y" * 10)
    with WeakFileLock(hub_file._lock_path(BASE, "2" * 64)):
        assert remove(BASE, ()) == 10
    assert [path.name for path in folder.iterdir()] == [f"{'2' * 64}.incomplete"]


def test_nothing_here_is_nothing_to_do():
    assert remove(BASE, ()) == 0

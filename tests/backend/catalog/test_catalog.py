"""Count the bytes of a checkpoint on this machine. Only files that a download of the checkpoint fetches count."""

from pathlib import Path

import pytest

from backend.catalog.catalog import count_bytes, list_entries
from backend.checkpoints import hub_file

DISTILLED = "Lightricks/LTX-2.5-Diffusers"
BASE = f"{DISTILLED}#transformer_full"
SHARED = ("model_index.json", "tokenizer/tokenizer.json", "vae/model.safetensors")
OTHERS = ("README.md", "prompt_enhancer/model.safetensors")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(hub_file.constants, "HF_HUB_CACHE", str(tmp_path))
    return tmp_path


def put(cache: Path, *names: str, size: int = 100) -> Path:
    """Write files of `size` bytes in the layout of the Hub's cache, and return their snapshot folder."""
    folder = cache / f"models--{DISTILLED.replace('/', '--')}"
    snapshot = folder / "snapshots" / ("c" * 40)
    for name in names:
        blob, link = folder / "blobs" / name.replace("/", "-"), snapshot / name
        for path in (blob, link):
            path.parent.mkdir(parents=True, exist_ok=True)
        blob.write_text("x" * size)
        link.symlink_to(blob)
    return snapshot


def begun_bytes(source: str) -> int:
    return next(entry.begun_bytes for entry in list_entries() if entry.source == source)


def test_each_of_two_transformers_in_one_repository_counts_for_its_own_model_alone(cache):
    snapshot = put(cache, *SHARED, *OTHERS)
    put(cache, "transformer/a.safetensors", "transformer/config.json", size=1000)
    put(cache, "transformer_full/a.safetensors", size=50_000)
    assert count_bytes(DISTILLED, snapshot) == 3 * 100 + 2 * 1000
    assert count_bytes(BASE, snapshot) == 3 * 100 + 50_000


def test_what_is_begun_of_one_is_not_counted_for_the_other(cache):
    put(cache, *SHARED)
    put(cache, "transformer_full/config.json", "transformer_full/a.safetensors", size=50_000)
    assert (begun_bytes(DISTILLED), begun_bytes(BASE)) == (0, 3 * 100 + 2 * 50_000)
    put(cache, "transformer/config.json")
    assert begun_bytes(DISTILLED) == 4 * 100

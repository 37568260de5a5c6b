"""Check which requests need no download: files of the Hub's cache in every state, and the errors for missing files."""

import shutil
from pathlib import Path

import pytest
from huggingface_hub import constants

from backend.catalog.weights_here import check_weights_installed, has_weights
from backend.checkpoints.single_file import parse_file_source
from backend.engine.options import choose_first_preset
from backend.errors import RequestError
from backend.schemas.request import GenerationRequest, example_request
from presets import LoraChoice, load_preset
from tests.hub_runs import DEMO, WEIGHTS

WAN = load_preset("wan2.1-t2v-1.3b-480p")
FAST = load_preset("wan2.1-t2v-14b-480p-fast")
LORA = "owner/name:style.safetensors"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    """An empty cache of the Hub's library."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    return tmp_path


def snapshot(cache: Path, repository: str) -> Path:
    """The folder of a repository's only commit."""
    folder = cache / f"models--{repository.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("c" * 40)
    return folder / "snapshots" / ("c" * 40)


def with_lora(source: str) -> GenerationRequest:
    return GenerationRequest.from_preset(load_preset("wan-tiny"), prompt="x", loras=(LoraChoice(source=source),))


def test_the_demo_model_and_files_of_the_loras_folder_are_here():
    assert has_weights(load_preset("wan-tiny"))
    check_weights_installed(with_lora("style.safetensors"))


def test_a_model_that_is_not_here_is_refused_in_words():
    assert not has_weights(WAN)
    with pytest.raises(RequestError) as refused:
        check_weights_installed(example_request(WAN))
    assert str(refused.value) == (
        "preset='wan2.1-t2v-1.3b-480p': its model must be on this machine already: only the operator may download it; "
        "choose another preset, or ask the operator to run `python app.py models download wan2.1-t2v-1.3b-480p`"
    )


@pytest.mark.demo_model
def test_a_model_in_the_cache_must_be_whole(cache):
    folder = Path(shutil.copytree(DEMO, snapshot(cache, WAN.model)))
    assert has_weights(WAN)
    check_weights_installed(example_request(WAN))
    (folder / WEIGHTS).unlink()
    assert not has_weights(WAN)
    with pytest.raises(RequestError, match="only the operator may download it"):
        check_weights_installed(example_request(WAN))


@pytest.mark.demo_model
def test_a_transformers_own_file_and_its_bases_other_parts_must_be_here(cache):
    preset = load_preset("longlive-1.3b-480p")
    named = parse_file_source(preset.model)
    folder = Path(shutil.copytree(DEMO, snapshot(cache, named.base)))
    (folder / WEIGHTS).unlink()
    assert not has_weights(preset)
    files = snapshot(cache, "Efficient-Large-Model/LongLive-1.3B") / "models"
    files.mkdir(parents=True)
    (files / "longlive_base.pt").touch()
    assert not has_weights(preset)
    (files / "lora.pt").touch()
    assert has_weights(preset)
    check_weights_installed(example_request(preset))
    (folder / "vae" / "diffusion_pytorch_model.safetensors").unlink()
    assert not has_weights(preset)


@pytest.mark.demo_model
def test_a_transformer_in_another_folder_must_be_here_itself(cache):
    distilled, base = load_preset("ltx-2.5-704p-fast"), load_preset("ltx-2.5-704p")
    folder = Path(shutil.copytree(DEMO, snapshot(cache, distilled.model)))
    assert has_weights(distilled) and not has_weights(base)
    (folder / "transformer").rename(folder / "transformer_full")
    assert has_weights(base) and not has_weights(distilled)


def test_a_lora_that_is_not_here_is_refused_in_words(cache):
    with pytest.raises(RequestError, match=f"the LoRA {LORA} must be .*; leave it out, or .* models download {LORA}"):
        check_weights_installed(with_lora(LORA))
    folder = snapshot(cache, "owner/name")
    folder.mkdir(parents=True)
    (folder / "style.safetensors").touch()
    check_weights_installed(with_lora(LORA))
    for name in ("another.safetensors", f"{'x' * 300}.safetensors"):
        with pytest.raises(RequestError, match="leave it out"):
            check_weights_installed(with_lora(f"owner/name:{name}"))


@pytest.mark.demo_model
def test_a_presets_own_loras_count_although_a_request_leaves_them_out(cache):
    shutil.copytree(DEMO, snapshot(cache, FAST.model))
    assert not has_weights(FAST)
    with pytest.raises(RequestError, match=f"the LoRA {FAST.loras[0].source}"):
        check_weights_installed(example_request(FAST, loras=()))
    repository, _, name = FAST.loras[0].source.partition(":")
    folder = snapshot(cache, repository)
    folder.mkdir(parents=True)
    (folder / name).touch()
    assert has_weights(FAST)
    check_weights_installed(example_request(FAST))


def test_a_broken_model_counts_as_here(tmp_path):
    for name in ("a.pt", "b.pt"):  # only one .pt file can be a checkpoint's transformer
        (tmp_path / name).write_bytes(b"x")
    assert has_weights(WAN.model_copy(update={"model": str(tmp_path)}))


def test_a_model_in_place_of_the_presets_counts_as_here():
    assert has_weights(WAN, "owner/name")
    check_weights_installed(example_request(WAN), "owner/name")
    with pytest.raises(RequestError, match="the LoRA"):
        check_weights_installed(example_request(FAST), "owner/name")


@pytest.mark.demo_model
def test_a_model_in_place_of_the_presets_is_offered_where_it_fits(tmp_path):
    folder = shutil.copytree(DEMO, tmp_path / "copy")
    assert has_weights(load_preset("wan-tiny"), folder) and not has_weights(WAN, folder)
    assert choose_first_preset(folder).name == "wan-tiny" and choose_first_preset("owner/name").name == "wan-tiny"
    assert choose_first_preset(WAN.model).model == WAN.model

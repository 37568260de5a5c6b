"""Check errors of loading a checkpoint: one line names the missing or broken part, and the remedy."""

import gc
import json
import shutil
import time
from pathlib import Path

import jax
import pytest
from safetensors.numpy import load_file

from backend.checkpoints import hub
from backend.checkpoints.checkpoint import open_checkpoint
from backend.checkpoints.single_file import assign_parts
from backend.errors import ModelError, Stopped
from backend.models import recognise
from backend.pipeline import load as load_module
from backend.pipeline.model_files import ModelFiles, check_model
from backend.schemas.events import Loading
from presets import load_preset

PRESET = load_preset("wan-tiny")
DEMO_MODEL = Path(PRESET.model_source)

pytestmark = [pytest.mark.parity, pytest.mark.demo_model]


@pytest.fixture
def checkpoint(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("STUDIO_DATA_DIR", str(tmp_path / "data"))
    return Path(shutil.copytree(DEMO_MODEL, tmp_path / "model"))


def load(folder: Path):
    return load_module.load(PRESET, str(folder), lambda event: None)


def test_loading_tells_every_byte(checkpoint):
    told: list[Loading] = []
    began = time.monotonic()
    loaded = load_module.load(PRESET, str(checkpoint), told.append)
    took = time.monotonic() - began
    assert list(dict.fromkeys(event.what for event in told)) == ["text encoder", "transformer", "vae"]
    assert len(told) <= 3 + 1 + took  # one per part, one at the end, one per second: every event is stored
    weights = [value for path in checkpoint.glob("*/*.safetensors") for value in load_file(path).values()]
    assert told[-1].bytes_done == told[-1].bytes_total == sum(value.nbytes for value in weights)
    assert [event.bytes_done for event in told] == sorted(event.bytes_done for event in told)
    assert loaded.model.spec.name == "wan2.2-ti2v" and loaded.model.dtype == "float32"
    assert set(loaded.versions) >= {"jax", "torch", "diffusers"}


def test_loading_ends_where_its_report_is_refused(checkpoint):
    def stop(event: Loading) -> None:
        if event.what == "transformer":
            raise Stopped

    with pytest.raises(Stopped):
        load_module.load(PRESET, str(checkpoint), stop)


def test_a_transformer_file_inside_the_checkpoint_counts_once(checkpoint):
    """Hosts compare the hash of these files, so that a host with another transformer is found."""
    family, spec = recognise(open_checkpoint(checkpoint))
    for name in ("turbo.pth", "transformer_files/turbo.safetensors"):
        path = checkpoint / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"1234")
        opened = open_checkpoint(checkpoint, assign_parts([path]))
        files = ModelFiles(source="x", checkpoint=opened, family=family, spec=spec)
        assert files.paths.count(path) == 1
        before = files.files_hash
        path.write_bytes(b"12345")
        assert files.files_hash != before


def test_a_checkpoint_is_opened_once_a_load(checkpoint, monkeypatch):
    opened = []
    monkeypatch.setattr(hub, "open_checkpoint", lambda folder, **rest: opened.append(folder) or open_checkpoint(folder))
    files = check_model(PRESET, str(checkpoint), lambda event: None)
    load_module.load(PRESET, str(checkpoint), lambda event: None, files=files)
    assert opened == [checkpoint]


def test_a_folder_that_is_not_there():
    with pytest.raises(ModelError, match="is not on this machine; give its folder with --model, or take the preset wan-tiny"):
        load(Path("/nowhere"))


def test_a_folder_that_is_no_checkpoint(tmp_path):
    with pytest.raises(ModelError, match="must contain a model_index.json"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ("transformer/config.json", r"transformer/config\.json is missing"),
        ("vae/diffusion_pytorch_model.safetensors", r"model/vae contains no \.safetensors file"),
    ],
)
def test_a_missing_file_is_named(checkpoint, broken, message):
    (checkpoint / broken).unlink()
    with pytest.raises(ModelError, match=message):
        load(checkpoint)


def test_a_truncated_file_is_named(checkpoint):
    weights = checkpoint / "transformer" / "diffusion_pytorch_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    said = r"transformer/diffusion_pytorch_model\.safetensors is cut short: it has [\d,]+ bytes and must have [\d,]+; copy"
    with pytest.raises(ModelError, match=said):
        load(checkpoint)


def test_a_transformer_of_another_model_is_told_before_anything_is_read(checkpoint):
    config, told = checkpoint / "transformer" / "config.json", []
    config.write_text(json.dumps(json.loads(config.read_text()) | {"num_layers": 99}))
    with pytest.raises(ModelError, match=r"transformer lacks the tensor blocks\.10\..* the files are of another model"):
        load_module.load(PRESET, str(checkpoint), told.append)
    assert told == []


def test_a_config_that_is_no_json(checkpoint):
    (checkpoint / "vae" / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"vae/config\.json must be JSON"):
        load(checkpoint)


def test_the_last_model_leaves_the_devices_before_the_next_one_comes(checkpoint):
    def held() -> int:
        gc.collect()
        return sum(array.nbytes for array in jax.live_arrays())

    before, at_start = held(), []
    loaded = load(checkpoint)
    size = held() - before
    assert size > 20e6
    del loaded

    def look(event: Loading) -> None:
        if not at_start:
            at_start.append(sum(array.nbytes for array in jax.live_arrays()) - before)

    loaded = load_module.load(PRESET, str(checkpoint), look)
    assert at_start[0] < size / 2  # the first tensors of the second model, and no tensor of the first
    assert held() - before <= size
    del loaded


def test_a_preset_for_another_kind_of_model_is_refused(checkpoint):
    with pytest.raises(ModelError, match="is a wan2.2-ti2v .*and the preset wan2.1-t2v-14b-720p is for another kind"):
        load_module.load(load_preset("wan2.1-t2v-14b-720p"), str(checkpoint), lambda event: None)

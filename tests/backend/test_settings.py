"""Settings come from what was given, then the environment, then the project."""

from pathlib import Path

from backend.settings import PROJECT_FOLDER, from_environment, worker_environment


def test_what_is_given_goes_first(tmp_path):
    given = from_environment(tmp_path, {"STUDIO_DATA_DIR": "/elsewhere"})
    assert (given.data_dir, given.cache_dir) == (tmp_path, tmp_path / "cache")


def test_the_environment_goes_second():
    read = from_environment(None, {"STUDIO_DATA_DIR": "/d", "STUDIO_CACHE_DIR": "/c"})
    assert (read.data_dir, read.cache_dir) == (Path("/d"), Path("/c"))


def test_the_project_is_the_default():
    assert from_environment(None, {}).data_dir == PROJECT_FOLDER / "data"


def test_a_relative_folder_is_made_absolute():
    assert from_environment(Path("here"), {}).data_dir == Path.cwd() / "here"


def test_the_worker_gets_the_same_settings(tmp_path):
    settings = from_environment(tmp_path, {})
    assert from_environment(None, worker_environment(settings, {"PATH": "/bin"})) == settings

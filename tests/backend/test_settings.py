"""Settings are taken from the arguments, then the environment, then the project."""

from pathlib import Path

from backend import settings
from backend.settings import PROJECT_FOLDER, from_environment, own_cores, this_machine, worker_environment
from backend.shares import Share


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


def test_a_worker_is_told_its_share_of_the_machine(tmp_path):
    settings = from_environment(tmp_path, {})
    given = worker_environment(settings, {"OMP_NUM_THREADS": "64"}, Share(cores=(2, 3)))
    assert (given["OMP_NUM_THREADS"], own_cores(given)) == ("2", (2, 3))
    assert own_cores(worker_environment(settings, {})) == ()


def test_the_only_worker_gets_the_environment_as_it_is(tmp_path):
    given = worker_environment(from_environment(tmp_path, {}), {"PATH": "/bin"}, Share())
    assert set(given) == {"PATH", "STUDIO_DATA_DIR", "STUDIO_CACHE_DIR"}


def test_the_machine_is_what_jax_is_left_with():
    assert this_machine({"JAX_PLATFORMS": "cpu"}).chips == () and this_machine({"JAX_PLATFORMS": "cpu"}).cores


def test_an_installed_wheel_keeps_data_in_the_users_own_folder(tmp_path):
    installed = tmp_path / "site-packages" / "wan_tpu_studio"
    assert settings._default_data_dir({"XDG_DATA_HOME": "/own"}, installed) == Path("/own/wan-tpu-studio")
    assert settings._default_data_dir({}, installed) == Path("~/.local/share/wan-tpu-studio")
    assert settings._default_data_dir({"XDG_DATA_HOME": "/own"}, tmp_path / "wan-studio") == tmp_path / "wan-studio" / "data"

"""Tests of hosted notebooks: a pretend Kaggle and a pretend Colab run both notebooks, and each trap has its message."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import nbclient
import nbformat
import pytest

from backend.settings import PROJECT_FOLDER
from presets import load_preset
from tests.fake_hub import serving
from wan_studio import StudioError, hosted
from wan_studio.hosted import FOLDERS, Colab, HostedNotebook, Kaggle

NOTEBOOKS = PROJECT_FOLDER / "notebooks"
SECONDS = 600  # the demo model compiles before its first video, beside other tests
CLOSED = "http://127.0.0.1:9"  # a Hub that does not answer
IMAGES = {  # variables of the images, and of the kernel if its jax was imported
    "kaggle": {
        "KAGGLE_KERNEL_RUN_TYPE": "Batch",
        "ISTPUVM": "1",
        "TPU_ACCELERATOR_TYPE": "v5litepod-8",
        "TPU_PROCESS_ADDRESSES": "local",
    },
    "colab": {
        "COLAB_RELEASE_TAG": "release",
        "TPU_ACCELERATOR_TYPE": "v5e-1",
        "TPU_SKIP_MDS_QUERY": "1",
        "UV_SYSTEM_PYTHON": "true",
    },
}
SECRETS = {
    "kaggle_secrets.py": "class UserSecretsClient:\n    def get_secret(self, label):\n        return 'hf_' + label\n",
    "google/colab/userdata.py": "def get(key):\n    return 'hf_' + key\n",
}
IMPORTED = '{"jax", "torch", "gradio"} & {*sys.modules}'


@pytest.fixture(autouse=True)
def own_environment() -> Iterator[None]:
    """Undo the changes of the environment that a hosted notebook makes, and leave out the tests' own folders."""
    with mock.patch.dict(os.environ):
        own = ("STUDIO_VENV", "HF_TOKEN", "TPU_ACCELERATOR_TYPE", "TPU_PROCESS_ADDRESSES", "TPU_SKIP_MDS_QUERY")
        for name in (*FOLDERS, *hosted.DROPPED, *own):
            os.environ.pop(name, None)
        os.environ["HF_ENDPOINT"] = CLOSED
        yield


def write_repository(folder: Path) -> Path:
    """Write a git repository with links to the project's files, so that a clone has the files of this working tree."""
    folder.mkdir()
    for path in PROJECT_FOLDER.iterdir():
        if not path.name.startswith("."):
            (folder / path.name).symlink_to(path)
    git = ["git", "-c", "user.name=tests", "-c", "user.email=tests@localhost"]
    for words in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", "links"]):
        subprocess.run([*git, *words], cwd=folder, check=True)
    return folder


@pytest.mark.demo_model
@pytest.mark.parametrize("host", ["kaggle", pytest.param("colab", marks=pytest.mark.slow)])
def test_a_notebook_runs_from_its_first_cell_to_its_last(host, tmp_path, monkeypatch):
    if not (Path(load_preset("wan-tiny").model_source) / "model_index.json").is_file():
        pytest.skip("the demo model has not been trained yet")
    for name, text in SECRETS.items():
        (tmp_path / "image" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "image" / name).write_text(text)
    (tmp_path / "jupyter").mkdir()
    repository = write_repository(tmp_path / "repository")
    own = {"STUDIO_SOURCE": f"file://{repository}", "STUDIO_ROOT": str(tmp_path), "STUDIO_VENV": sys.prefix}
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        own[name] = str(tmp_path / "jupyter" / name)
    os.environ.update(own | IMAGES[host] | {"PYTHONPATH": str(tmp_path / "image"), "TPU_LIBRARY_PATH": "/lib/old/libtpu.so"})
    notebook = nbformat.read(NOTEBOOKS / f"{host}.ipynb", 4)
    notebook.cells.append(nbformat.v4.new_code_cell(IMPORTED))
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=SECONDS, kernel_name="python3", resources=resources).execute()
    _, _, preflight, start, generate, _, imported = notebook.cells
    printed = preflight.outputs[0].text if "text" in preflight.outputs[0] else preflight.outputs[1].text
    assert "ok       variables: PYTHONPATH, " in printed and "TPU_LIBRARY_PATH of the image do not reach the server" in printed
    assert "warning  TPU: this session has no TPU" in printed and "warning  internet: " in printed
    assert "skipped  token: the secret HF_TOKEN could not be checked" in printed and "fault" not in printed
    assert preflight.outputs[-1].data["text/plain"] == "'wan-tiny'"
    assert any("The server runs. Models: " in output.get("data", {}).get("text/html", "") for output in start.outputs)
    assert '<video controls loop src="data:video/mp4;base64,' in generate.outputs[-1].data["text/html"]
    assert imported.outputs[0].data["text/plain"] == "set()"
    kept, lost = ("kaggle/working", "kaggle/tmp") if host == "kaggle" else ("content", "content")
    assert [*(tmp_path / kept / "videos").glob("*.mp4")] and (tmp_path / lost / "wan-studio/data/runs").is_dir()
    assert (tmp_path / "kaggle/working" / hosted.PROGRAMS).is_dir() == (host == "kaggle")


@pytest.mark.parametrize("host", ["kaggle", "colab"])
def test_a_notebook_is_stored_without_outputs_and_names_the_projects_address(host):
    notebook = nbformat.read(NOTEBOOKS / f"{host}.ipynb", 4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in code)
    address = re.search(r'"STUDIO_SOURCE", "(.*?)"', code[0].source)[1]
    urls = re.search(r"(?s)\[project.urls\](.*?)\n\n", (PROJECT_FOLDER / "pyproject.toml").read_text("utf-8"))
    assert address == (re.search(r'Repository = "(.*?)"', urls[1])[1] if urls else "")


REPORT = {"recommended": "wan-tiny", "devices": [{"kind": "TPU v5 lite"}] * 8, "checks": []}


def checked(notebook: HostedNotebook, monkeypatch, capsys, **report: object) -> str:
    """Run the preflight with a given report of the machine, and return what it prints."""
    monkeypatch.setattr(notebook, "_examine", lambda: REPORT | report)
    notebook.preflight()
    return capsys.readouterr().out


def stopped(notebook: HostedNotebook, monkeypatch, capsys) -> str:
    """Run a preflight that must stop before it counts the chips, and return what it prints."""
    monkeypatch.setattr(notebook, "_examine", lambda: pytest.fail("the chips were counted"))
    with pytest.raises(StudioError, match="Do what the line after each fault says"):
        notebook.preflight()
    return capsys.readouterr().out


@pytest.mark.parametrize("make", [Kaggle, Colab])
def test_a_kernel_that_has_opened_the_chips_stops(make, tmp_path, monkeypatch, capsys):
    chip = tmp_path / "dev/vfio/0"
    chip.parent.mkdir(parents=True)
    chip.write_text("")
    with chip.open():
        printed = stopped(make(str(tmp_path)), monkeypatch, capsys)
    assert printed == (
        "fault    kernel: this notebook's kernel has opened the chips, so the server cannot open them\n"
        f"         -> {make.restart}, start at the first cell, and import neither jax nor torch_xla in this notebook\n"
    )
    assert "kernel" not in checked(make(str(tmp_path)), monkeypatch, capsys)


def test_the_notebooks_own_server_is_not_mistaken_for_another_process(tmp_path, monkeypatch, capsys):
    notebook = Kaggle(str(tmp_path))
    notebook._studio = mock.Mock()
    assert stopped(notebook, monkeypatch, capsys) == (
        "fault    kernel: the server of this notebook runs already and uses the chips\n         -> `studio.close()` stops it\n"
    )


def test_a_notebook_that_is_created_again_knows_the_server_of_the_first(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(hosted.HostedNotebook, "_studio", None)
    monkeypatch.setattr(hosted.Studio, "local", mock.Mock())
    monkeypatch.setattr(HostedNotebook, "_run", mock.Mock())
    monkeypatch.setattr(hosted, "make_display", lambda: mock.Mock())
    hosted.Studio.local.return_value.models.return_value = ["wan-tiny"]
    first = Kaggle(str(tmp_path)).start("wan-tiny")
    capsys.readouterr()
    again = Kaggle(str(tmp_path))
    assert "the server of this notebook runs already" in stopped(again, monkeypatch, capsys)
    again.start("wan-tiny")
    first.close.assert_called_once()


@pytest.mark.parametrize("host", ["kaggle", "colab"])
def test_a_notebook_without_the_projects_address_says_what_to_set(host, monkeypatch):
    monkeypatch.delenv("STUDIO_SOURCE", raising=False)
    cell = next(cell for cell in nbformat.read(NOTEBOOKS / f"{host}.ipynb", 4).cells if cell.cell_type == "code")
    with pytest.raises(SystemExit, match="^Set SOURCE in this cell: the address of the project's git repository"):
        exec(compile(cell.source, host, "exec"), {})


def test_chips_that_another_process_uses_stop_with_its_number(tmp_path, monkeypatch, capsys):
    notebook, found = Kaggle(str(tmp_path)), "Another process, 7 (python3), holds 8 TPU v5e chips"
    checks = [{"name": "devices", "state": "fault", "found": found, "mend": "`kill 7`, then start again"}]
    monkeypatch.setattr(notebook, "_examine", lambda: REPORT | {"devices": [], "checks": checks})
    with pytest.raises(StudioError):
        notebook.preflight()
    assert f"fault    devices: {found}\n         -> `kill 7`, then start again\n" in capsys.readouterr().out


def test_a_stale_lock_is_removed_and_a_lock_in_use_stays(tmp_path, monkeypatch, capsys):
    lock = tmp_path / "tmp/libtpu_lockfile"
    lock.parent.mkdir()
    lock.write_text("")
    with lock.open():
        assert "lock" not in checked(Colab(str(tmp_path)), monkeypatch, capsys) and lock.exists()
    printed = checked(Colab(str(tmp_path)), monkeypatch, capsys)
    assert (
        printed.startswith(f"ok       lock: {lock} was left from a process that crashed, and was removed\n") and not lock.exists()
    )
    lock.write_text("")
    monkeypatch.setattr(Path, "unlink", mock.Mock(side_effect=PermissionError))
    assert stopped(Colab(str(tmp_path)), monkeypatch, capsys) == (
        f"fault    lock: {lock} is left from another account's process\n         -> `sudo rm {lock}`\n"
    )


@pytest.mark.parametrize(
    ("given", "is_set"),
    [
        ({"TPU_ACCELERATOR_TYPE": "v5litepod-8"}, True),
        ({"TPU_ACCELERATOR_TYPE": "v5litepod-8", "TPU_PROCESS_ADDRESSES": "local"}, False),
        ({"TPU_ACCELERATOR_TYPE": "v5e-1", "TPU_SKIP_MDS_QUERY": "1"}, False),
        ({}, False),
    ],
)
def test_without_a_metadata_server_the_runtime_does_not_wait_for_it(given, is_set, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(hosted, "METADATA", ("127.0.0.1", 9))
    os.environ.update(given)
    printed = checked(Kaggle(str(tmp_path)), monkeypatch, capsys)
    words = "ok       variables: no metadata server answers, so TPU_PROCESS_ADDRESSES=local was set\n"
    assert (words in printed) == is_set and os.environ.get("TPU_PROCESS_ADDRESSES") == (
        "local" if is_set else given.get("TPU_PROCESS_ADDRESSES")
    )


def test_a_metadata_server_that_answers_is_used(tmp_path, monkeypatch, capsys):
    with serving(tmp_path) as hub:
        address, port = hub.url.removeprefix("http://").rstrip("/").split(":")
        monkeypatch.setattr(hosted, "METADATA", (address, int(port)))
        os.environ["TPU_ACCELERATOR_TYPE"] = "v5litepod-8"
        assert "variables" not in checked(Kaggle(str(tmp_path)), monkeypatch, capsys)
    assert "TPU_PROCESS_ADDRESSES" not in os.environ


def test_variables_of_the_image_are_dropped_and_others_reach_the_server(tmp_path, monkeypatch, capsys):
    os.environ |= {
        "TPU_LIBRARY_PATH": "/lib/libtpu.so",
        "TPU_VISIBLE_CHIPS": "0",
        "UV_SYSTEM_PYTHON": "true",
        "TPU_WORKER_ID": "0",
    }
    os.environ.pop("PYTHONPATH", None)
    printed = checked(Colab(str(tmp_path)), monkeypatch, capsys)
    names = "UV_SYSTEM_PYTHON, TPU_LIBRARY_PATH, TPU_VISIBLE_CHIPS"
    assert printed.startswith(f"ok       variables: {names} of the image do not reach the server\n")
    assert os.environ["TPU_WORKER_ID"] == "0" and not {*names.split(", ")} & os.environ.keys()


@pytest.mark.parametrize(
    ("kind", "chips", "line"),
    [
        ("v5litepod-8", 8, "ok       TPU: 8 chips, counted in a separate process\n"),
        ("v5e-1", 1, "ok       TPU: 1 chip, counted in a separate process\n"),
        ("", 1, "ok       TPU: 1 chip, counted in a separate process\n"),
        (
            "v5litepod-8",
            4,
            "warning  TPU: jax finds 4 of the 8 chips of v5litepod-8\n         -> stop the session, and start another one\n",
        ),
        (
            "v5litepod-8",
            0,
            "warning  TPU: this session has no TPU that jax can use; the demo model runs on the processor\n"
            f"         -> {Kaggle.choose_tpu}\n",
        ),
    ],
)
def test_the_chips_are_compared_with_the_sessions_type(kind, chips, line, tmp_path, monkeypatch, capsys):
    os.environ |= {"TPU_ACCELERATOR_TYPE": kind, "TPU_SKIP_MDS_QUERY": "1"}
    devices = [{"kind": "TPU v5 lite"}] * chips or [{"kind": "cpu"}]
    assert line in checked(Kaggle(str(tmp_path)), monkeypatch, capsys, devices=devices)


@pytest.mark.parametrize("make", [Kaggle, Colab])
def test_a_session_without_internet_says_where_to_allow_it(make, tmp_path, monkeypatch, capsys):
    hub = {"name": "Hub", "state": "skipped", "found": f"{CLOSED} does not answer (refused): nothing needs it here", "mend": ""}
    printed = checked(make(str(tmp_path)), monkeypatch, capsys, checks=[hub])
    words = "warning  internet: the Hub cannot be reached, so no model can be downloaded\n"
    assert f"{words}         -> {make.allow_internet}\n" in printed


def test_the_findings_of_a_disk_and_a_memory_that_are_too_small_are_shown(tmp_path, monkeypatch, capsys):
    checks = [
        {"name": "host memory", "state": "warning", "found": "1.0 GB of 2.0 GB are free", "mend": "end other programs"},
        {"name": "disk", "state": "ok", "found": "9.0 GB are free", "mend": ""},
    ]
    printed = checked(Kaggle(str(tmp_path)), monkeypatch, capsys, checks=checks)
    assert (
        "warning  host memory: 1.0 GB of 2.0 GB are free\n         -> end other programs\nok       disk: 9.0 GB are free\n"
        in printed
    )


@pytest.mark.parametrize("make", [Kaggle, Colab])
def test_a_missing_token_and_a_refused_token(make, tmp_path, monkeypatch, capsys):
    printed = checked(make(str(tmp_path)), monkeypatch, capsys)
    missing = "skipped  token: the secret HF_TOKEN is missing; models without a licence agreement download without it\n"
    assert f"{missing}         -> {make.add_secret}\n" in printed and "HF_TOKEN" not in os.environ
    for status, line in (
        (401, "warning  token: the Hub refuses the token in the secret HF_TOKEN\n"),
        (200, "ok       token: the secret HF_TOKEN is passed to the server\n"),
    ):
        monkeypatch.setattr(make, "_read_secret", lambda notebook: "hf_secret")
        monkeypatch.setattr(hosted.httpx, "get", lambda address, status=status, **_: mock.Mock(status_code=status))
        printed = checked(make(str(tmp_path)), monkeypatch, capsys)
        assert line in printed and os.environ.pop("HF_TOKEN") == "hf_secret" and "hf_secret" not in printed


def test_a_failed_installation_shows_its_output_and_where_to_allow_the_internet(tmp_path, monkeypatch):
    notebook = Kaggle(str(tmp_path))
    os.environ |= {"PATH": str(tmp_path), "HOME": str(tmp_path)}  # without uv and pip
    for name in ("bash", "dirname", "env"):
        (tmp_path / name).symlink_to(shutil.which(name, path=os.defpath))
    with pytest.raises(
        StudioError, match="(?s)Installing the server's packages failed.*uv cannot be installed.*turn on Internet"
    ):
        notebook.install()


def test_the_server_gets_python_3_12_and_the_packages_of_the_lock(tmp_path, monkeypatch):
    """Replace uv by a program that records its words. The notebook calls the same script as a TPU VM."""
    uv = tmp_path / "bin/uv"
    uv.parent.mkdir()
    uv.write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" >> {tmp_path}/words\n')
    uv.chmod(0o755)
    os.environ |= {"HOME": str(tmp_path), "PATH": f"{uv.parent}:{os.environ['PATH']}"}
    Kaggle(str(tmp_path)).install()
    venv = tmp_path / "kaggle/tmp/wan-studio/venv"
    create, install = (tmp_path / "words").read_text().splitlines()
    assert create == f"venv --quiet --python 3.12 {venv}"
    assert install == f"pip install --quiet --python {venv} --torch-backend cpu --requirement requirements-tpu.txt"
    assert os.environ["UV_CACHE_DIR"] == str(tmp_path / "kaggle/tmp/wan-studio/uv")


def test_compiled_programs_leave_as_output_and_come_back_as_input(tmp_path, capsys):
    first = Kaggle(str(tmp_path / "first"))
    cache = Path(os.environ["STUDIO_CACHE_DIR"])
    for name in ("jax/one", "kernels/crashed"):
        (cache / name).parent.mkdir(parents=True)
        (cache / name).write_text(name)
    first.save_programs()
    saved = tmp_path / "first/kaggle/working" / hosted.PROGRAMS
    assert (saved / "jax/one").is_file() and not (saved / "kernels").exists()
    copied = (saved / "jax/one").stat().st_mtime_ns
    first.save_programs()
    assert (saved / "jax/one").stat().st_mtime_ns == copied  # only new files are copied again
    os.environ.pop("STUDIO_CACHE_DIR")
    second, attached = Kaggle(str(tmp_path / "second")), tmp_path / "second/kaggle/input/my-notebook" / hosted.PROGRAMS
    shutil.copytree(saved, attached)
    second.attach_programs()
    assert (Path(os.environ["STUDIO_CACHE_DIR"]) / "jax/one").read_text() == "jax/one"
    assert capsys.readouterr().out == f"Attached compiled programs: {attached}\n"


def test_the_page_has_a_link_for_its_owner_and_a_password_for_others(tmp_path):
    notebook = Kaggle(str(tmp_path))
    notebook._studio = mock.Mock()
    notebook._studio._server = mock.Mock(share_url="https://x.gradio.live", key="KEY", password="WORD")
    assert notebook._describe_page(True) == (
        "Your page, do not publish this link: https://x.gradio.live/?operator=KEY\n"
        "For others: https://x.gradio.live, user studio, password WORD\n"
    )
    notebook._studio._server.share_url = None
    assert Kaggle.allow_internet in notebook._describe_page(True) and "no link" in notebook._describe_page(False)


def test_a_check_that_ends_early_is_reported(tmp_path):
    os.environ["STUDIO_VENV"] = str(tmp_path)
    program = tmp_path / "bin/python"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    with pytest.raises(StudioError, match="ended early"):
        Kaggle(str(tmp_path)).preflight()


def test_the_session_stays_active_until_the_time_is_over_or_the_server_ends(tmp_path, monkeypatch):
    notebook, shown = Kaggle(str(tmp_path)), []
    with pytest.raises(StudioError, match="was not started"):
        notebook.keep_open(1)
    monkeypatch.setattr(hosted, "make_display", lambda: shown.append)
    monkeypatch.setattr(hosted, "STATUS_SECONDS", 0.01)
    notebook._studio = mock.Mock()
    notebook._studio._http.get.return_value.json.return_value = {"worker": "ready", "waiting": 2}
    notebook.keep_open(0.001)
    assert len(shown) > 2 and shown[-1].text == "The worker is ready, 2 queued" and shown[-1].is_final
    notebook._studio._http.get.side_effect = hosted.httpx.ConnectError("refused")
    with pytest.raises(StudioError, match="does not answer"):
        notebook.keep_open(1)


def test_the_report_of_the_machine_is_the_one_of_doctor(tmp_path):
    os.environ |= {"STUDIO_VENV": sys.prefix, "JAX_PLATFORMS": "cpu"}
    report = Kaggle(str(tmp_path))._examine()
    assert report["devices"][0]["kind"] == "cpu" and json.dumps(report)
    assert {"host memory", "disk", "Hub", "devices", "best preset"} <= {check["name"] for check in report["checks"]}

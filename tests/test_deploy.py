"""Tests of the files in deploy/ with the tools for their formats, and of the start-up script as far as it runs without a TPU."""

import os
import re
import shutil
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from backend.settings import PROJECT_FOLDER

DEPLOY = PROJECT_FOLDER / "deploy"
SCRIPT, UNIT = DEPLOY / "start.sh", DEPLOY / "wan-studio.service"
SHELLCHECK = shutil.which("shellcheck") or shutil.which("shellcheck", path=str(Path(sys.executable).parent))


def run(*words: object, **variables: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, **variables}
    return subprocess.run([*map(str, words)], env=environment, cwd=PROJECT_FOLDER, capture_output=True, text=True, timeout=120)


@pytest.mark.skipif(SHELLCHECK is None, reason="shellcheck is missing: requirements-test.txt brings it")
@pytest.mark.parametrize("script", [SCRIPT, PROJECT_FOLDER / "tests" / "run"], ids=lambda path: path.name)
def test_shellcheck_finds_nothing(script, tmp_path):
    done = run(SHELLCHECK, script)
    assert done.returncode == 0, done.stdout
    spoiled = tmp_path / "spoiled.sh"
    spoiled.write_text(script.read_text("utf-8") + "\nrm -r $undefined/*\n")
    assert run(SHELLCHECK, spoiled).returncode == 1


def verified(unit: str, tmp_path: Path) -> subprocess.CompletedProcess:
    """Verify the unit with systemd, with this project's folder in place of the folder in the home directory."""
    path = tmp_path / UNIT.name
    path.write_text(unit.replace("%h/wan-studio", str(PROJECT_FOLDER)))
    return run("systemd-analyze", "verify", "--man=no", path)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is missing: it comes with systemd")
def test_systemd_takes_the_unit(tmp_path):
    done = verified(UNIT.read_text("utf-8"), tmp_path)
    assert UNIT.name not in done.stderr and done.returncode == 0, done.stderr
    for right, wrong in (
        ("Restart=always", "Restart=perhaps"),
        ("ExecStart=/bin/bash", "ExecStart=/no/bash"),
        ("KillMode", "Kill"),
    ):
        done = verified(UNIT.read_text("utf-8").replace(right, wrong), tmp_path)
        assert UNIT.name in done.stderr, f"{wrong} went unnoticed"


def test_the_unit_starts_what_the_script_offers():
    [command] = re.findall(r"^ExecStart=/bin/bash (.+)$", UNIT.read_text("utf-8"), re.MULTILINE)
    script, what, *options = command.split()
    assert (PROJECT_FOLDER / script) == SCRIPT and f"{what}) run" in SCRIPT.read_text("utf-8") and options == ["--share"]


def test_a_word_that_it_does_not_know_is_refused():
    done = run("bash", SCRIPT, "strat")
    assert (done.returncode, done.stderr) == (2, "unknown command strat: give install, begin, run or nothing\n")


def test_without_pip_and_uv_it_says_what_is_missing(tmp_path):
    for name in ("bash", "dirname", "env"):
        (tmp_path / name).symlink_to(shutil.which(name))
    done = run(shutil.which("bash"), SCRIPT, "install", PATH=str(tmp_path), HOME=str(tmp_path), STUDIO_VENV=str(tmp_path / "v"))
    assert done.returncode == 1 and "uv cannot be installed" in done.stderr


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is missing: apt-get install tmux")
def test_it_begins_in_tmux_and_continues_without_a_terminal(tmp_path):
    """The environment of these tests replaces .venv. The port and the tmux server are separate."""
    variables = {"STUDIO_VENV": sys.prefix, "STUDIO_DATA_DIR": str(tmp_path / "data"), "TMUX_TMPDIR": str(tmp_path)}
    port = str(20000 + uuid.uuid4().int % 20000)
    try:
        done = run("bash", SCRIPT, "begin", "--port", port, **variables)
        assert done.returncode == 0, done.stderr
        assert f"http://127.0.0.1:{port}" in done.stdout and "continues when you log out" in done.stdout
        assert {(tmp_path / "data" / name).stat().st_mode & 0o077 for name in (".", "server.log", "operator.key")} == {0}
        again = run("bash", SCRIPT, "begin", "--port", port, **variables)
        assert again.returncode == 1 and "already running: tmux attach -t wan-studio" in again.stderr
    finally:
        run("tmux", "kill-server", **variables)
    deadline = time.monotonic() + 60
    while any(f"--port {port}" in text for text in processes()) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not [text for text in processes() if f"--port {port}" in text]


def test_a_tmux_server_that_runs_already_gets_the_variables_and_no_secret_on_its_command_line(tmp_path):
    """Replace tmux by a program that records the command of the new session."""
    log, tmux = tmp_path / "data/server.log", tmp_path / "bin/tmux"
    tmux.parent.mkdir()
    tmux.write_text(f"""#!/bin/sh
[ "$1" = new-session ] || exit 1
printf %s "$5" >{tmp_path}/command
echo "http://127.0.0.1/?operator=key" >>{log}
""")
    tmux.chmod(0o755)
    given = {"TPU_WORKER_ID": "0", "TPU_ACCELERATOR_TYPE": "v5litepod-8", "ISTPUVM": "1", "HF_HUB_OFFLINE": "1"}
    secrets = {"HF_TOKEN": "hf_secret", "STUDIO_AUTH": "user:secret"}
    path = f"{tmux.parent}:{os.environ['PATH']}"
    done = run("bash", SCRIPT, "begin", STUDIO_DATA_DIR=str(log.parent), PATH=path, **given, **secrets)
    command = (tmp_path / "command").read_text()
    assert done.returncode == 0 and "secret" not in command + done.stdout + done.stderr
    assert {f"{name}={value}" for name, value in given.items()} <= {*command.split()}
    for variable, name, text in (("HF_TOKEN_PATH", "hub-token", "hf_secret"), ("STUDIO_AUTH_FILE", "password", "user:secret")):
        file = log.parent / name
        assert f"{variable}={file} " in command and file.read_text() == text and file.stat().st_mode & 0o777 == 0o600


def processes() -> list[str]:
    """Return the command lines of all processes."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return found


def test_the_requirements_for_tpus_are_all_others_and_libtpu():
    lines = [
        line for line in (PROJECT_FOLDER / "requirements-tpu.txt").read_text("utf-8").splitlines() if not line.startswith("#")
    ]
    assert lines[0] == "-r requirements.txt" and [line.partition("==")[0] for line in lines[1:]] == ["libtpu"]
    assert "-r requirements-tpu.txt" in (PROJECT_FOLDER / "requirements-test.txt").read_text("utf-8")

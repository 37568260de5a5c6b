"""Check `doctor`: no findings on a CPU, and every fault that it can name."""

import errno
import json
import os
import socket
import subprocess
import sys
import time
from collections import namedtuple
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import pytest

from backend.cli import machine_checks as checks
from backend.cli.doctor import Findings, devices_check, interrupted_check, recommended_check, refused_devices_check
from backend.cli.module_process import EndedProcess, run_in_process
from backend.schemas.check import Check, worst_state
from backend.schemas.worker import Device
from backend.selftest.one_step import check_step, check_weights
from backend.settings import PROJECT_FOLDER, hub_address, module_environment
from backend.workers.unused_accelerator import Surroundings
from presets import load_preset
from presets.needs import find_needs
from tests.clock import is_within
from tests.fake_hub import serving
from tests.made_up_machine import tpu_machine, write

TINY, LARGE = load_preset("wan-tiny"), load_preset("wan2.1-t2v-14b-720p")
VERSIONS = {"jax": "0.10.2", "jaxlib": "0.10.2", "libtpu": "0.0.51"}
ENDED = EndedProcess(report=None, code=-6, errors="")


def doctor(*words: object, **variables: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "app.py", "doctor", *map(str, words)]
    return subprocess.run(
        command, cwd=PROJECT_FOLDER, env={**os.environ, **variables}, capture_output=True, text=True, timeout=120
    )


@pytest.fixture
def this_machine(tmp_path) -> Surroundings:
    from backend.accelerators import find_accelerators

    return Surroundings(accelerators=find_accelerators(tpu_machine(tmp_path / "machine")), versions=VERSIONS)


def free_port() -> int:
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.mark.bench
def test_on_a_cpu_it_finds_nothing_to_complain_of_within_20_seconds(tmp_path):
    with serving(tmp_path) as hub:
        variables = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hub"), "STUDIO_CACHE_DIR": str(tmp_path / "cache")}
        began = time.monotonic()
        done = doctor("--json", tmp_path / "report.json", "--data-dir", tmp_path / "data", JAX_PLATFORMS="cpu", **variables)
        seconds = time.monotonic() - began
    report = json.loads((tmp_path / "report.json").read_text())
    others = {
        name: check for check in report["checks"] if (name := check["name"]) != "port" and check["state"] not in ("ok", "skipped")
    }
    assert (done.returncode, others) == (0, {}), done.stdout + done.stderr
    assert {"Python", "packages", "disk", "devices", "kernel attention as it is chosen here", "one step"} <= {
        one["name"] for one in report["checks"]
    }
    assert {frozenset(check) for check in report["checks"]} == {frozenset({"name", "state", "found", "mend"})}
    assert report["devices"][0]["kind"] == "cpu" and report["machine"]["versions"]["jax"]
    assert done.stdout.count("\n") >= len(report["checks"])
    assert is_within(seconds, 20)


def test_the_quick_check_lists_the_devices_and_tries_no_step(tmp_path):
    done = doctor("--quick", "--json", tmp_path / "report.json", "--data-dir", tmp_path / "data", JAX_PLATFORMS="cpu")
    report = json.loads((tmp_path / "report.json").read_text())
    assert done.returncode == 0 and report["devices"][0]["kind"] == "cpu" and report["recommended"] == "wan-tiny"
    assert [check["name"] for check in report["checks"]][-2:] == ["devices", "best preset"]


def test_an_unknown_preset_and_a_file_that_cannot_be_written_are_refused_at_once():
    done = doctor("--preset", "wan-tny")
    assert (done.returncode, done.stdout) == (2, "") and "did you mean wan-tiny?" in done.stderr
    done = doctor("--json", "/proc/none.json")
    assert (done.returncode, done.stdout) == (2, "") and "json='/proc/none.json' must be writable" in done.stderr


@pytest.mark.tpu_compiler
def test_libtpu_without_a_tpu_is_a_fault_with_its_fix(tmp_path):
    """Run the real libtpu with settings for a TPU, on a machine that has no TPU."""
    pytest.importorskip("libtpu")
    variables = {"JAX_PLATFORMS": "tpu", "TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0"}
    variables["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"  # others may compile beside this
    done = doctor("--json", tmp_path / "report.json", **variables)
    assert done.returncode == 1
    assert "fault    devices: jax is set to use a TPU, but this machine has none\n" in done.stdout
    assert "-> leave JAX_PLATFORMS out, or start on a TPU VM" in done.stdout
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["verdict"] == "fault" and report["devices"] == [] and "TPU initialization failed" in report["refusal"]


@pytest.mark.parametrize(("found", "state"), [((3, 10), "fault"), ((3, 11), "ok"), ((3, 13), "ok"), ((3, 14), "fault")])
def test_python_must_be_one_that_the_requirements_can_be_had_for(found, state):
    assert checks.python_check(found).state == state


def test_packages_in_other_versions_are_named(tmp_path):
    file = tmp_path / "requirements.txt"
    file.write_text("# a comment\npydantic==0.1\nno-such-package==2\n")
    check = checks.packages_check("pip install", file)
    assert check.state == "warning" and check.fix == "`pip install -r requirements.txt`"
    assert "no-such-package missing, not 2" in check.found and "not 0.1" in check.found
    assert checks.packages_check("pip install").state == "ok"


@pytest.mark.parametrize(
    ("changes", "state"),
    [({}, "ok"), ({"libtpu": "0.0.42.1"}, "warning"), ({"libtpu": ""}, "fault"), ({"jaxlib": "0.10.1"}, "fault")],
)
def test_jax_and_libtpu_must_belong_together_where_there_is_a_tpu(this_machine, changes, state):
    versions = VERSIONS | changes
    check = checks.tpu_pair_check(Surroundings(accelerators=this_machine.accelerators, versions=versions))
    assert check.state == state and (state == "ok" or "-r requirements-tpu.txt" in check.fix)
    assert checks.tpu_pair_check(Surroundings(versions=versions)).state == "skipped"


def test_versions_that_are_known_to_fail_are_a_fault_with_the_reason(tmp_path):
    from backend.accelerators import find_accelerators

    v5e = Surroundings(
        accelerators=find_accelerators(tpu_machine(tmp_path, chip="v5e")), versions=VERSIONS | {"libtpu": "0.0.42.1"}
    )
    check = checks.tpu_pair_check(v5e)
    assert (
        check.state == "fault" and "compiling a model for v5e crashed" in check.found and "-r requirements-tpu.txt" in check.fix
    )
    old = Surroundings(accelerators=v5e.accelerators, versions=VERSIONS | {"jax": "0.11.0", "jaxlib": "0.11.0"})
    assert "need Python 3.12" in checks.tpu_pair_check(old, "3.11.9").found
    assert checks.tpu_pair_check(old, "3.12.1").state == "ok"


@pytest.mark.parametrize(("free", "state"), [(9_000_000, "ok"), (1_000_000, "warning")])
def test_the_hosts_memory(tmp_path, free, state):
    write(tmp_path / "proc/meminfo", f"MemTotal: 16000000 kB\nMemAvailable: {free} kB")
    assert checks.memory_check(tmp_path).state == state
    assert checks.memory_check(tmp_path / "none").state == "skipped"


def test_a_disk_without_room_for_a_video(tmp_path, monkeypatch):
    assert checks.disk_check(tmp_path / "not/made/yet", TINY).state == "ok"
    monkeypatch.setattr(checks, "needed_bytes", lambda request: 10**18)
    check = checks.disk_check(tmp_path, TINY)
    assert check.state == "fault" and "1000000000.1 GB" in check.found and "--data-dir" in check.fix


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk(tmp_path, monkeypatch):
    """Replace the file by the kernel's full device, where writing fails as on a full disk."""
    monkeypatch.setattr(checks.tempfile, "TemporaryFile", lambda dir: open("/dev/full", "wb", buffering=0))
    check = checks.folder_check("data folder", tmp_path, "--data-dir")
    assert (check.state, check.found) == ("fault", f"{tmp_path}: the disk is full") and os.strerror(errno.ENOSPC)


def test_a_read_only_cache(tmp_path):
    assert checks.folder_check("compiled programs", tmp_path, "X").state == "ok"
    assert checks.folder_check("compiled programs", tmp_path / "a/b", "X").found.endswith("not created yet")
    check = checks.folder_check("compiled programs", Path("/proc/sys/none"), "STUDIO_CACHE_DIR")
    assert check.state == "fault" and "cannot be written" in check.found and "STUDIO_CACHE_DIR" in check.fix


def test_a_port_that_is_taken():
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        check = checks.port_check(port)
        assert check.state == "warning" and check.fix == f"`python app.py --port {port + 1}`"
    assert checks.port_check(port).state == "ok"


@pytest.mark.parametrize(("is_needed", "state"), [(True, "fault"), (False, "skipped")])
def test_no_network_is_a_fault_where_something_must_come_over_it(is_needed, state):
    check = checks.hub_check(f"http://127.0.0.1:{free_port()}", is_needed=is_needed)
    assert check.state == state and "does not answer" in check.found and bool(check.fix) == is_needed
    check = checks.hub_check("", is_needed=is_needed)
    assert check.state == state and "HF_HUB_OFFLINE" in check.found
    assert hub_address({"HF_HUB_OFFLINE": "1"}) == "" and hub_address({"HF_ENDPOINT": "http://x/"}) == "http://x"


def test_a_hub_that_answers(tmp_path):
    with serving(tmp_path) as hub:
        assert checks.hub_check(hub.url, is_needed=True).state == "ok"


@pytest.mark.demo_model
def test_the_presets_that_need_no_download_are_listed():
    assert "wan-tiny" in checks.presets_check().found


@pytest.fixture
def free_disk(monkeypatch):
    """Return a function that sets the free bytes of all disks. No checkpoint is on this machine."""
    monkeypatch.setattr(checks, "has_weights", lambda preset: preset.model.startswith("embedded:"))
    usage = namedtuple("usage", "free")
    return lambda free: monkeypatch.setattr(checks.shutil, "disk_usage", lambda folder: usage(free))


def test_a_checkpoint_that_is_not_here_yet(free_disk, tmp_path):
    free_disk(10**12)
    assert checks.weights_check(TINY, tmp_path).state == "ok"
    check = checks.weights_check(LARGE, tmp_path)
    assert (check.state, check.fix) == ("warning", "`python app.py models download wan2.1-t2v-14b-720p`")
    free_disk(20 * 10**9)
    check = checks.weights_check(LARGE, tmp_path)
    assert (
        check.state == "fault" and check.found.endswith("need at least 40.3 GB, and 20.0 GB are free") and "HF_HOME" in check.fix
    )


def test_the_best_preset_for_the_devices_and_its_space_on_the_disk(free_disk, tmp_path):
    tpus = [Device(name="d", kind="TPU v6 lite", bytes_limit=2**35)] * 8
    free_disk(10**12)
    best, check = recommended_check(tpus, tmp_path)
    assert check.state == "ok" and check.found.startswith("wan2.2-t2v-a14b-720p, predicted to need ")
    assert "and 1.8 min of denoising per video on v6e:2x4" in check.found and "need at least 68.9 GB" in check.found
    assert "; faster: " in check.found and check.fix == f"`python app.py models download {best.name}`"
    free_disk(20 * 10**9)
    smaller, check = recommended_check(tpus, tmp_path)
    assert find_needs(smaller.model).weight_bytes < 20 * 10**9 and "t2v" in smaller.tasks and smaller.name != "wan-tiny"
    assert check.state == "warning" and f"; {best.name} would fit these devices, but " in check.found and "HF_HOME" in check.fix
    demo, check = recommended_check([Device(name="d", kind="cpu", bytes_limit=None)], tmp_path)
    assert (check.state, check.fix) == ("ok", "") and check.found.startswith(f"{demo.name}, the demo model")


def test_the_best_preset_without_the_hub_has_its_weights_here(free_disk, tmp_path, this_machine, monkeypatch):
    tpus = [Device(name="d", kind="TPU v6 lite", bytes_limit=2**35)] * 8
    free_disk(10**12)
    demo, check = recommended_check(tpus, tmp_path, is_online=False)
    assert (demo.name, check.state) == ("wan-tiny", "warning") and check.found.endswith("; the Hub is not reached")
    sheet = Findings(here=this_machine)
    sheet.add(Check(name="Hub", state="skipped", found="does not answer"))
    sheet._receive({"devices": [asdict(one) for one in tpus]})
    assert sheet.recommended == "wan-tiny"
    monkeypatch.setattr(checks, "has_weights", lambda preset: preset.model == LARGE.model or preset.model.startswith("embedded:"))
    assert recommended_check(tpus, tmp_path, is_online=False)[0].model == LARGE.model


def test_figures_of_another_chip_are_named_as_an_estimate(free_disk, tmp_path):
    free_disk(10**12)
    _, check = recommended_check([Device(name="d", kind="NVIDIA H200", bytes_limit=140 * 2**30)], tmp_path)
    assert check.state == "ok" and "(estimated from v6e:1x1)" in check.found


def test_memory_that_is_too_small_for_the_weights():
    assert check_weights("it", 2**30, 2**34).state == "ok"
    assert check_weights("it", 2**30, None).state == "skipped"
    check = check_weights("it", 2**35, 2**34)
    assert (check.state, check.found) == ("fault", "the weights of it take 32.00 of 16.0 GiB on each device")
    assert "check-tpu" in check.fix


def test_a_devices_memory_that_is_too_small_ends_the_trial_before_anything_is_compiled():
    [check] = check_step(TINY, 1000, pytest.fail)
    assert (check.name, check.state) == ("memory", "fault")


def test_a_large_model_is_not_tried_on_a_cpu():
    [check] = check_step(LARGE, None, pytest.fail)
    assert check.state == "warning" and "too much for a CPU" in check.found and "check-tpu" in check.fix


def test_devices_that_jax_does_not_take_are_a_fault_and_a_choice_is_none(this_machine):
    cpu, tpu = (Device(name="d", kind=kind, bytes_limit=2**34) for kind in ("cpu", "TPU v6 lite"))
    check = devices_check(this_machine, [tpu] * 8)
    assert (check.state, check.found) == ("ok", "jax uses 8 x TPU v6 lite, 16.0 GiB each")
    bare = Surroundings(accelerators=this_machine.accelerators)
    assert devices_check(bare, [cpu]).state == "fault" and "libtpu is not installed" in devices_check(bare, [cpu]).found
    chosen = Surroundings(accelerators=this_machine.accelerators, platforms=("cpu",))
    assert devices_check(chosen, [cpu]).state == "ok" and "left alone" in devices_check(chosen, [cpu]).found


@pytest.mark.parametrize(
    ("error", "ended", "found"),
    [
        ("ABORTED: The TPU is already in use by process with pid 7.", ENDED, "Another process, 7, holds"),
        ("Mismatched PJRT plugin PJRT API version (0.47)", ENDED, "jaxlib 0.10.2 and libtpu 0.0.51 do not belong together"),
        ("", EndedProcess(report=None, code=-9, errors="", was_silent=True), "jax waits for devices"),
        ("a dog ate them", ENDED, "jax finds no devices: a dog ate them"),
    ],
)
def test_devices_that_jax_does_not_get(this_machine, error, ended, found):
    check = refused_devices_check(this_machine, error, ended)
    assert check.state == "fault" and found in check.found and check.fix


def module(tmp_path: Path, text: str) -> dict[str, str]:
    """Return an environment in which `python -m it` runs this program text."""
    (tmp_path / "it.py").write_text(text)
    variables = module_environment()
    return variables | {"PYTHONPATH": f"{tmp_path}:{variables['PYTHONPATH']}"}


def test_a_process_that_dies_has_said_at_what(tmp_path, this_machine):
    text = "import os, sys; from backend.child_process import write_message; write_message({'progress': 'trying each kernel'}); "
    text += "sys.stderr.write('Check failed: no chip\\n'); sys.stderr.flush(); os.abort()"
    said = []
    ended = run_in_process("it", [], module(tmp_path, text), said.append, 60)
    assert said == [{"progress": "trying each kernel"}] and ended.report is None and not ended.was_silent
    check = interrupted_check("trying each kernel", ended, 60)
    assert check.found == "while trying each kernel, the process ended with -6: Check failed: no chip"


def test_a_process_that_says_nothing_for_too_long_is_ended(tmp_path):
    ended = run_in_process("it", [], module(tmp_path, "import time; time.sleep(60)"), pytest.fail, 0.5)
    assert ended.was_silent and ended.report is None
    assert "sent no message for 1 s" in interrupted_check("starting", ended, 1.0).found


def test_the_sheet_keeps_what_the_other_process_says(this_machine, capsys):
    sheet = Findings(here=this_machine)
    sheet._receive({"progress": "one step of it"})
    sheet._receive({"devices": [{"name": "d", "kind": "TPU v6 lite", "bytes_in_use": 1, "bytes_limit": 2**34}]})
    sheet._receive({"check": asdict(Check(name="one step", state="ok", found="measured"))})
    assert [check.name for check in sheet.checks] == [
        "devices",
        "best preset",
        "one step",
    ] and sheet.current_work == "one step of it"
    assert capsys.readouterr().out.splitlines()[-1] == "ok       one step: measured"
    assert sheet.to_json()["recommended"] == "wan-tiny"
    assert json.dumps(sheet.to_json()) and sheet.to_json()["machine"]["accelerators"] == ["8 TPU v6e chips"]


def test_the_worst_finding_is_the_verdict():
    made = [Check(name="it", state=state, found="") for state in ("ok", "skipped", "warning", "fault")]
    assert [worst_state(made[:count]) for count in (1, 2, 3, 4)] == ["ok", "ok", "warning", "fault"]


def test_a_kernel_without_a_filter_of_system_calls_is_a_warning():
    check = checks.sandbox_check("backend.no_such_module")
    assert check.state == "warning" and "cannot filter system calls" in check.found

"""An unused accelerator is named with the one step that fixes it. An accelerator that is used, or unused on purpose, is no
fault. The errors come from the real runtimes: raised here, or quoted from the named source.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from backend.schemas.worker import Device, UnusedAccelerator, WorkerFacts
from backend.settings import PROJECT_FOLDER
from backend.workers import unused_accelerator as module
from backend.workers.unused_accelerator import LOCK_FILE, Surroundings, explain_error, explain_unused, find_unused, pinned_version
from tests.made_up_machine import gpu_machine, open_in, plain_machine, tpu_machine

CPU, TPU, GPU = (Device(name="d", kind=kind) for kind in ("cpu", "TPU v6 lite", "NVIDIA H200"))
VERSIONS = {"jax": "0.10.2", "jaxlib": "0.10.2"}
WITH_LIBTPU = VERSIONS | {"libtpu": "0.0.51"}
PREFIX = "Unable to initialize backend 'tpu': "


@pytest.fixture
def make_surroundings(monkeypatch, tmp_path):
    """A factory of surroundings on a machine simulated by `lay_out`, with these packages and JAX_PLATFORMS."""

    def make(lay_out, versions=VERSIONS, platforms="", **how) -> Surroundings:
        monkeypatch.setattr(module, "installed_versions", lambda: versions)
        monkeypatch.setattr(module, "_install_command", lambda: ".venv/bin/pip install")
        monkeypatch.setenv("JAX_PLATFORMS", platforms)
        monkeypatch.delenv("TPU_ACCELERATOR_TYPE", raising=False)
        return Surroundings.of_this_process(lay_out(tmp_path, **how))

    return make


def test_where_there_is_nothing_there_is_nothing_to_say(make_surroundings):
    assert explain_unused(make_surroundings(plain_machine), [CPU]) is None


@pytest.mark.parametrize(("lay_out", "device"), [(tpu_machine, TPU), (gpu_machine, GPU)])
def test_what_is_used_is_not_spoken_of(make_surroundings, lay_out, device):
    assert explain_unused(make_surroundings(lay_out), [device]) is None


def test_a_gpu_beside_a_tpu_rests_rightly(make_surroundings, tmp_path):
    gpu_machine(tmp_path / "gpu")
    surroundings = make_surroundings(tpu_machine)
    both = Surroundings(accelerators=(*surroundings.accelerators, *make_surroundings(gpu_machine_in("gpu")).accelerators))
    assert explain_unused(both, [TPU]) is None


def gpu_machine_in(name):
    return lambda folder: folder / name


def test_a_tpu_without_libtpu(make_surroundings):
    assert str(explain_unused(make_surroundings(tpu_machine), [CPU])) == (
        "8 TPU v6e chips are here, but libtpu is not installed, so everything runs on the CPU; "
        "`.venv/bin/pip install -r requirements-tpu.txt`, then start again"
    )
    assert (PROJECT_FOLDER / "requirements-tpu.txt").is_file()


def test_a_tpu_whose_files_a_container_hides(make_surroundings):
    said = explain_unused(make_surroundings(tpu_machine, WITH_LIBTPU, count=1, files=None), [CPU])
    assert "1 TPU v6e chip is on this machine's bus, but there is no device file" in said.found and "--privileged" in said.fix


def test_a_tpu_that_another_process_holds(make_surroundings):
    def held(folder):
        open_in(tpu_machine(folder), "/dev/vfio/0")
        return folder

    said = explain_unused(make_surroundings(held, WITH_LIBTPU), [CPU])
    assert str(said) == "Another process, 4321 (python3), holds 8 TPU v6e chips; `kill 4321`, then start again"


def test_a_tpu_that_jax_passes_over_without_a_reason(make_surroundings):
    assert explain_unused(make_surroundings(tpu_machine, WITH_LIBTPU), [CPU]).fix == "`python app.py doctor` says why"


@pytest.mark.parametrize(("lay_out", "what"), [(tpu_machine, "8 TPU v6e chips are"), (gpu_machine, "1 NVIDIA H200 is")])
def test_a_choice_is_said_and_is_no_fault(make_surroundings, lay_out, what):
    said = explain_unused(make_surroundings(lay_out, WITH_LIBTPU, "cpu"), [CPU])
    assert not said.is_fault
    assert said.found == f"{what} here and left alone, because JAX_PLATFORMS=cpu says so"


@pytest.mark.parametrize("platforms", ["cuda,cpu", "gpu"])
def test_a_choice_of_gpus_is_no_choice_against_them(make_surroundings, platforms):
    assert explain_unused(make_surroundings(gpu_machine, VERSIONS, platforms), [CPU]).is_fault


@pytest.mark.parametrize(
    ("versions", "how", "found", "fix"),
    [
        (VERSIONS, {"driver": False, "files": False}, "NVIDIA's driver is not", "`sudo ubuntu-drivers install`"),
        (VERSIONS, {"files": False}, "no device file leads there", "--gpus all"),
        (VERSIONS, {}, "jax is built for CPUs", '`.venv/bin/pip install "jax[cuda12]==0.10.2"`'),
        (VERSIONS | {"jax-cuda12-plugin": "0.9.0"}, {}, "jax-cuda12-plugin 0.9.0 does not belong to jax 0.10.2", "jax[cuda12]==0.10.2"),
        (VERSIONS | {"jax-cuda12-plugin": "0.10.2"}, {}, "CUDA does not take it", "`nvidia-smi`"),
    ],
)  # fmt: skip
def test_a_gpu_that_is_not_used(make_surroundings, versions, how, found, fix):
    said = explain_unused(make_surroundings(gpu_machine, versions, **how), [CPU])
    assert said.is_fault and found in said.found and fix in said.fix


@pytest.mark.parametrize(
    ("error", "found", "fix"),
    [
        ("ABORTED: The TPU is already in use by process with pid 2718466. Not attempting to load libtpu.so in this process.",
         "Another process, 2718466, holds 8 TPU v6e chips", "`kill 2718466`"),
        ("UNKNOWN: TPU initialization failed: open(/dev/vfio/1): Device or resource busy: Device or resource busy; Couldn't open "
         "iommu group /dev/vfio/1", "Another process holds 8 TPU v6e chips", "`sudo fuser -v /dev/vfio/0`"),
        ('ABORTED: Internal error when accessing libtpu multi-process lockfile. Run "$ sudo rm /tmp/libtpu_lockfile".',
         f"libtpu's lock, {LOCK_FILE}", f"|| sudo rm {LOCK_FILE}`"),
        ("INVALID_ARGUMENT: Mismatched PJRT plugin PJRT API version (0.47) and framework PJRT API version 0.40).",
         "jaxlib 0.10.2 and libtpu 0.0.51 do not belong together", '`.venv/bin/pip install "libtpu==0.0.42.*"`'),
        ("F0929 pjrt_c_api_helpers.cc:258: Unexpected PJRT_Plugin_Attributes_Args size: expected 32, got 24. The plugin is likely "
         "built with a later version than the framework.", "do not belong together", "libtpu==0.0.42.*"),
        ("INTERNAL: Failed to open /home/x/libtpu/libtpu.so: /home/x/libtpu/libtpu.so: cannot open shared object file: No such file "
         "or directory", "its library cannot be loaded", "--force-reinstall -r requirements-tpu.txt"),
        ("UNKNOWN: TPU initialization failed: open(/dev/vfio/0): Permission denied", "this user may not open /dev/vfio/0", "`sudo chmod"),
    ],
)  # fmt: skip
def test_a_runtimes_error_is_explained(make_surroundings, error, found, fix):
    said = explain_error(make_surroundings(tpu_machine, WITH_LIBTPU), PREFIX + error)
    assert said.is_fault and found in said.found and fix in said.fix


def test_another_libtpu_than_ours_is_mended_by_ours(make_surroundings):
    other = make_surroundings(tpu_machine, VERSIONS | {"libtpu": "0.0.42.1"})
    assert explain_error(other, "Mismatched PJRT plugin PJRT API version (0.47)").fix.startswith(
        "`.venv/bin/pip install -r requirements-tpu.txt`"
    )
    assert pinned_version("libtpu") == "0.0.51" and pinned_version("jax") and not pinned_version("no-such")


def test_a_holder_that_can_be_seen_is_named(make_surroundings):
    def held(folder):
        open_in(tpu_machine(folder), "/dev/vfio/0", name="train.py")
        return folder

    error = "open(/dev/vfio/0): Device or resource busy; Couldn't open iommu group /dev/vfio/0"
    assert "4321 (train.py)" in explain_error(make_surroundings(held, WITH_LIBTPU), error).found


def test_an_error_about_something_else_is_left_alone(make_surroundings):
    assert explain_error(make_surroundings(tpu_machine, WITH_LIBTPU), "RESOURCE_EXHAUSTED: no room") is None
    assert explain_error(make_surroundings(plain_machine), "No such file or directory: 'x'") is None


def test_a_gpu_that_was_asked_for_and_is_not_here(make_surroundings):
    said = explain_error(make_surroundings(plain_machine), "Unable to initialize backend 'cuda': CUDA_ERROR_NO_DEVICE")
    assert "this machine has none" in said.found


def test_the_worker_asks_with_devices_or_with_an_error(make_surroundings, tmp_path):
    make_surroundings(tpu_machine)
    assert "libtpu is not installed" in find_unused([CPU], tmp_path).found
    assert "holds" in find_unused(RuntimeError("in use by process with pid 7"), tmp_path).found
    assert find_unused(RuntimeError("else"), tmp_path) is None


def test_it_travels_with_the_workers_facts():
    for said in (None, UnusedAccelerator(found="found", fix="fix", is_fault=False)):
        assert WorkerFacts.from_json(WorkerFacts(notice=said).to_json()).notice == said


NEEDS_ROOT = pytest.mark.skipif(shutil.which("unshare") is None or os.geteuid() != 0, reason="needs root, to hide a lock file")


def ask_for_a_tpu(command: list[str] | None = None, **more: str) -> str:
    """Return jax's error in a new process whose settings request a TPU."""
    asking = "import jax\ntry:\n    jax.devices()\nexcept RuntimeError as error:\n    print('SAID', error)"
    variables = {"JAX_PLATFORMS": "tpu", "TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0"}
    words = [*(command or []), sys.executable, "-c", asking]
    done = subprocess.run(words, env={**os.environ, **variables, **more}, capture_output=True, text=True, timeout=120)
    return done.stdout.partition("SAID ")[2]


@pytest.mark.tpu_compiler
def test_libtpu_without_a_tpu(make_surroundings):
    pytest.importorskip("libtpu")
    said = explain_error(make_surroundings(plain_machine, WITH_LIBTPU), ask_for_a_tpu(ALLOW_MULTIPLE_LIBTPU_LOAD="1"))
    assert said.found == "jax is set to use a TPU, but this machine has none"


@pytest.mark.tpu_compiler
@NEEDS_ROOT
def test_libtpus_lock_that_a_process_holds(make_surroundings, tmp_path):
    """The lock file belongs to the whole machine. The test mounts another file in its place for its own processes only."""
    pytest.importorskip("libtpu")
    Path(LOCK_FILE).touch()
    own = tmp_path / "lock"
    own.touch()
    hold = f"import fcntl, os, subprocess, sys; file = open({LOCK_FILE!r}, 'w'); fcntl.lockf(file, fcntl.LOCK_EX); "
    hold += "sys.exit(subprocess.call(sys.argv[1:]))"
    words = ["unshare", "-m", "sh", "-c", f'mount --bind {own} {LOCK_FILE} && exec "$@"', "sh", sys.executable, "-c", hold]
    said = explain_error(make_surroundings(tpu_machine, WITH_LIBTPU), ask_for_a_tpu(words))
    assert said is not None and LOCK_FILE in str(said)

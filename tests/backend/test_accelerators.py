"""Check how the system's files describe accelerators, on simulated machines."""

import pytest

from backend.accelerators import Holder, find_accelerators, find_holders
from tests.made_up_machine import gpu_machine, open_in, plain_machine, tpu_machine, write


def test_a_machine_without_accelerators_has_none(tmp_path):
    assert find_accelerators(plain_machine(tmp_path)) == ()
    assert find_accelerators(tmp_path / "nothing at all") == ()


@pytest.mark.parametrize(("chip", "files"), [("v5e", "accel"), ("v5p", "vfio"), ("v6e", "vfio"), ("tpu7x", "vfio")])
def test_chips_are_counted_on_the_bus_and_found_by_their_files(tmp_path, chip, files):
    [tpu] = find_accelerators(tpu_machine(tmp_path, chip, 4, files))
    assert (tpu.platform, tpu.count, tpu.chip, len(tpu.files)) == ("tpu", 4, chip, 4)
    assert str(tpu) == f"4 TPU {chip} chips" and tpu.files[0] == ("/dev/vfio/0" if files == "vfio" else "/dev/accel0")


def test_ten_files_are_in_the_order_of_their_numbers(tmp_path):
    [tpu] = find_accelerators(tpu_machine(tmp_path, "v6e", 11))
    assert tpu.files[-2:] == ("/dev/vfio/9", "/dev/vfio/10")


def test_chips_that_a_container_hides_are_there_without_files(tmp_path):
    [tpu] = find_accelerators(tpu_machine(tmp_path, "v6e", 1, None))
    assert (str(tpu), tpu.files) == ("1 TPU v6e chip", ())


def test_vfio_alone_is_no_tpu_unless_the_machine_type_says_so(tmp_path):
    write(plain_machine(tmp_path) / "dev/vfio/12", "")
    assert find_accelerators(tmp_path) == ()
    [tpu] = find_accelerators(tmp_path, "v6e-1")
    assert (str(tpu), tpu.files) == ("1 TPU v6e chip", ("/dev/vfio/12",))
    for tpu_type in ("v5litepod-1", "v5e-1"):  # a Cloud TPU VM, and Colab
        assert [str(one) for one in find_accelerators(tmp_path, tpu_type)] == ["1 TPU v5e chip"]


def test_a_machine_type_without_files_is_no_tpu(tmp_path):
    assert find_accelerators(plain_machine(tmp_path), "v6e-8") == ()


def test_a_gpu_has_its_drivers_name(tmp_path):
    [gpu] = find_accelerators(gpu_machine(tmp_path))
    assert (str(gpu), gpu.files, gpu.has_driver) == ("1 NVIDIA H200", ("/dev/nvidia0",), True)


@pytest.mark.parametrize("driver", [True, False])
def test_a_gpu_that_no_file_leads_to(tmp_path, driver):
    [gpu] = find_accelerators(gpu_machine(tmp_path, driver=driver, files=False))
    assert (str(gpu), gpu.files, gpu.has_driver) == ("1 NVIDIA GPU", (), driver)


def test_the_processes_that_have_a_file_open(tmp_path):
    open_in(tpu_machine(tmp_path), "/dev/vfio/3")
    assert find_holders(tmp_path, ("/dev/vfio/2", "/dev/vfio/3")) == (Holder(pid=4321, name="python3"),)
    assert find_holders(tmp_path, ("/dev/vfio/2",)) == ()


def test_this_machine_can_be_looked_at(tmp_path):
    from pathlib import Path

    file = tmp_path / "held"
    with file.open("w"):
        assert any(
            holder.name.startswith("python") or "pytest" in holder.name for holder in find_holders(Path("/"), (str(file),))
        )
    assert find_holders(Path("/"), (str(file),)) == ()

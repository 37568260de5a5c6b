"""A machine is shared by chips if it has TPU chips, else by cores. The shares never exceed the machine."""

import pytest

from backend.errors import RequestError
from backend.shares import Machine, Share, find_machine, shares_of

CORES = tuple(range(8))


def test_one_worker_has_everything_as_it_always_had():
    assert shares_of(Machine(cores=CORES, chips=(0, 1, 2, 3)), 1) == (Share(),)
    assert Share().variables() == {}


def test_cores_are_shared_evenly_and_neighbours_stay_together():
    assert [share.cores for share in shares_of(Machine(cores=(0, 1, 4, 5, 6)), 2)] == [(0, 1), (4, 5, 6)]
    assert [share.cores for share in shares_of(Machine(cores=(2, 3)), 2)] == [(2,), (3,)]


def test_a_worker_on_cores_is_told_them_and_how_many_threads_to_start():
    [_, second] = shares_of(Machine(cores=CORES), 2)
    assert second.variables() == {"STUDIO_CORES": "4,5,6,7", "OMP_NUM_THREADS": "4", "MKL_NUM_THREADS": "4"}


def test_a_worker_on_chips_is_a_slice_of_its_own():
    first, second = (share.variables() for share in shares_of(Machine(cores=CORES, chips=CORES), 2))
    assert first == {
        "TPU_VISIBLE_CHIPS": "0,1,2,3",
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "2,2,1",
        "TPU_PROCESS_BOUNDS": "1,1,1",
        "TPU_PROCESS_ADDRESSES": "localhost:8476",
        "TPU_PROCESS_PORT": "8476",
        "CLOUD_TPU_TASK_ID": "0",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    }
    assert (second["TPU_VISIBLE_CHIPS"], second["TPU_PROCESS_PORT"]) == ("4,5,6,7", "8477")


@pytest.mark.parametrize(("chips", "count", "block"), [(4, 2, "1,2,1"), (4, 4, "1,1,1"), (8, 8, "1,1,1")])
def test_the_chips_of_a_worker_form_a_block(chips, count, block):
    shares = shares_of(Machine(cores=CORES, chips=tuple(range(chips))), count)
    assert {share.block for share in shares} == {block} and len({share.port for share in shares}) == count
    assert [chip for share in shares for chip in share.chips] == list(range(chips))


@pytest.mark.parametrize(
    ("machine", "count", "message"),
    [
        (Machine(cores=(0, 1)), 0, "workers=0 must be 1 or 2 on this machine (2 cores); give --workers 1"),
        (Machine(cores=CORES), 9, "workers=9 must be from 1 to 8 on this machine (8 cores); give --workers 8"),
        (Machine(cores=(0,)), 2, "workers=2 must be 1 on this machine (1 core); give --workers 1"),
        (
            Machine(cores=CORES, chips=CORES),
            3,
            "workers=3 must be 1, 2 or 8 on this machine (8 TPU chips); give --workers 2",
        ),
        (Machine(cores=CORES, chips=(0, 1, 2)), 3, "workers=3 must be 1 on this machine (3 TPU chips); give --workers 1"),
        (Machine(cores=CORES, has_gpu=True), 2, "workers=2 must be 1 on this machine (its GPU is not shared); give --workers 1"),
    ],
)
def test_more_than_the_machine_allows_is_refused_in_words(machine, count, message):
    with pytest.raises(RequestError) as caught:
        shares_of(machine, count)
    assert str(caught.value) == message


@pytest.mark.parametrize("names", [("accel0", "accel1"), ("vfio/0", "vfio/1", "vfio/vfio")])
def test_chips_are_counted_by_their_device_files(tmp_path, names):
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert find_machine(tmp_path, "", "").chips == (0, 1)
    assert find_machine(tmp_path, "tpu,cpu", "1").chips == (1,)
    assert find_machine(tmp_path, "cpu", "").chips == ()


def test_a_gpu_is_seen_unless_jax_is_kept_from_it(tmp_path):
    (tmp_path / "nvidia0").touch()
    assert find_machine(tmp_path, "", "").has_gpu and not find_machine(tmp_path, "cpu", "").has_gpu

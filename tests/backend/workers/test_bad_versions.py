"""Tests of the table of versions that fail together."""

import pytest

from backend.chips import CHIPS
from backend.workers.bad_versions import BAD_VERSIONS, RELEASED_WITH, find_bad_versions, parse_version
from backend.workers.unused_accelerator import pinned_version

GOOD = {"python": "3.12.1", "numpy": "2.4.6", "jax": "0.10.2", "libtpu": "0.0.51"}
# For each row: installed versions that differ from GOOD, the chip, and a change after which no row matches.
ROWS = [
    ({"jax": "0.7.2", "libtpu": "0.0.19"}, "v5e", {"libtpu": "0.0.21.1"}),  # Colab has the second pair
    ({"jax": "0.9.0", "libtpu": "0.0.28"}, "v6e", {"libtpu": "0.0.29"}),  # between two releases of the table
    ({"jax": "0.9.2", "libtpu": "0.0.33"}, "v6e", {"libtpu": "0.0.34"}),
    ({"jax": "0.10.0", "libtpu": "0.0.36.9"}, "v6e", {"libtpu": "0.0.37"}),
    ({"libtpu": "0.0.38"}, "v5e", {"libtpu": "0.0.39"}),  # Kaggle's image has 0.0.17
    ({"jax": "0.11.0", "libtpu": "0.0.40"}, "tpu7x", {"libtpu": "0.0.41"}),
    ({"jax": "0.11.2", "libtpu": "0.0.44"}, "tpu7x", {"libtpu": "0.0.45"}),
    ({"jax": "0.12.0.1", "libtpu": "0.0.46"}, "tpu7x", {"libtpu": "0.0.47"}),
    ({"libtpu": "0.0.42.1"}, "v5e", {"libtpu": "0.0.43.2"}),
    ({"jax": "0.7.0"}, "v6e", {"jax": "0.7.1"}),
    ({"python": "3.11.9", "libtpu": "0.0.44.1"}, "v6e", {"libtpu": "0.0.45"}),
    ({"python": "3.11.9", "jax": "0.11.0"}, "v6e", {"python": "3.12.0"}),
    ({"numpy": "1.26.4"}, "v6e", {"numpy": "2.0.0"}),
    ({"numpy": "2.0.2", "jax": "0.11.0"}, "v6e", {"numpy": "2.1.0"}),
    ({"numpy": "2.1.3", "jax": "0.12.0.dev20261001"}, "v6e", {"numpy": "2.2.0"}),
]


def test_every_row_is_tested():
    assert len(ROWS) == len(BAD_VERSIONS)


@pytest.mark.parametrize(
    ("number", "changes", "chip", "mended"),
    [(number, *row) for number, row in enumerate(ROWS)],
    ids=[str(row[0]) for row in ROWS],
)
def test_a_bad_pair_is_found_and_its_neighbour_is_not(number, changes, chip, mended):
    installed = GOOD | changes
    assert find_bad_versions(installed, chip) is BAD_VERSIONS[number]
    assert find_bad_versions(installed | mended, chip) is None
    assert BAD_VERSIONS[number].reason


def test_a_row_for_one_chip_leaves_the_others_alone():
    assert find_bad_versions(GOOD | {"libtpu": "0.0.42.1"}, "v6e") is None


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_the_required_versions_are_good(chip, python):
    installed = {name: pinned_version(name) for name in ("numpy", "jax", "libtpu")} | {"python": python}
    assert find_bad_versions(installed, chip) is None


def test_a_package_that_is_not_installed_is_not_bad():
    assert find_bad_versions({"jax": "0.10.2", "python": "3.12"}, "v5e") is None


def test_releases_are_in_order_and_labels_are_no_part_of_a_version():
    assert sorted(RELEASED_WITH, key=parse_version) == [*RELEASED_WITH]
    assert sorted(RELEASED_WITH.values(), key=parse_version) == [*RELEASED_WITH.values()]
    assert parse_version("0.0.42.1+cpu") == parse_version("0.0.42.1.dev3") == (0, 0, 42, 1)

"""Pixel-to-latent-to-token arithmetic, against figures published for Wan."""

import pytest

from backend.schemas import geometry
from backend.schemas.geometry import Geometry


def wan(width: int, height: int, num_frames: int = 81) -> Geometry:
    return Geometry(width=width, height=height, num_frames=num_frames, spatial_scale=8)


def test_720p_has_the_published_shape():
    assert wan(1280, 720).latent_shape(16) == (1, 16, 21, 90, 160)
    assert wan(1280, 720).num_tokens == 75_600


def test_480p_has_the_published_tokens():
    assert wan(832, 480).num_tokens == 32_760


def test_the_demo_model_has_few():
    tiny = Geometry(width=128, height=128, num_frames=33, spatial_scale=16)
    assert (tiny.num_tokens, tiny.latent_shape(8, batch=2)) == (144, (2, 8, 9, 8, 8))


@pytest.mark.parametrize("num_frames", [1, 5, 17, 33, 81, 121])
def test_frames_survive_the_way_to_latents_and_back(num_frames):
    assert geometry.is_frame_count(num_frames)
    assert geometry.pixel_frames(geometry.latent_frames(num_frames)) == num_frames


@pytest.mark.parametrize("num_frames", [-3, 0, 2, 80, 82])
def test_other_counts_are_none(num_frames):
    assert not geometry.is_frame_count(num_frames)


@pytest.mark.parametrize(
    ("given", "nearest"),
    [(80, [77, 81]), (81, [81]), (0, [5]), (-7, [5]), (4, [5]), (6, [5, 9]), (120, [117, 121]), (500, [121])],
)
def test_nearest_frame_counts_are_allowed_ones(given, nearest):
    assert geometry.nearest_values(given, 4, 5, 121, offset=1) == nearest


@pytest.mark.parametrize(("given", "nearest"), [(0, [96]), (100, [96, 128]), (127, [96, 128]), (128, [128]), (999, [128])])
def test_nearest_sizes_are_allowed_ones(given, nearest):
    assert geometry.nearest_values(given, 32, 90, 140) == nearest

"""Remedies are estimated, then compiled, and offered only if the compiler confirms them."""

from backend.schemas.request import GenerationRequest, example_request
from backend.schemas.settings import find_preset
from backend.tpu_analysis.remedy import Remedy, Shortage, find_remedies

GIB = 2**30


def shortage(*, weights: int, needed: int) -> Shortage:
    """Return the shortage of the 720p preset on one chip of 32 GiB."""
    request = example_request(find_preset("wan2.1-t2v-14b-720p"))
    return Shortage(
        request=request, topology="v6e:1x1", num_devices=1, weights=weights * GIB, needed=needed * GIB, capacity=32 * GIB
    )


def test_each_kind_of_remedy_is_offered_as_compiled():
    tried = []

    def compiled(topology: str, request: GenerationRequest) -> int:
        tried.append((topology, request.num_frames, request.width))
        return 30 * GIB

    found = find_remedies(shortage(weights=20, needed=40), compiled)
    larger, fewer, smaller = found
    assert larger == Remedy(topology="v6e:2x2", width=1280, height=720, num_frames=81, hbm_bytes_per_device=30 * GIB)
    assert (fewer.topology, fewer.num_frames, fewer.width) == ("v6e:1x1", 41, 1280)  # 0.95 * 12 / 20 of 21 latent frames
    assert smaller.width * smaller.height <= 0.57 * 1280 * 720 and smaller.num_frames == 81 and smaller.width > smaller.height
    assert len(tried) == 3


def test_an_estimate_that_the_compiler_refutes_is_lowered_and_then_given_up():
    tried = []

    def compiled(topology: str, request: GenerationRequest) -> int | None:
        tried.append((topology, request.num_frames))
        return 31 * GIB if topology == "v6e:1x1" and request.num_frames < 41 else None

    found = find_remedies(shortage(weights=20, needed=40), compiled)
    assert [remedy.num_frames for remedy in found] == [37]
    assert [topology for topology, _ in tried[:2]] == ["v6e:2x2", "v6e:2x4"]


def test_weights_that_fill_the_chip_leave_larger_slices_alone():
    found = find_remedies(shortage(weights=40, needed=45), lambda topology, request: 20 * GIB)
    assert [remedy.topology for remedy in found] == ["v6e:2x2"]

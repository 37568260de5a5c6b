"""Check which settings fit after memory ran out, with the demo model's real programs and a device of reduced memory."""

from types import SimpleNamespace

import jax
import pytest

from backend.errors import Stopped
from backend.pipeline import memory_suggestions as module
from backend.pipeline.memory_suggestions import suggest_smaller_requests
from backend.schemas.events import Compiling, Proposal
from backend.schemas.request import GenerationRequest
from presets import load_preset, loader

pytestmark = [pytest.mark.parity, pytest.mark.demo_model]


LONG = 4001  # frames: enough that a step's memory grows with them, besides its weights and the prompt's keys
STEP = "denoise_step"


@pytest.fixture(autouse=True)
def long_videos_are_allowed(monkeypatch) -> None:
    known = loader._read_presets(loader.PRESET_FOLDER)
    monkeypatch.setitem(known, "wan-tiny", known["wan-tiny"].model_copy(update={"max_frames": LONG, "trained_frames": None}))


@pytest.fixture
def steps_only(monkeypatch) -> None:
    """Leave the decoder out. The demo's decoder needs more memory than its steps, and would hide them."""
    every = module.calls
    monkeypatch.setattr(module, "calls", lambda *given: (one for one in every(*given) if one.program.key == STEP))


def request(**changes) -> GenerationRequest:
    return GenerationRequest.from_preset(
        load_preset("wan-tiny"), **{"prompt": "a red circle", "width": 128, "num_frames": LONG, "seed": 1} | changes
    )


def needs(wanted: GenerationRequest) -> module.MemoryNeeds:
    return module.measure_memory(wanted, jax.devices()[:1], None, lambda event: None)


@pytest.mark.usefixtures("steps_only")
def test_what_is_proposed_was_compiled_and_fits_beside_the_weights():
    whole = needs(request())
    memory = int(whole.weights + 0.9 * (whole.peak - whole.weights))
    told = []
    proposals = suggest_smaller_requests(request(), told.append, memory=memory)
    assert proposals and all(isinstance(event, Compiling) for event in told)
    assert f"settings that fit: 128x96, {LONG} frames" == told[0].what  # the request itself is tried first
    for one in proposals:
        fitting = request(width=one.width, height=one.height, num_frames=one.num_frames)
        assert one.bytes_per_device <= memory and 5 <= one.num_frames < LONG
        assert needs(fitting).peak <= memory


@pytest.mark.usefixtures("steps_only")
def test_with_room_for_the_weights_alone_nothing_is_proposed():
    assert suggest_smaller_requests(request(), lambda event: None, memory=needs(request()).weights + 1000) == ()


def test_a_device_that_does_not_report_its_memory_has_no_proposals():
    assert suggest_smaller_requests(request(), lambda event: None) == ()


@pytest.mark.usefixtures("steps_only")
def test_what_ran_out_though_it_fits_by_the_compiler_is_proposed_smaller():
    whole = needs(request())
    proposals = suggest_smaller_requests(request(), lambda event: None, memory=10 * int(whole.peak))
    assert proposals and all(one.bytes_per_device <= module.CAUTION * whole.peak for one in proposals)


def test_stop_ends_the_search():
    def stop(event) -> None:
        raise Stopped

    with pytest.raises(Stopped):
        suggest_smaller_requests(request(), stop, memory=10**9)


class _Refusing:
    """A compiler whose memory does not suffice for a step with the tokens of more than this many frames."""

    def __init__(self, most: int, message: str) -> None:
        self._most, self._message = most, message

    def __call__(self, lowered: jax.stages.Lowered, *options: object) -> SimpleNamespace:
        leaves = jax.tree.leaves(lowered.in_avals)
        # latents of the step
        if any(leaf.ndim == 5 and leaf.shape[:2] == (1, 16) and leaf.shape[2] > self._most for leaf in leaves):
            raise jax.errors.JaxRuntimeError(self._message)
        sizes = dict.fromkeys(
            ("argument_size_in_bytes", "output_size_in_bytes", "alias_size_in_bytes", "temp_size_in_bytes"), 1000
        )
        return SimpleNamespace(memory_analysis=lambda: SimpleNamespace(**sizes, generated_code_size_in_bytes=0))


@pytest.mark.parametrize(
    "message",
    [
        "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 40.05G of 31.25G hbm. Exceeded by 8.8G.",
        pytest.param("RESOURCE_EXHAUSTED: HLO temporaries (38.1G) exceeds available HBM", marks=pytest.mark.slow),
        pytest.param("RESOURCE_EXHAUSTED: Out of memory", marks=pytest.mark.slow),
    ],
)
def test_a_compiler_that_refuses_for_memory_is_believed(monkeypatch, message):
    monkeypatch.setattr(module, "compile_with", _Refusing(7, message))
    [proposal] = suggest_smaller_requests(
        request(num_frames=33), lambda event: None, memory=32 * 2**30
    )  # no smaller wide size exists
    assert isinstance(proposal, Proposal) and (proposal.width, proposal.height) == (128, 96) and 5 <= proposal.num_frames <= 25


def test_a_compiler_that_fails_for_another_reason_is_an_error(monkeypatch):
    monkeypatch.setattr(module, "compile_with", _Refusing(0, "INTERNAL: a bug"))
    with pytest.raises(jax.errors.JaxRuntimeError, match="a bug"):
        suggest_smaller_requests(request(num_frames=33), lambda event: None, memory=32 * 2**30)

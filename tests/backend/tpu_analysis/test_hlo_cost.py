"""Read cycles, loops, collectives and the work that hides them from a small HLO module in the compiler's own format."""

import pytest

from backend.chips import CHIPS, chip_of
from backend.tpu_analysis.hlo_cost import parse, predict

CHIP = CHIPS["v6e"]
MODULE = """HloModule jit_f, is_scheduled=true

%fused_product (p0: bf16[256,256], p1: bf16[256,256]) -> bf16[256,256] {
  %p0 = bf16[256,256]{1,0} parameter(0)
  %p1 = bf16[256,256]{1,0} parameter(1)
  ROOT %convolution.1 = bf16[256,256]{1,0} convolution(%p0, %p1), dim_labels=bf_io->bf
}

%fused_sum (p2: bf16[256,256]) -> bf16[256,256] {
  %p2 = bf16[256,256]{1,0} parameter(0)
  ROOT %add.1 = bf16[256,256]{1,0} add(%p2, %p2)
}

%safe (p3: bf16[8]) -> bf16[8] {
  ROOT %p3 = bf16[8]{0} parameter(0)
}

%unsafe (p4: bf16[8]) -> bf16[8] {
  %p4 = bf16[8]{0} parameter(0)
  ROOT %copy.9 = bf16[8]{0} copy(%p4), backend_config={"window_config":{"estimated_cycles":"999999"}}
}

%body (state: (s32[], bf16[256,256])) -> (s32[], bf16[256,256]) {
  %state = (s32[]{:T(128)}, bf16[256,256]{1,0:T(8,128)(2,1)}) parameter(0)
  %x = bf16[256,256]{1,0:T(8,128)(2,1)} get-tuple-element(%state), index=1
  %all-gather-start.1 = (bf16[32,256]{1,0}, bf16[256,256]{1,0}) all-gather-start(%x), replica_groups=[1,8]<=[8], dimensions={0}
  %product = bf16[256,256]{1,0} fusion(%x, %x), kind=kOutput, calls=%fused_product, backend_config={"estimated_cycles":"1750"}
  %all-gather-done.1 = bf16[256,256]{1,0} all-gather-done(%all-gather-start.1)
  %sum = bf16[256,256]{1,0} fusion(%product), kind=kLoop, calls=%fused_sum, backend_config={"estimated_cycles":"350"}
  %choice = bf16[8]{0} conditional(%x, %x, %x), branch_computations={%safe, %unsafe}
  ROOT %tuple = (s32[], bf16[256,256]) tuple(%state, %sum)
}

%condition (state: (s32[], bf16[256,256])) -> pred[] {
  %state.1 = (s32[], bf16[256,256]) parameter(0)
  %limit = s32[]{:T(128)} constant(40)
  ROOT %less = pred[] compare(%state.1, %limit), direction=LT
}

ENTRY %main (a: bf16[256,256]) -> bf16[256,256] {
  %a = bf16[256,256]{1,0} parameter(0)
  %while.1 = (s32[], bf16[256,256]{1,0}) while(%a), condition=%condition, body=%body
  %moved = bf16[256,256]{0,1} copy(%a), backend_config={"window_config":{"estimated_cycles":"700"}}
  %pass = bf16[256,256]{1,0} custom-call(%moved), custom_call_target="tpu_custom_call", metadata={op_name="normalise"}
  %conv = bf16[256,256]{1,0} custom-call(%pass), custom_call_target="tpu_custom_call", metadata={op_name="causal_conv"}
  %kernel = bf16[256,256]{1,0} custom-call(%conv), custom_call_target="tpu_custom_call", metadata={op_name="attention_constant"}
  ROOT %all_to_all.1 = bf16[256,256]{1,0} all-to-all(%kernel), replica_groups={{0,1,2,3},{4,5,6,7}}, dimensions={0}
}
"""


CACHED_STEP = MODULE.replace(
    "ENTRY %main (a: bf16[256,256]) -> bf16[256,256] {",
    """%all_layers (b: bf16[256,256]) -> bf16[256,256] {
  %b = bf16[256,256]{1,0} parameter(0)
  ROOT %while.2 = (s32[], bf16[256,256]{1,0}) while(%b), condition=%condition, body=%body
}

ENTRY %main (a: bf16[256,256]) -> bf16[256,256] {
  %step = bf16[8]{0} conditional(%a, %a, %a), branch_computations={%safe, %all_layers}""",
)


ON_THE_SPARSE_CORE = """
%gathering (p5: bf16[32,256]) -> bf16[256,256] {
  %p5 = bf16[32,256]{1,0} parameter(0)
  ROOT %all-gather.2 = bf16[256,256]{1,0} all-gather(%p5), replica_groups=mesh['axis_0'=8] {'axis_0'}, dimensions={0}
}, execution_thread="sparsecore"

%async (p6: bf16[32,256]) -> bf16[256,256] {
  %p6 = bf16[32,256]{1,0} parameter(0)
  ROOT %custom-call.1 = bf16[256,256]{1,0} custom-call(%p6), custom_call_target="a", called_computations={%gathering}
}, execution_thread="sparsecore"

%fused_product (p0: bf16[256,256], p1: bf16[256,256]) -> bf16[256,256] {
  %p0 = bf16[256,256]{1,0} parameter(0)
  ROOT %convolution.1 = bf16[256,256]{1,0} convolution(%p0, %p0), dim_labels=bf_io->bf
}

ENTRY %main (a: bf16[32,256]) -> bf16[256,256] {
  %a = bf16[32,256]{1,0} parameter(0)
  %call-start = ((), bf16[256,256]{1,0}) async-start(), calls=%async
  %call-update = ((bf16[32,256]{1,0}), bf16[256,256]{1,0}) async-update(%call-start)
  %product = bf16[256,256]{1,0} fusion(%a), kind=kOutput, calls=%fused_product, backend_config={"estimated_cycles":"500"}
  ROOT %call-done = bf16[256,256]{1,0} async-done(%call-update)
}
"""


@pytest.fixture(scope="module")
def cost():
    return predict(MODULE, CHIP, lambda instruction: 3500.0)


def test_what_is_in_a_loop_counts_as_often_as_it_runs(cost):
    assert cost.seconds["matmul"] == pytest.approx((40 * 1750 + 3500) / CHIP.clock_hz)  # and one kernel each
    assert cost.seconds["element-wise"] == pytest.approx((40 * 350 + 3500) / CHIP.clock_hz)


def test_copies_are_layout_and_kernels_are_asked_for_and_told_apart(cost):
    assert cost.seconds["layout"] == pytest.approx(700 / CHIP.clock_hz)  # the branch that does not run is not counted
    assert cost.seconds["attention"] == pytest.approx(3500 / CHIP.clock_hz)


def test_a_collective_costs_what_crosses_the_links_less_what_covers_it(cost):
    whole = 256 * 256 * 2
    gather = whole * 7 / 8 / CHIP.interconnect_bytes_per_second
    product = 1750 / CHIP.clock_hz
    exchange = whole * 3 / 4 / CHIP.interconnect_bytes_per_second
    assert cost.seconds["collectives"] == pytest.approx(exchange + 40 * max(0.0, gather - product))
    assert cost.hidden == pytest.approx(40 * min(gather, product))


def test_a_collective_on_the_sparse_core_is_covered_from_its_start_to_its_done():
    cost = predict(ON_THE_SPARSE_CORE, CHIP, lambda instruction: 0.0)
    gather, product = 256 * 256 * 2 * 7 / 8 / CHIP.interconnect_bytes_per_second, 500 / CHIP.clock_hz
    assert product < gather
    assert cost.hidden == pytest.approx(product) and cost.seconds["collectives"] == pytest.approx(gather - product)


def test_the_entry_and_the_schedule_are_found():
    computations, entry = parse(MODULE)
    assert entry == "main"
    assert [one.opcode for one in computations["main"]] == ["parameter", "while", "copy", *["custom-call"] * 3, "all-to-all"]


def test_a_topology_names_its_chip():
    assert chip_of("v6e:2x4").hbm_bytes == 32 * 2**30
    with pytest.raises(KeyError):
        chip_of("v9:2x2")


def test_a_step_with_a_cache_counts_as_one_that_runs_all_layers():
    cached = predict(CACHED_STEP, CHIP, lambda instruction: 3500.0)
    assert cached.seconds["matmul"] == pytest.approx((2 * 40 * 1750 + 3500) / CHIP.clock_hz)  # two loops, one convolution

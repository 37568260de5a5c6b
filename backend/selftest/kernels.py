"""The self-test of `app.py doctor` for kernels and compile options, each compared with a reference at small size. Without a TPU,
tests run the TPU kernels on a CPU in interpret mode (`jax.experimental.pallas.tpu.force_tpu_interpret_mode`)."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from backend.errors import one_line
from backend.schemas.check import Check
from kernels.attention import AttentionOptions, KvLengths, SparseHeads, TpuOptions, attention, sla_attention
from kernels.attention.block_sparse import BlockSparseOptions, KeyBlocks, block_sparse_attention
from kernels.attention.key_selection import block_means, largest
from kernels.attention.reference import reference_attention
from kernels.causal_conv import Edges, Epilogue, arrange_weight, causal_conv
from kernels.qkv import LOG2_E, HeadBounds, Preparation, group_heads, prepare, ungroup_heads
from kernels.token_norm import layer_norm, rms_norm
from kernels.token_quantize import quantize_tokens

REPORT = "attach the JSON of `python app.py doctor --json FILE` to a bug report"
HEADS, WIDTH = 2, 128


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The largest difference from the reference, and the largest difference that rounding can cause."""

    difference: float
    allowed: float


Comparison = Callable[[], Outcome]


def kernel_checks(platform: str) -> dict[str, Comparison]:
    """Return comparisons for the kernels of this platform ("tpu", "gpu" or "cpu"), by name."""
    if platform != "tpu":
        by_name = {"attention as it is chosen here": None, "attention by cuDNN": "cudnn"}
        return {
            name: partial(_compare_attention, implementation=implementation)
            for name, implementation in by_name.items()
            if platform == "gpu" or implementation is None
        }
    own = partial(_compare_attention, implementation="pallas_tpu")
    # Both norms round each value once, so they differ from XLA by at most one step of bfloat16. Values are at most 8.
    norm = partial(_compare_pass, shape=(1, 256, HEADS * WIDTH), allowed=8 * 2**-7, scale=2.0)
    return {
        "attention, constant maximum": own,
        "attention, online": partial(own, tpu=TpuOptions(tests_bounds=False)),
        "attention, loud heads": partial(own, norm=30.0),
        "attention, a window": partial(own, window_size=(100, 50)),
        "attention, a bias a key": partial(own, has_bias=True),
        "attention, keys that are counted": partial(own, counted=200),
        "block-sparse attention, constant maximum": _compare_block_sparse,
        "block-sparse attention, loud heads": partial(_compare_block_sparse, norm=30.0),
        "block-sparse attention, short blocks": partial(_compare_block_sparse, block_q=64),
        # Both round once to bfloat16. Values are below 1, so the limit is one step of 2^-8.
        "means of blocks": partial(_compare_pass, partial(block_means, block=64), (1, 700, HEADS, WIDTH), 2**-8, num_tokens=650),
        "lists of the largest scores": partial(_compare_pass, partial(largest, number=13), (1, HEADS, 40, 297), 0.0),
        "linear attention": _compare_linear_attention,
        "norm, rotation and head groups": _compare_preparation,
        "norm of each head": partial(_compare_preparation, norms_heads=True),
        "rotation by each head's own angles": partial(_compare_preparation, has_own_angles=True),
        "head groups joined": _compare_ungrouping,
        "layer norm of tokens": partial(norm, partial(layer_norm, eps=1e-6), num_vectors=2),
        "RMS norm of tokens": partial(norm, partial(rms_norm, eps=1e-6), num_vectors=1),
        "8-bit tokens": _compare_quantization,
        "convolution": _compare_convolution,
        "convolution of a doubled picture": partial(_compare_convolution, doubles=True),
    }


def run_checks(comparisons: Mapping[str, Comparison], kind: str) -> Iterator[Check]:
    """Run each comparison and yield its check. An exception counts as a fault, and the next comparison still runs."""
    for name, compare in comparisons.items():
        try:
            outcome = compare()
        except Exception as error:  # any error of the compiler or chip is a finding
            found = one_line(f"{type(error).__name__}: {error}")[:400]
            yield Check(name=f"{kind} {name}", state="fault", found=found, fix=REPORT)
            continue
        found = f"differs from the reference by {outcome.difference:.2g}, {outcome.allowed:.2g} allowed"
        is_close = outcome.difference <= outcome.allowed  # a NaN is not close
        yield Check(name=f"{kind} {name}", state="ok" if is_close else "fault", found=found, fix="" if is_close else REPORT)


def compile_option_checks(options: Mapping[str, object], devices: Sequence[jax.Device]) -> dict[str, Comparison]:
    """Return comparisons for each compile option alone and for all options together."""
    groups = {name: {name: value} for name, value in options.items()}
    if len(options) > 1:
        groups["all together"] = dict(options)
    return {name: partial(_compare_option, group, devices) for name, group in groups.items()}


def _compare_option(options: Mapping[str, Any], devices: Sequence[jax.Device]) -> Outcome:
    """Compare a matrix product that is compiled with these options, with exchanges between the devices, with NumPy's product. The
    matrices contain small whole numbers, so the sums are exact in any order."""
    mesh = Mesh(np.asarray(devices), ("chips",))
    rows, columns = (NamedSharding(mesh, spec) for spec in (P("chips", None), P(None, "chips")))
    size = 128 * len(devices)
    numbers = np.arange(size * size).reshape(size, size)
    left, right = (numbers % 7 - 3).astype(np.float32), (numbers % 5 - 2).astype(np.float32)

    def work(left: jax.Array, right: jax.Array) -> jax.Array:
        gathered = jax.lax.with_sharding_constraint(right.astype(jnp.bfloat16), NamedSharding(mesh, P()))
        product = jnp.dot(left.astype(jnp.bfloat16), gathered, preferred_element_type=jnp.float32)
        return jax.lax.with_sharding_constraint(product, columns)

    arrays = [jax.device_put(array, rows) for array in (left, right)]
    compiled = jax.jit(work, out_shardings=columns).lower(*arrays).compile(compiler_options=dict(options))
    return Outcome(float(np.abs(np.asarray(compiled(*arrays)) - left @ right).max()), 0.0)


def _draw_normal(number: int, *shape: int, scale: float = 1.0) -> jax.Array:
    return (scale * jax.random.normal(jax.random.key(number), shape)).astype(jnp.bfloat16)


def _largest_difference(ours: jax.Array, exact: jax.Array) -> float:
    return float(jnp.abs(ours.astype(jnp.float32) - exact.astype(jnp.float32)).max())


def _compare_attention(*, norm: float = 1.0, has_bias: bool = False, counted: int | None = None, **options: Any) -> Outcome:
    """Compare the attention with the reference. The lengths are not multiples of any block size. The scores are proportional to
    `norm`. The kernel rounds the scaled query, the attention weights and the result to bfloat16. With `norm` 1, these roundings
    change a result by at most 0.01 of the largest value, and the limit is twice this change. With a larger `norm`, a few keys
    have nearly all the weight, and rounding can exchange the weights of two similar keys. So the limit is half of the largest
    value."""
    query, key = (_draw_normal(number, 1, length, HEADS, WIDTH, scale=norm**0.5) for number, length in ((0, 300), (1, 520)))
    value = _draw_normal(2, 1, 520, HEADS, WIDTH)
    bias = jnp.linspace(-3, 3, 520)[None, None, None] if has_bias else None
    kv_lengths = None if counted is None else KvLengths(values=jnp.array([counted]), minimum=counted)
    chosen = AttentionOptions(kv_lengths=kv_lengths, **options)
    ours = jax.jit(lambda *arrays: attention(*arrays, bias, chosen))(query, key, value)
    seen = slice(counted)
    wide = [array.astype(jnp.float32) for array in (query, key[:, seen], value[:, seen])]
    with jax.default_matmul_precision("highest"):
        reference = partial(reference_attention, scale=WIDTH**-0.5, window=options.get("window_size"))
        exact = cast(jax.Array, reference(*wide, bias))  # not a tuple, because return_lse is False
    share = 0.02 if norm == 1.0 else 0.5
    return Outcome(_largest_difference(ours, exact), share * float(jnp.abs(value).max()))


def _compare_block_sparse(*, norm: float = 1.0, block_q: int = 128) -> Outcome:
    """Compare the block-sparse attention of 300 queries, whose lists have three of nine key blocks, with its plain form in
    float32. The limits are explained in `_compare_attention`."""
    query, key = (_draw_normal(number, 1, length, HEADS, WIDTH, scale=norm**0.5) for number, length in ((0, 300), (1, 520)))
    value = _draw_normal(2, 1, 520, HEADS, WIDTH)
    order = jax.random.uniform(jax.random.key(3), (1, HEADS, -(-300 // block_q), 9))
    blocks = KeyBlocks(indices=largest(order, 3)[0], block_q=block_q, block_kv=64)

    def attend(query: jax.Array, key: jax.Array, value: jax.Array, *, implementation: str) -> jax.Array:
        options = BlockSparseOptions(implementation=implementation)
        return cast(jax.Array, block_sparse_attention(query, key, value, blocks, options))  # because return_lse is False

    ours = jax.jit(partial(attend, implementation="pallas_tpu"))(query, key, value)
    with jax.default_matmul_precision("highest"):
        exact = attend(*(array.astype(jnp.float32) for array in (query, key, value)), implementation="masked")
    share = 0.02 if norm == 1.0 else 0.5
    return Outcome(_largest_difference(ours, exact), share * float(jnp.abs(value).max()))


def _compare_pass(
    compute: Callable, shape: tuple[int, ...], allowed: float, *, scale: float = 1.0, num_vectors: int = 0, **traced: int
) -> Outcome:
    """Compare a Pallas pass over tokens of this shape with XLA's operations. `compute` takes the tokens and a norm's vectors."""
    tokens, vectors = _draw_normal(0, *shape, scale=scale), [jnp.full((HEADS * WIDTH,), 1.1, jnp.float32)] * num_vectors
    results = (jax.jit(partial(compute, use_pallas=by))(tokens, *vectors, **traced) for by in (True, False))
    ours, plain = (jax.tree.leaves(result)[0] for result in results)
    return Outcome(_largest_difference(ours, plain), allowed)


def _compare_linear_attention() -> Outcome:
    """Compare the passes of SLA's linear attention with the plain form in float32. The projection multiplies by 16, so that the
    linear attention is larger than the attention to the listed keys. The passes round features, sums and results to bfloat16. The
    limit is the limit of `_compare_attention`."""
    query, key, value = (_draw_normal(number, 1, 520, HEADS, WIDTH).astype(jnp.float32) for number in range(3))
    plain = SparseHeads(query=query, key=key, value=value, num_keys=520, num_queries=520)
    mean, factor, zeros = key.mean(1, keepdims=True), LOG2_E * WIDTH**-0.5, jnp.zeros((1, HEADS))
    prepared = dataclasses.replace(
        plain,
        query=(query * factor).astype(jnp.bfloat16),
        key=(key - mean).astype(jnp.bfloat16),
        value=value.astype(jnp.bfloat16),
        mean=mean,
        bounds=HeadBounds(query=zeros, key=zeros, value=zeros),
    )
    blocks = KeyBlocks(indices=jnp.zeros((1, HEADS, 5, 1), jnp.int32), block_q=128, block_kv=64)
    projection = 16 * jnp.eye(WIDTH), jnp.ones(WIDTH)
    ours = sla_attention(prepared, blocks, projection, "masked")
    with jax.default_matmul_precision("highest"):
        exact = sla_attention(plain, blocks, projection, "masked")
    return Outcome(_largest_difference(ours, exact), 0.02 * float(jnp.abs(exact).max()))


def _compare_quantization() -> Outcome:
    """Compare tokens in int8, multiplied by their scales, with XLA's result. The limit is the largest step of int8, because
    chips may round a quotient differently."""
    tokens = _draw_normal(0, 1, 256, HEADS * WIDTH, scale=2.0)
    quantize = partial(quantize_tokens, dtype=jnp.dtype(jnp.int8))
    (ours, scale), plain = (jax.jit(partial(quantize, use_pallas=by))(tokens) for by in (True, False))
    return Outcome(_largest_difference(ours * scale, plain[0] * plain[1]), 1.01 * float(plain[1].max()))


def _compare_preparation(*, norms_heads: bool = False, has_own_angles: bool = False) -> Outcome:
    """Compare the Pallas passes of `kernels.qkv.prepare` with XLA's operations. The passes round to bfloat16 once, XLA's
    operations twice. Each of these three roundings changes a value by at most 2^-8 of its size, and values are at most 8. One
    more step of bfloat16 (2^-7) is allowed, so the limit is 8 * (3 * 2^-8 + 2^-7)."""
    how = Preparation(eps=1e-6, groups=2, norms_heads=norms_heads, head_width=WIDTH if has_own_angles else None)
    projected = tuple(_draw_normal(number, 1, 256, HEADS * WIDTH, scale=2.0) for number in range(3))
    norms = tuple(jnp.full((WIDTH if norms_heads else HEADS * WIDTH,), 1.1, jnp.float32) for _ in range(2))
    if has_own_angles:
        angle = jax.random.uniform(jax.random.key(5), (256, HEADS * WIDTH // 2)) * 6
    else:
        angle = jnp.repeat(jax.random.uniform(jax.random.key(5), (256, WIDTH // 2)) * 6, 2, axis=1)
    tables = jnp.cos(angle), jnp.sin(angle)

    def prepared(*arrays: Any, how: Preparation) -> tuple[jax.Array, jax.Array, jax.Array]:
        made = prepare(*arrays, how)
        return made.query, made.key, made.value

    arrays, by_passes = (projected, norms, tables), dataclasses.replace(how, use_pallas=True)
    query, key, value = jax.jit(partial(prepared, how=how))(*arrays)
    wide = key.astype(jnp.float32)
    plain = query.astype(jnp.float32) * (LOG2_E * WIDTH**-0.5), wide - wide.mean(2, keepdims=True), value
    passes = jax.jit(partial(prepared, how=by_passes))(*arrays)
    return Outcome(max(map(_largest_difference, passes, plain)), 3 * 8 * 2**-8 + 8 * 2**-7)


def _compare_ungrouping() -> Outcome:
    value = _draw_normal(0, 1, 256, HEADS * WIDTH)
    joined = jax.jit(partial(ungroup_heads, use_pallas=True))(group_heads(value, HEADS))
    return Outcome(_largest_difference(joined, value), 0.0)


def _compare_convolution(*, doubles: bool = False) -> Outcome:
    """Compare the convolution with XLA's convolution in float32. The kernel sums in float32 and rounds to bfloat16, which changes
    a result by at most 2^-8 of the largest value. The limit is twice this difference, as the order of the sums differs."""
    frames, before = _draw_normal(0, 2, 4, 16, WIDTH), _draw_normal(1, 2, 4, 16, WIDTH)
    weight = _draw_normal(2, WIDTH, WIDTH, 3, 3, 3, scale=0.02)
    nothing = jnp.zeros((4, 1, 16, WIDTH), jnp.bfloat16)
    call = partial(causal_conv, num_rows=16, doubles=doubles, edges=Edges(left=nothing, right=nothing))
    run = jax.jit(lambda *arrays: call(*arrays, jnp.zeros(WIDTH, jnp.float32), epilogue=Epilogue())[0])
    ours = run(frames, before, arrange_weight(weight))
    inner = jnp.concatenate([before, frames]).astype(jnp.float32)
    inner = inner.repeat(2, axis=1).repeat(2, axis=2) if doubles else inner
    padded = jnp.pad(inner, ((0, 0), (1, 1), (1, 1), (0, 0)))[None]
    kernel = weight.astype(jnp.float32).transpose(2, 4, 3, 1, 0)
    names = ("NDHWC", "DHWIO", "NDHWC")
    exact = jax.lax.conv_general_dilated(padded, kernel, (1, 1, 1), "VALID", dimension_numbers=names, precision="highest")[0]
    return Outcome(_largest_difference(ours, exact), 2**-7 * float(jnp.abs(exact).max()))

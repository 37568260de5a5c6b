"""Compare the decoder's convolution in TPU interpret mode with the convolution of XLA, with odd sizes and all epilogues."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kernels import causal_conv_tiling as module
from kernels.causal_conv import Edges, Epilogue, arrange_weight, causal_conv, swap_rows_and_columns
from kernels.causal_conv_tiling import padded_channels, padded_rows

TOLERANCE = 2e-5  # float32 sums of up to 27 * 130 products of order one, in another order


@pytest.fixture
def draw():
    generator = np.random.default_rng(0)
    return lambda *shape: jnp.asarray(generator.standard_normal(shape, np.float32))


def expected(frames, weight, bias, repeats_rows=False):
    """Return the convolution [F, W, H, N] of the frames [T + F, W + 2, H, C], which include the edge columns."""
    return (
        jax.lax.conv_general_dilated(
            jnp.pad(frames, ((0, 0), (0, 0), (1, 1), (0, 0)), mode="edge" if repeats_rows else "constant")[None],
            weight.transpose(2, 4, 3, 1, 0),
            (1, 1, 1),
            [(0, 0), (0, 0), (0, 0)],
            dimension_numbers=("NDHWC", "DHWIO", "NDHWC"),
            precision="highest",
        )[0]
        + bias
    )


def padded(array: jax.Array, rows: int) -> jax.Array:
    channels = array.shape[-1]
    return jnp.pad(array, ((0, 0), (0, 0), (0, padded_rows(rows) - rows), (0, padded_channels(channels) - channels)))


def vector(values: jax.Array) -> jax.Array:
    return jnp.pad(values, (0, padded_channels(values.shape[0]) - values.shape[0]))


# the last two have several grid steps, of two columns and of one
SHAPES = [(2, 2, 3, 20, 5, 7), (1, 2, 1, 16, 130, 3), (4, 2, 4, 9, 16, 130), (3, 0, 2, 33, 4, 8), (1, 0, 1, 1, 1, 1),
          (1, 2, 4, 100, 5, 7), (2, 2, 3, 200, 4, 6)]  # fmt: skip


@pytest.fixture(params=["plain", "looped", "in blocks"])
def form(request, monkeypatch):
    """Process small arrays like large arrays: programs in loops, and weights in blocks of 128 channels."""
    if request.param == "looped":
        monkeypatch.setattr(module, "UNROLLED_CYCLES", 0)
        monkeypatch.setattr(module, "FRAME_CYCLES", 0)
    if request.param == "in blocks":
        monkeypatch.setattr(module, "MOST_WEIGHT_BYTES", 0)


@pytest.mark.parametrize(("count", "earlier", "columns", "rows", "channels", "out"), SHAPES)
def test_it_equals_xlas_convolution_with_residual_and_norm(draw, form, count, earlier, columns, rows, channels, out):
    frames = draw(earlier + count, columns + 2, rows, channels)  # one column of the neighbour on each side
    weight, bias = draw(out, channels, earlier + 1, 3, 3), draw(out)
    residual, gamma = draw(count, columns, rows, out), draw(out)
    total = expected(frames, weight, bias) + residual
    normal = jax.nn.silu(total / jnp.linalg.norm(total, axis=-1, keepdims=True) * out**0.5 * gamma)

    inner = padded(frames, rows)
    made, normalised = causal_conv(
        inner[earlier:, 1:-1],
        jnp.concatenate([-inner[:earlier], inner[:earlier]])[:, 1:-1] if earlier else None,
        arrange_weight(weight),
        vector(bias),
        Edges(left=inner[:, :1], right=inner[:, -1:]),
        Epilogue(residuals=(padded(residual, rows),), norm=vector(gamma), norm_width=out),
        num_rows=rows,
        interpret=True,
    )
    scale = float(jnp.abs(total).max())
    assert np.allclose(made[:, :, :rows, :out], total, atol=TOLERANCE * scale)
    assert np.allclose(normalised[:, :, :rows, :out], normal, atol=1e-3)  # where a sum is near zero its direction is not exact
    for array in (made, normalised):
        assert not np.asarray(array[:, :, rows:]).any() and not np.asarray(array[..., out:]).any()


@pytest.mark.parametrize("rows", [1, 7, 16])
def test_the_first_and_the_last_row_may_stand_for_what_lies_beyond_them(draw, form, rows):
    frames, weight, bias = draw(4, 5, rows, 6), draw(130, 6, 3, 3, 3), draw(130)
    inner = padded(frames, rows)
    made, _ = causal_conv(
        inner[2:, 1:-1],
        inner[:2, 1:-1],
        arrange_weight(weight),
        vector(bias),
        Edges(left=inner[:, :1], right=inner[:, -1:]),
        Epilogue(),
        num_rows=rows,
        repeats_rows=True,
        interpret=True,
    )
    want = expected(frames, weight, bias, repeats_rows=True)
    assert np.allclose(made[:, :, :rows, :130], want, atol=TOLERANCE * float(jnp.abs(want).max()))
    assert not np.asarray(made[:, :, rows:]).any()


def test_what_is_not_asked_for_is_not_written(draw):
    frames, weight, bias = padded(draw(1, 2, 5, 3), 5), arrange_weight(draw(4, 3, 1, 3, 3)), vector(draw(4))
    edges = Edges(left=jnp.zeros_like(frames[:, :1]), right=jnp.zeros_like(frames[:, :1]))
    made, normalised = causal_conv(frames, None, weight, bias, edges, Epilogue(), num_rows=5, interpret=True)
    assert normalised is None and made.shape == (1, 2, 16, 128)
    epilogue = Epilogue(norm=vector(draw(4)), norm_width=4, keeps_sum=False)
    made, normalised = causal_conv(frames, None, weight, bias, edges, epilogue, num_rows=5, interpret=True)
    assert made is None and normalised.shape == (1, 2, 16, 128)


@pytest.mark.parametrize("columns", [1, 3])
def test_doubling_equals_repeating_each_pixel(draw, form, columns):
    rows, channels, out = 7, 6, 130
    frames, weight, bias = draw(2, columns + 2, rows, channels), draw(out, channels, 1, 3, 3), draw(out)
    large = jnp.repeat(jnp.repeat(frames, 2, axis=1), 2, axis=2)[:, 1:-1]  # one column of each neighbour suffices
    inner = padded(frames, rows)
    made, _ = causal_conv(
        inner[:, 1:-1],
        None,
        arrange_weight(weight),
        vector(bias),
        Edges(left=inner[:, :1], right=inner[:, -1:]),
        Epilogue(),
        num_rows=rows,
        doubles=True,
        interpret=True,
    )
    want = expected(large, weight, bias)
    assert made.shape == (2, 2 * columns, 16, 256)
    assert np.allclose(made[:, :, : 2 * rows, :out], want, atol=TOLERANCE * float(jnp.abs(want).max()))
    assert not np.asarray(made[:, :, 2 * rows :]).any()


def test_a_doubled_picture_gets_what_each_of_its_rows_is_given(draw):
    """The residuals are for upper and lower rows. The one frame of each serves both frames, and only the second residual has
    all columns.
    """
    rows, columns, out = 5, 2, 4
    frames, weight, bias = draw(2, columns, rows, 3), draw(out, 3, 1, 3, 3), draw(out)
    upper, lower = draw(1, columns, rows, out), draw(1, 2 * columns, rows, out)
    edge = padded(jnp.zeros((2, 1, rows, 3)), rows)

    def made(*residuals):
        sums, _ = causal_conv(
            padded(frames, rows),
            None,
            arrange_weight(weight),
            vector(bias),
            Edges(left=edge, right=edge),
            Epilogue(residuals=residuals),
            num_rows=rows,
            doubles=True,
            interpret=True,
        )
        return sums[:, :, : 2 * rows, :out]

    added = made(padded(upper, rows), padded(lower, rows)) - made()
    want = jnp.stack([jnp.repeat(upper, 2, axis=1), lower], axis=3).reshape(1, 2 * columns, 2 * rows, out)
    assert np.allclose(added, jnp.repeat(want, 2, axis=0), atol=TOLERANCE * float(jnp.abs(made()).max()))


@pytest.mark.parametrize(("channels", "out", "blocks"), [(1024, 1024, 4), (1024, 512, 2), (512, 512, 1), (640, 640, 1)])
def test_a_weight_beyond_the_vector_memory_comes_in_blocks(channels, out, blocks):
    weight = jax.ShapeDtypeStruct((out, channels, 3, 3, 3), jnp.bfloat16)
    assert jax.eval_shape(arrange_weight, weight).shape == (blocks, 9 * channels, 3 * out // blocks)


@pytest.mark.parametrize("frames", [1, 3])
def test_a_weight_turned_on_its_side_is_the_arranged_transpose(draw, frames):
    weight = draw(9, 5, frames, 3, 3)
    assert np.array_equal(swap_rows_and_columns(arrange_weight(weight), frames), arrange_weight(weight.swapaxes(3, 4)))

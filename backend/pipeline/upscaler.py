"""Upscale frames with a model on all devices, in batches. Too large frames are divided into overlapping tiles."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.sharding import PartitionSpec as P

from backend.checkpoints.upscalers import UpscalerFile
from backend.errors import ModelError, RequestError
from backend.runtime.context import RuntimeContext
from backend.runtime.hosts import put
from backend.runtime.mesh import Layout, MeshPlan, with_sharding
from backend.runtime.picture_models import PictureModel, build_picture_model
from backend.runtime.program import Compiler, Program, compile_now
from backend.schemas.worker import AXES
from backend.weights.read import read_tensor

# Width in pixels of a tile's border. Upscaled pixels of the border are not used if a neighbouring tile contains them too. In the
# embedded model, a result pixel depends on pixels at most 18 pixels away, so seams are not visible.
MARGIN = 20
# Maximum number of frames or tiles per device and call. Larger batches are not faster, and a stop must wait for the whole batch.
MOST_AT_ONCE = 8
# If the devices use the host's memory, the activations of a layer may take this many bytes on all devices together.
HOST_BYTES = 2**29
# Share of a chip's memory that is planned for the activations of one layer. A whole program uses four times as much (measured at
# 1280 x 720 on a v6e, 2026-11-26).
CHIP_SHARE = 1 / 16
UNKNOWN_CHIP_BYTES = 16 * 2**30  # assumed memory of a chip that is only described or does not report its memory
COPIES = 3  # how many arrays of a layer's activations exist at once: the input, the output, and a copy in another layout
AHEAD = 1  # number of later batches that are dispatched before a batch's result is copied to the host

Frame = np.ndarray


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tiling:
    """Evenly spaced, overlapping tiles of size `tile` (height, width) of frames, in pixels."""

    height: int
    width: int
    rows: int
    columns: int
    tile: tuple[int, int]

    @classmethod
    def plan(cls, height: int, width: int, most_pixels: int) -> Tiling:
        """Divide a frame into as few tiles as possible, of at most `most_pixels` pixels, or (4 * MARGIN) ** 2 if that is more."""
        for count in itertools.count(1):
            grids = [(rows, count // rows) for rows in range(1, count + 1) if count % rows == 0]
            sized = [(_tile_side(height, rows) * _tile_side(width, columns), rows, columns) for rows, columns in grids]
            pixels, rows, columns = min(sized)
            tile = _tile_side(height, rows), _tile_side(width, columns)
            if pixels <= max(most_pixels, (4 * MARGIN) ** 2):
                return cls(height=height, width=width, rows=rows, columns=columns, tile=tile)
        raise AssertionError("tiles reach their smallest size first")

    @property
    def num_tiles(self) -> int:
        return self.rows * self.columns

    @property
    def tile_starts(self) -> list[tuple[int, int]]:
        """The first row and column of each tile, in pixels."""
        sides = ((self.height, self.tile[0], self.rows), (self.width, self.tile[1], self.columns))
        tops, lefts = ([round(i * (length - tile) / max(1, count - 1)) for i in range(count)] for length, tile, count in sides)
        return [(top, left) for top in tops for left in lefts]

    def cut_tiles(self, frame: Frame) -> list[Frame]:
        (high, wide), tile_starts = self.tile, self.tile_starts
        return [frame[top : top + high, left : left + wide] for top, left in tile_starts]

    def join_tiles(self, tiles: Sequence[Frame], scale: int) -> Frame:
        """Join upscaled tiles, uint8 [scale * tile height, scale * tile width, 3], in the order of `cut_tiles`."""
        if len(tiles) == 1:
            return tiles[0]
        frame = np.empty((self.height * scale, self.width * scale, 3), np.uint8)
        tops, lefts = (sorted(set(values)) for values in zip(*self.tile_starts, strict=True))
        for (top, left), tile in zip(self.tile_starts, tiles, strict=True):
            y, y_end = _visible_range(top, tops, self.tile[0], self.height)
            x, x_end = _visible_range(left, lefts, self.tile[1], self.width)
            inner = tile[(y - top) * scale : (y_end - top) * scale, (x - left) * scale : (x_end - left) * scale]
            frame[y * scale : y_end * scale, x * scale : x_end * scale] = inner
        return frame


def _tile_side(length: int, count: int) -> int:
    return min(length, math.ceil(length / count) + (2 * MARGIN if count > 1 else 0))


def _visible_range(begin: int, tile_starts: Sequence[int], tile: int, length: int) -> tuple[int, int]:
    """Return the range (first, end) of the frame's rows or columns that are taken from the tile that starts at `begin`.
    Neighbouring tiles meet in the middle of their overlap."""
    place = tile_starts.index(begin)
    first = 0 if place == 0 else (begin + tile_starts[place - 1] + tile) // 2
    end = length if place == len(tile_starts) - 1 else (tile_starts[place + 1] + begin + tile) // 2
    return first, end


class Upscaler:
    """An upscaling model on devices, for its own `scale` and half of that scale."""

    def __init__(
        self,
        model: PictureModel,
        devices: Sequence[jax.Device],
        *,
        compiler: Compiler = compile_now,
        is_described: bool = False,
        runtime: RuntimeContext | None = None,
    ) -> None:
        """Put the weights onto the devices. If `is_described`, the devices exist only for compiling and get no weights."""
        self.model, self.scale = model, model.scale
        self.layout = Layout.create(MeshPlan(sp=len(devices)), devices, runtime=runtime)
        self._batch_sharding = self.layout.sharding(P(AXES))
        self._dtype = jnp.bfloat16 if self.layout.platform == "tpu" else jnp.float32
        described = self.describe_weights()
        if is_described:
            self._weights = described
        else:
            arrays = {name: np.asarray(value.numpy(), described[name].dtype) for name, value in model.weights.items()}
            self._weights = {name: put(array, described[name].sharding) for name, array in arrays.items()}
        self._compiler = compiler
        self._programs: dict[int, Program] = {}
        self._is_described = is_described

    def describe_weights(self) -> dict[str, jax.ShapeDtypeStruct]:
        leaves = self.model.describe_weights(self._dtype)
        return {name: with_sharding(leaf, self.layout.replicated) for name, leaf in leaves.items()}

    def check_scale(self, scale: int, name: str) -> None:
        if scale not in (self.scale, self.scale / 2):
            offered = [one for one in (self.scale, self.scale // 2) if one in (2, 4)]
            fix = f"use {offered[0]}" if offered else "use another model"
            raise RequestError(f"upscale={scale}", f"is not supported by {name}, whose scale is {self.scale}", fix)

    def plan_tiling(self, height: int, width: int) -> Tiling:
        return Tiling.plan(height, width, self._max_pixels_at_once)

    def choose_batch_size(self, tiling: Tiling, num_frames: int) -> int:
        """Return the number of tiles in each call of the program for a clip, a multiple of the number of devices."""
        devices, tiles = self.layout.mesh.size, num_frames * tiling.num_tiles
        max_tiles = max(1, min(MOST_AT_ONCE, self._max_pixels_at_once // math.prod(tiling.tile))) * devices
        runs = math.ceil(tiles / max_tiles)
        return math.ceil(tiles / runs / devices) * devices

    def compile_program(self, tiling: Tiling, scale: int, batch: int) -> Program:
        program = self.get_program(scale)
        program.prepare(self._weights, self.describe_tiles(tiling, batch))
        return program

    def describe_tiles(self, tiling: Tiling, batch: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((batch, *tiling.tile, 3), jnp.uint8, sharding=self._batch_sharding)

    def is_ready(self, tiling: Tiling, scale: int, batch: int) -> bool:
        return self.get_program(scale).is_ready(self._weights, self.describe_tiles(tiling, batch))

    def get_program(self, scale: int) -> Program:
        """Return the program that upscales tiles, uint8 [N, H, W, 3], by `scale`."""
        if scale not in self._programs:
            self._programs[scale] = Program(
                "the upscaler",
                functools.partial(_enlarged, self.model, scale != self.scale, self._dtype),
                self.layout,
                key="upscale",
                places=lambda shapes: with_sharding(shapes, self._batch_sharding),
                compiler=self._compiler,
            )
        return self._programs[scale]

    def upscale_frames(self, frames: Iterable[Frame], tiling: Tiling, scale: int, batch: int) -> Iterator[Frame]:
        """Yield upscaled frames, uint8 [H, W, 3], in order. At most two batches of tiles are in memory at a time."""
        tiles = (tile for frame in frames for tile in tiling.cut_tiles(frame))
        program, dispatched, whole = self.get_program(scale), deque(), []
        while True:
            batch_tiles = list(itertools.islice(tiles, batch))
            if batch_tiles:
                padded = np.stack([*batch_tiles, *[batch_tiles[-1]] * (batch - len(batch_tiles))])
                dispatched.append((program(self._weights, put(padded, self._batch_sharding)), len(batch_tiles)))
            if not dispatched:
                return
            if len(dispatched) > AHEAD or not batch_tiles:
                result, count = dispatched.popleft()
                for tile in np.asarray(result)[:count]:
                    whole.append(tile)
                    if len(whole) == tiling.num_tiles:
                        yield tiling.join_tiles(whole, scale)
                        whole = []

    @functools.cached_property
    def _max_pixels_at_once(self) -> int:
        devices = self.layout.mesh.devices.flatten()
        if self.layout.platform == "cpu":
            available_bytes = HOST_BYTES / len(devices)
        else:
            stats = {} if self._is_described else devices[0].memory_stats() or {}
            available_bytes = CHIP_SHARE * stats.get("bytes_limit", UNKNOWN_CHIP_BYTES)
        return int(available_bytes / (COPIES * self.model.values_per_pixel * jnp.dtype(self._dtype).itemsize))


def _enlarged(model: PictureModel, is_halved: bool, dtype: jnp.dtype, weights: dict, tiles: jax.Array) -> jax.Array:
    """Upscale tiles, uint8 [N, H, W, 3], by the model's scale, or if `is_halved`, by half of that scale."""
    larger = model(weights, tiles.transpose(0, 3, 1, 2).astype(dtype) / 255).astype(jnp.float32)
    if is_halved:
        larger = jnp.clip(halved(halved(larger, 2), 3), 0, 1)
    return jnp.round(larger * 255).astype(jnp.uint8).transpose(0, 2, 3, 1)


def halved(pictures: jax.Array, axis: int) -> jax.Array:
    """Halve the number of pixels along this axis by bicubic interpolation, as PyTorch and ncnn do. Each result is the sum of four
    pixels with the weights -3/32, 19/32, 19/32 and -3/32. Source: Keys 1981, with a = -0.75, at the middle between two pixels."""
    length = pictures.shape[axis]
    edges = [(1, 1) if index == axis else (0, 0) for index in range(pictures.ndim)]
    padded = jnp.pad(pictures, edges, mode="edge")

    def every_other(first: int) -> jax.Array:
        return jax.lax.slice_in_dim(padded, first, first + length - 1, 2, axis)

    return (19 * (every_other(1) + every_other(2)) - 3 * (every_other(0) + every_other(3))) / 32


def read_model(file: UpscalerFile) -> PictureModel:
    """Read the upscaling model in this file. Raises: ModelError."""
    subject = f"the upscaler {file.name}"
    try:
        if not file.is_old:
            tensors = {name: read_tensor(place) for name, place in file.tensors().items()}
        else:
            try:  # this reader builds only tensors, dictionaries and numbers, and runs no code
                found = torch.load(file.path, map_location="cpu", weights_only=True)
            except Exception as error:  # an untrusted file can raise any error
                rule = f"must be a PyTorch file that contains only tensors ({type(error).__name__})"
                raise ModelError(subject, rule, "use a .safetensors file") from None
            trees = [found[name] for name in ("params_ema", "params", "state_dict") if isinstance(found, dict) and name in found]
            tensors = next(iter(trees), found)
            if not isinstance(tensors, dict) or not all(isinstance(one, torch.Tensor) for one in tensors.values()):
                raise ModelError(subject, "must contain a network's tensors by name", "use another file")
        return build_picture_model(file.name, tensors, is_known=file.is_embedded)
    except OSError as error:
        raise ModelError(subject, f"cannot be read ({error.strerror})", "check the file") from None

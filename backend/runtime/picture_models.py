"""Networks that make a picture larger, as spandrel builds them from their weights alone. Import spandrel through here, and
only in the worker process.

Spandrel imports torchvision, for two of its architectures. A torchvision that was built for another kind of torch than the one
that is installed cannot load its operators and raises, so two of them are declared here; nothing calls them.
"""

import dataclasses
import functools
import math
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
import torch

from backend.errors import ModelError
from backend.imports import TORCHVISION
from backend.runtime.torch_modules import call_module

TRIAL = 32  # pixels a side of the picture by which a network is held against PyTorch
TOLERANCE = 1e-3  # of values in 0..1: a quarter of what eight bits tell apart
PROBE = 64  # pixels a side of the picture by which a network's memory is measured
KINDS = "a network that spandrel knows, for colour pictures, such as ESRGAN, Compact, SPAN, SwinIR, DAT or HAT"


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class PictureModel:
    """A network that makes pictures `scale` times larger, its module on the meta device. `weights` are its parameters and
    buffers by name. It takes pictures whose sides are multiples of `multiple` and at least `minimum`, in pixels."""

    module: torch.nn.Module
    weights: Mapping[str, torch.Tensor]
    scale: int
    multiple: int = 1
    minimum: int = 1
    is_square: bool = False
    architecture: str = ""

    def __call__(self, weights: Mapping[str, jax.Array], pictures: jax.Array) -> jax.Array:
        """[N, 3, H, W] in 0..1 made larger, [N, 3, scale * H, scale * W] in 0..1. Pictures that are too small for the network,
        or not a multiple, are mirrored at their right and lower edges first, as spandrel does."""
        height, width = pictures.shape[2:]
        right, below = self._missing(width, height)
        mirrored = jnp.pad(pictures, ((0, 0), (0, 0), (0, below), (0, right)), mode="reflect") if right or below else pictures
        larger = call_module(self.module, weights, lambda module, given: module(given), mirrored)
        return jnp.clip(larger[:, :, : height * self.scale, : width * self.scale], 0, 1)

    @functools.cached_property
    def numbers_of_pixel(self) -> float:
        """The most numbers that one of its layers reads and writes for each pixel of a picture."""
        largest = 0
        side = math.ceil(max(PROBE, self.minimum) / self.multiple) * self.multiple

        def count(module: torch.nn.Module, given: tuple, result: object) -> None:
            nonlocal largest
            tensors = [one for one in (*given, result) if isinstance(one, torch.Tensor)]
            largest = max(largest, sum(math.prod(one.shape) for one in tensors))

        leaves = [module for module in self.module.modules() if not any(True for _ in module.children())]
        hooks = [module.register_forward_hook(count) for module in leaves]
        try:
            jax.eval_shape(self, self.described(jnp.float32), jax.ShapeDtypeStruct((1, 3, side, side), jnp.float32))
        finally:
            for hook in hooks:
                hook.remove()
        return largest / (side * side)

    def described(self, dtype: jnp.dtype) -> dict[str, jax.ShapeDtypeStruct]:
        """The weights' shapes; whole numbers, such as tables of positions, stay so, all others are of this dtype."""
        kinds = {name: dtype if value.is_floating_point() else jnp.int32 for name, value in self.weights.items()}
        kinds |= {name: jnp.bool_ for name, value in self.weights.items() if value.dtype == torch.bool}
        return {name: jax.ShapeDtypeStruct(tuple(value.shape), kinds[name]) for name, value in self.weights.items()}

    def _missing(self, width: int, height: int) -> tuple[int, int]:
        """How many columns and rows are missing."""
        sides = [math.ceil(max(side, self.minimum) / self.multiple) * self.multiple for side in (width, height)]
        if self.is_square:
            sides = [max(sides)] * 2
        return sides[0] - width, sides[1] - height


def picture_model(name: str, tensors: Mapping[str, torch.Tensor], is_known: bool = False) -> PictureModel:
    """The network to which these tensors belong. One that is not known to do so must make a small picture as PyTorch does.
    Raises: ModelError if spandrel knows none, or one that is of no use here."""
    spandrel = _spandrel()
    try:
        with torch.no_grad():
            found = spandrel.ModelLoader("cpu").load_from_state_dict(
                {key: value.float() if value.is_floating_point() else value for key, value in tensors.items()}
            )
    except Exception as error:  # whatever an architecture raises for tensors that are not its own
        raise ModelError(f"the upscaler {name}", f"must be {KINDS} ({type(error).__name__})", "take another file") from None
    is_one = isinstance(found, spandrel.ImageModelDescriptor)
    if not is_one or found.input_channels != 3 or found.output_channels != 3 or found.scale < 1:
        what = f"the upscaler {name} is of the kind {found.architecture.name} and"
        raise ModelError(what, "must make colour pictures larger", "take another file")
    module, needs = found.model.eval(), found.size_requirements
    side = math.ceil(max(TRIAL, needs.minimum) / needs.multiple_of) * needs.multiple_of
    picture = torch.rand(1, 3, side, side, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = None if is_known else module(picture.clone()).clamp(0, 1).numpy()
    _register_tensors(module)
    weights = {key: value.detach() for key, value in (*module.named_parameters(), *module.named_buffers())}
    model = PictureModel(
        module=module.to("meta"),
        weights=weights,
        scale=found.scale,
        multiple=needs.multiple_of,
        minimum=max(1, needs.minimum),
        is_square=needs.square,
        architecture=found.architecture.name,
    )
    if expected is not None:
        _check(name, model, picture.numpy(), expected)
    return model


def _check(name: str, model: PictureModel, picture: np.ndarray, expected: np.ndarray) -> None:
    """Raises: ModelError unless the model makes of this picture what PyTorch has made of it."""
    what = f"the upscaler {name} is of the kind {model.architecture}, which"
    try:
        with jax.default_device(_host()), jax.default_matmul_precision("highest"):
            described = model.described(jnp.float32)
            weights = {key: jnp.asarray(value.numpy(), described[key].dtype) for key, value in model.weights.items()}
            made = np.asarray(jax.jit(model)(weights, picture))
    except Exception as error:  # whatever an operation raises that torchax does not have
        raise ModelError(what, f"cannot be run here ({type(error).__name__})", "take another file") from None
    if made.shape != expected.shape or np.abs(made - expected).max() > TOLERANCE:
        raise ModelError(what, "does not give here what it gives in PyTorch", "take another file")


def _host() -> jax.Device:
    """The processor, or the first device where jax may use no processor."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        return jax.devices()[0]


def _register_tensors(module: torch.nn.Module) -> None:
    """Makes buffers of tensors that modules keep as plain attributes, so that they are given to the compiled program too."""
    for one in module.modules():
        for name, value in list(vars(one).items()):
            if isinstance(value, torch.Tensor):
                delattr(one, name)
                one.register_buffer(name, value, persistent=False)


@functools.cache
def _declared() -> torch.library.Library:
    """The operators of torchvision that it needs to be imported; the registration lasts as long as this object does."""
    library = torch.library.Library(TORCHVISION, "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


@functools.cache
def _spandrel() -> ModuleType:
    """The module. Raises: ModelError if it is not installed."""
    try:
        with _seen_torchvision():
            import spandrel
    except ImportError as error:
        fix = "run `pip install -r requirements.txt`"
        raise ModelError("the package spandrel", f"is needed to make videos larger ({error.name} is missing)", fix) from None
    return spandrel


@contextmanager
def _seen_torchvision() -> Generator[None]:
    """Within the block torchvision can be imported, where this process hides it."""
    hidden = sys.modules.get(TORCHVISION, False) is None
    if hidden:
        del sys.modules[TORCHVISION]
    try:
        yield _declare_missing()
    finally:
        if hidden:
            sys.modules[TORCHVISION] = None


def _declare_missing() -> None:
    """Declares the operators if torchvision's own library does not bring them."""
    from importlib.util import find_spec

    place = find_spec(TORCHVISION)
    if place is None or not place.submodule_search_locations:
        return
    try:
        torch.ops.load_library(f"{place.submodule_search_locations[0]}/_C.so")
    except OSError:
        _declared()

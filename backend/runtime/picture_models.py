"""Networks that make a picture larger: Real-ESRGAN's own, and any other that spandrel builds from its weights alone. Import
spandrel through here, and only in the worker process.

Spandrel declares torchvision as a requirement and imports three names of it, for two architectures that are of no use here. A
torchvision that was built for another kind of torch than the installed one raises, and would break diffusers with it. The
requirements therefore bring neither; `requirements-upscalers.txt` brings spandrel alone, and stand-ins are imported in place of
torchvision.
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
from backend.runtime.real_esrgan import build_real_esrgan
from backend.runtime.torch_modules import call_module

TRIAL = 32  # pixels a side of the picture by which a network is held against PyTorch
TOLERANCE = 1e-3  # of values in 0..1: a quarter of what eight bits tell apart
PROBE = 64  # pixels a side of the picture by which a network's memory is measured
KINDS = "a network that spandrel knows, for colour pictures, such as ESRGAN, Compact, SPAN, SwinIR, DAT or HAT"
INSTALL = "pip install --no-deps -r requirements-upscalers.txt"
_BORROWED = {
    TORCHVISION: (),
    f"{TORCHVISION}.transforms": (),
    f"{TORCHVISION}.transforms.functional": ("InterpolationMode", "normalize", "rotate"),
}
"""What spandrel imports of torchvision: names by module."""


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
    Raises: ModelError for tensors of no network that is known, or of one that is of no use here."""
    built = _build_network(name, {key: value.float() if value.is_floating_point() else value for key, value in tensors.items()})
    module = built.module.eval()
    side = math.ceil(max(TRIAL, built.minimum) / built.multiple) * built.multiple
    picture = torch.rand(1, 3, side, side, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = None if is_known else module(picture.clone()).clamp(0, 1).numpy()
    _register_tensors(module)
    weights = {key: value.detach() for key, value in (*module.named_parameters(), *module.named_buffers())}
    model = dataclasses.replace(built, module=module.to("meta"), weights=weights)
    if expected is not None:
        _check(name, model, picture.numpy(), expected)
    return model


def _build_network(name: str, tensors: Mapping[str, torch.Tensor]) -> PictureModel:
    """The network with these weights in its module. Raises: ModelError."""
    network = build_real_esrgan(tensors)
    if network is not None:
        return PictureModel(module=network, weights={}, scale=network.scale, architecture=network.name)
    spandrel = _spandrel(name)
    try:
        with torch.no_grad():
            found = spandrel.ModelLoader("cpu").load_from_state_dict(dict(tensors))
    except Exception as error:  # whatever an architecture raises for tensors that are not its own
        raise ModelError(f"the upscaler {name}", f"must be {KINDS} ({type(error).__name__})", "take another file") from None
    is_one = isinstance(found, spandrel.ImageModelDescriptor)
    if not is_one or found.input_channels != 3 or found.output_channels != 3 or found.scale < 1:
        what = f"the upscaler {name} is of the kind {found.architecture.name} and"
        raise ModelError(what, "must make colour pictures larger", "take another file")
    needs = found.size_requirements
    return PictureModel(
        module=found.model,
        weights={},
        scale=found.scale,
        multiple=needs.multiple_of,
        minimum=max(1, needs.minimum),
        is_square=needs.square,
        architecture=found.architecture.name,
    )


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


def _spandrel(name: str = "") -> ModuleType:
    """The module, for the upscaler of this name. Raises: ModelError if it is not installed."""
    try:
        with _stand_ins():
            import spandrel
    except ImportError:
        rule = "is no Real-ESRGAN, and the package spandrel, which reads other networks, is not installed"
        raise ModelError(f"the upscaler {name}", rule, f"run `{INSTALL}`, or take another file") from None
    return spandrel


@contextmanager
def _stand_ins() -> Generator[None]:
    """Within the block, the names that spandrel imports of torchvision are None, whether torchvision is installed or not."""
    hidden = {name: sys.modules.pop(name) for name in [*sys.modules] if name.partition(".")[0] == TORCHVISION}
    for module, names in _BORROWED.items():
        sys.modules[module] = ModuleType(module)
        vars(sys.modules[module]).update(dict.fromkeys(names))
    try:
        yield
    finally:
        for module in _BORROWED:
            sys.modules.pop(module, None)
        sys.modules.update(hidden)

"""Upscaling networks: Real-ESRGAN's networks, and all networks that spandrel can build from their weights alone.

Import spandrel only through this module, and only in the worker process. Spandrel requires torchvision for two architectures that
are not used here. A torchvision that does not fit the installed torch would break diffusers. So this module gives spandrel
placeholders instead, and `requirements-upscalers.txt` installs spandrel without torchvision.
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

TRIAL = 32  # side in pixels of the image on which a network is compared with PyTorch
TOLERANCE = 1e-3  # largest allowed difference from PyTorch's result, for values in 0..1: a quarter of an 8-bit step
PROBE = 64  # side in pixels of the image for measuring a network's memory
KINDS = "a network for colour images that spandrel knows, such as ESRGAN, Compact, SPAN, SwinIR, DAT or HAT"
INSTALL = "pip install --no-deps -r requirements-upscalers.txt"
_TORCHVISION_NAMES = {
    TORCHVISION: (),
    f"{TORCHVISION}.transforms": (),
    f"{TORCHVISION}.transforms.functional": ("InterpolationMode", "normalize", "rotate"),
}
"""The names that spandrel imports from torchvision, by module."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class PictureModel:
    """A network that enlarges images `scale` times. Its `module` is on the meta device, and `weights` are its parameters and
    buffers.

    The network accepts images whose sides are multiples of `multiple` and at least `minimum` pixels, with `is_square` equal
    sides.
    """

    module: torch.nn.Module
    weights: Mapping[str, torch.Tensor]
    scale: int
    multiple: int = 1
    minimum: int = 1
    is_square: bool = False
    architecture: str = ""

    def __call__(self, weights: Mapping[str, jax.Array], pictures: jax.Array) -> jax.Array:
        """Enlarge images [N, 3, H, W] in 0..1 to [N, 3, scale * H, scale * W] in 0..1.

        Images of other sizes are first extended by reflection at their right and lower edges, as in spandrel.
        """
        height, width = pictures.shape[2:]
        wide, high = (math.ceil(max(side, self.minimum) / self.multiple) * self.multiple for side in (width, height))
        if self.is_square:
            wide = high = max(wide, high)
        mirrored = pictures
        if (wide, high) != (width, height):
            mirrored = jnp.pad(pictures, ((0, 0), (0, 0), (0, high - height), (0, wide - width)), mode="reflect")
        larger = call_module(self.module, weights, lambda module, given: module(given), mirrored)
        return jnp.clip(larger[:, :, : height * self.scale, : width * self.scale], 0, 1)

    @functools.cached_property
    def values_per_pixel(self) -> float:
        """The most values that one layer reads and writes, divided by the number of pixels of the input image."""
        largest = 0
        side = math.ceil(max(PROBE, self.minimum) / self.multiple) * self.multiple

        def count(module: torch.nn.Module, given: tuple, result: object) -> None:
            nonlocal largest
            tensors = [one for one in (*given, result) if isinstance(one, torch.Tensor)]
            largest = max(largest, sum(math.prod(one.shape) for one in tensors))

        leaves = [module for module in self.module.modules() if not any(True for _ in module.children())]
        hooks = [module.register_forward_hook(count) for module in leaves]
        try:
            jax.eval_shape(self, self.describe_weights(jnp.float32), jax.ShapeDtypeStruct((1, 3, side, side), jnp.float32))
        finally:
            for hook in hooks:
                hook.remove()
        return largest / (side * side)

    def describe_weights(self, dtype: jnp.dtype) -> dict[str, jax.ShapeDtypeStruct]:
        """Return the shapes of the weights, floating-point numbers in this dtype. Integers, such as positions, become int32."""
        kinds = {name: dtype if value.is_floating_point() else jnp.int32 for name, value in self.weights.items()}
        kinds |= {name: jnp.bool_ for name, value in self.weights.items() if value.dtype == torch.bool}
        return {name: jax.ShapeDtypeStruct(tuple(value.shape), kinds[name]) for name, value in self.weights.items()}


def build_picture_model(name: str, tensors: Mapping[str, torch.Tensor], is_known: bool = False) -> PictureModel:
    """Build the network to which these tensors belong. Errors contain the upscaler's `name`.

    Unless `is_known` is true, JAX and PyTorch both enlarge a small image. Raises: ModelError if the network is unknown, does not
    enlarge colour images, or gives different results in JAX and PyTorch.
    """
    built = _build_network(name, {key: value.float() if value.is_floating_point() else value for key, value in tensors.items()})
    module = built.module.eval()
    side = math.ceil(max(TRIAL, built.minimum) / built.multiple) * built.multiple
    picture = torch.rand(1, 3, side, side, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = None if is_known else module(picture.clone()).clamp(0, 1).numpy()
    for part in module.modules():  # plain attributes become buffers, so that they are arguments of the compiled program
        for attribute, value in list(vars(part).items()):
            if isinstance(value, torch.Tensor):
                delattr(part, attribute)
                part.register_buffer(attribute, value, persistent=False)
    weights = {key: value.detach() for key, value in (*module.named_parameters(), *module.named_buffers())}
    model = dataclasses.replace(built, module=module.to("meta"), weights=weights)
    if expected is None:
        return model
    what = f"the upscaler {name} is of the kind {model.architecture}, which"
    try:
        host = jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # jax may not use the CPU
        host = jax.devices()[0]
    try:
        with jax.default_device(host), jax.default_matmul_precision("highest"):
            described = model.describe_weights(jnp.float32)
            arrays = {key: jnp.asarray(value.numpy(), described[key].dtype) for key, value in weights.items()}
            actual = np.asarray(jax.jit(model)(arrays, picture.numpy()))
    except Exception as error:  # torchax can raise any error for an operation that it lacks
        raise ModelError(what, f"cannot be run here ({type(error).__name__})", "use another file") from None
    if actual.shape != expected.shape or np.abs(actual - expected).max() > TOLERANCE:
        raise ModelError(what, "gives another result here than in PyTorch", "use another file")
    return model


def _build_network(name: str, tensors: Mapping[str, torch.Tensor]) -> PictureModel:
    """Build the network as a PyTorch module that contains its weights. Raises: ModelError if the network is not supported."""
    network = build_real_esrgan(tensors)
    if network is not None:
        return PictureModel(module=network, weights={}, scale=network.scale, architecture=network.name)
    spandrel = _import_spandrel(name)
    try:
        with torch.no_grad():
            found = spandrel.ModelLoader("cpu").load_from_state_dict(dict(tensors))
    except Exception as error:  # an architecture can raise any error for tensors of another network
        raise ModelError(f"the upscaler {name}", f"must be {KINDS} ({type(error).__name__})", "use another file") from None
    is_one = isinstance(found, spandrel.ImageModelDescriptor)
    if not is_one or found.input_channels != 3 or found.output_channels != 3 or found.scale < 1:
        what = f"the upscaler {name} is of the kind {found.architecture.name} and"
        raise ModelError(what, "must enlarge colour images", "use another file")
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


def _import_spandrel(name: str = "") -> ModuleType:
    """Import spandrel. Raises: ModelError if it is not installed. The error names the upscaler `name`."""
    try:
        with _replace_torchvision():
            import spandrel
    except ImportError:
        rule = "is no Real-ESRGAN, and the package spandrel, which reads other networks, is not installed"
        raise ModelError(f"the upscaler {name}", rule, f"run `{INSTALL}`, or use another file") from None
    return spandrel


@contextmanager
def _replace_torchvision() -> Generator[None]:
    """Replace torchvision, within the `with` block, by modules with only the names that spandrel imports, set to None."""
    hidden = {name: sys.modules.pop(name) for name in [*sys.modules] if name.partition(".")[0] == TORCHVISION}
    for module, names in _TORCHVISION_NAMES.items():
        sys.modules[module] = ModuleType(module)
        vars(sys.modules[module]).update(dict.fromkeys(names))
    try:
        yield
    finally:
        for module in _TORCHVISION_NAMES:
            sys.modules.pop(module, None)
        sys.modules.update(hidden)

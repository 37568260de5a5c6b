"""The two networks of Real-ESRGAN: the small network for videos and the dense network for photographs.

The shapes of the weights determine the layers. The parameters have the names in the published files.
Source: github.com/xinntao/Real-ESRGAN (BSD 3-Clause).
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, leaky_relu, pixel_shuffle

_RESIDUAL = 0.2  # published factor of each residual branch, also the slope of leaky ReLUs for negative values


class CompactNetwork(nn.Module):
    """Convolutions at the image's own size, then one step that enlarges the result `scale` times. A copy of the image,
    enlarged by repeating pixels, is added."""

    name = "RealESRGAN Compact"

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        weights = [tensors[f"body.{index}.weight"] for index in range(sum(name.endswith(".weight") for name in tensors))]
        self.body = nn.Sequential(*(_convolution(one) if one.ndim == 4 else nn.PReLU(one.shape[0]) for one in weights))
        self.scale = math.isqrt(weights[-1].shape[0] // weights[0].shape[1])

    def forward(self, pictures: Tensor) -> Tensor:
        return pixel_shuffle(self.body(pictures), self.scale) + interpolate(pictures, scale_factor=self.scale, mode="nearest")


class DenseNetwork(nn.Module):
    """Residual dense blocks (ESRGAN) at the image's own size, then two steps that double the size."""

    name = "ESRGAN"
    scale = 4

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        blocks = {name.split(".")[1] for name in tensors if name.startswith("body.")}
        self.body = nn.Sequential(*(_ResidualBlock(tensors, f"body.{index}") for index in range(len(blocks))))
        for name in ("conv_first", "conv_body", "conv_up1", "conv_up2", "conv_hr", "conv_last"):
            self.add_module(name, _convolution(tensors[f"{name}.weight"]))

    def forward(self, pictures: Tensor) -> Tensor:
        first = self.conv_first(pictures)
        features = first + self.conv_body(self.body(first))
        for enlarge in (self.conv_up1, self.conv_up2):
            features = leaky_relu(enlarge(interpolate(features, scale_factor=2, mode="nearest")), _RESIDUAL)
        return self.conv_last(leaky_relu(self.conv_hr(features), _RESIDUAL))


class _ResidualBlock(nn.Module):
    def __init__(self, tensors: Mapping[str, Tensor], prefix: str) -> None:
        super().__init__()
        self.rdb1, self.rdb2, self.rdb3 = (_DenseBlock(tensors, f"{prefix}.rdb{part}") for part in (1, 2, 3))

    def forward(self, features: Tensor) -> Tensor:
        return features + _RESIDUAL * self.rdb3(self.rdb2(self.rdb1(features)))


class _DenseBlock(nn.Module):
    def __init__(self, tensors: Mapping[str, Tensor], prefix: str) -> None:
        super().__init__()
        for number in range(1, 6):
            self.add_module(f"conv{number}", _convolution(tensors[f"{prefix}.conv{number}.weight"]))

    def forward(self, features: Tensor) -> Tensor:
        seen = features
        for convolution in (self.conv1, self.conv2, self.conv3, self.conv4):
            seen = torch.cat((seen, leaky_relu(convolution(seen), _RESIDUAL)), 1)
        return features + _RESIDUAL * self.conv5(seen)


def _convolution(weight: Tensor) -> nn.Conv2d:
    outputs, inputs, height, width = weight.shape
    return nn.Conv2d(inputs, outputs, (height, width), padding=(height // 2, width // 2))


def build_real_esrgan(tensors: Mapping[str, Tensor]) -> CompactNetwork | DenseNetwork | None:
    """Return the network for colour images that fits these float32 tensors, with its weights; None if no network fits."""
    for kind in (CompactNetwork, DenseNetwork):
        try:
            with torch.device("meta"):
                network = kind(tensors)
                larger = network(torch.empty(1, 3, 8, 8))
            network.load_state_dict(tensors, assign=True)
        except (KeyError, IndexError, RuntimeError, ValueError):
            continue  # the tensors have the names or shapes of another network
        if larger.shape == (1, 3, 8 * network.scale, 8 * network.scale):
            return network
    return None

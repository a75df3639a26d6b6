"""LeNet-5 as federated learning's papers use it."""

from collections import OrderedDict

import numpy as np
import torch
from torch import nn
from typing_extensions import override

from securevfl.errors import ConfigError

KERNEL, MAPS, HIDDEN = 5, (6, 16), (120, 84)
LEAST_SIDE = 16


def lenet5(channels: int, side: int, classes: int, generator: np.random.Generator) -> nn.Module:
    """LeNet-5: two convolutions of 5 × 5 with pooling, three dense layers.

    6 and 16 feature maps, no padding, 2 × 2 pooling by the maximum, 120 and 84 units, ReLU: 62,006
    weights for 3 × 32 × 32 and ten classes, of which the first dense layer (`fc1`) has 78 %, the
    second 16 % and the last (`fc3`) 1.4 %; 44,426 for 1 × 28 × 28. LeCun's own has averages with a
    weight each, sigmoids, and convolutions of some of the maps. The generator draws the start,
    which is torch's own; no secret.

    Raises:
        ConfigError: images that do not fit.
    """
    inner = (side - KERNEL + 1) // 2 - KERNEL + 1
    if side < LEAST_SIDE or side % 2 or inner % 2:
        raise ConfigError(f"LeNet-5 halves 28 x 28 or 32 x 32 twice, not {side} x {side}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(generator.integers(1 << 32)))
        layers = {
            "layout": ChannelsLast(),
            "conv1": nn.Conv2d(channels, MAPS[0], KERNEL),
            "pool1": nn.MaxPool2d(2),
            # The maximum commutes with ReLU, which is then of a quarter of the values.
            "active1": nn.ReLU(),
            "conv2": nn.Conv2d(*MAPS, KERNEL),
            "pool2": nn.MaxPool2d(2),
            "active2": nn.ReLU(),
            "flat": nn.Flatten(),
            "fc1": nn.Linear(MAPS[1] * (inner // 2) ** 2, HIDDEN[0]),
            "active3": nn.ReLU(),
            "fc2": nn.Linear(*HIDDEN),
            "active4": nn.ReLU(),
            "fc3": nn.Linear(HIDDEN[1], classes),
        }
    return nn.Sequential(OrderedDict(layers))


class ChannelsLast(nn.Module):
    """What follows keeps an image's channels side by side: a CPU pools few maps faster so."""

    @override
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """The same images (S, channels, height, width), laid out anew."""
        return images.contiguous(memory_format=torch.channels_last)

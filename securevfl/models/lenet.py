"""LeNet-5 as federated learning's papers use it."""

from collections import OrderedDict
from typing import Any

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
    weight each, sigmoids, and convolutions of some of the maps.

    Args:
        channels: of an image.
        side: its height and width.
        classes: C.
        generator: draws the start, which is torch's own; no secret.

    Raises:
        ConfigError: images that do not fit.
    """
    inner = (side - KERNEL + 1) // 2 - KERNEL + 1
    if side < LEAST_SIDE or side % 2 or inner % 2:
        raise ConfigError(f"LeNet-5 halves 28 x 28 or 32 x 32 twice, not {side} x {side}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(generator.integers(1 << 32)))
        layers = {
            "conv1": nn.Conv2d(channels, MAPS[0], KERNEL),
            "pool1": MaxPool(),
            # The maximum commutes with ReLU, which is then of a quarter of the values.
            "active1": nn.ReLU(),
            "conv2": nn.Conv2d(*MAPS, KERNEL),
            "pool2": MaxPool(),
            "active2": nn.ReLU(),
            "flat": nn.Flatten(),
            "fc1": nn.Linear(MAPS[1] * (inner // 2) ** 2, HIDDEN[0]),
            "active3": nn.ReLU(),
            "fc2": nn.Linear(*HIDDEN),
            "active4": nn.ReLU(),
            "fc3": nn.Linear(HIDDEN[1], classes),
        }
    return nn.Sequential(OrderedDict(layers))


class MaxPool(nn.Module):
    """2 × 2 pooling by the maximum: what `nn.MaxPool2d` gives, in a third of its time on a CPU."""

    @override
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Pool (S, maps, height, width) to half of height and width, which must be even."""
        pooled: torch.Tensor = _Largest.apply(values)  # type: ignore[no-untyped-call]
        return pooled


class _Largest(torch.autograd.Function):
    # Strided maxima use vector instructions, which torch's own pooling over few maps does not.
    @staticmethod
    @override
    def forward(context: Any, values: torch.Tensor) -> torch.Tensor:
        upper, lower = values[..., 0::2, :], values[..., 1::2, :]
        rows = torch.maximum(upper, lower)
        left, right = rows[..., 0::2], rows[..., 1::2]
        pooled = torch.maximum(left, right)
        if context.needs_input_grad[0]:
            masks = (
                torch.ge(upper, lower, out=torch.empty_like(rows)),
                torch.ge(left, right, out=torch.empty_like(pooled)),
            )
            context.save_for_backward(*masks)
        return pooled

    @staticmethod
    @override
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        is_upper, is_left = context.saved_tensors
        of_rows = torch.empty_like(is_upper)
        torch.mul(gradient, is_left, out=of_rows[..., 0::2])
        torch.sub(gradient, of_rows[..., 0::2], out=of_rows[..., 1::2])
        *outer, height, width = is_upper.shape
        of_values: torch.Tensor = is_upper.new_empty((*outer, 2 * height, width))
        torch.mul(of_rows, is_upper, out=of_values[..., 0::2, :])
        torch.sub(of_rows, of_values[..., 0::2, :], out=of_values[..., 1::2, :])
        return of_values

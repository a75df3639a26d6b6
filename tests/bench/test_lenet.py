import numpy as np
import pytest
import torch

from bench.horizontal.lenet import lenet5
from securevfl.errors import ConfigError


def sizes(channels: int, side: int) -> dict[str, int]:
    network = lenet5(channels, side, 10, np.random.default_rng(0))
    assert network(torch.zeros(2, channels, side, side)).shape == (2, 10)
    found: dict[str, int] = {}
    for name, each in network.named_parameters():
        layer = name.split(".", maxsplit=1)[0]
        found[layer] = found.get(layer, 0) + each.numel()
    return found


def test_lenet_has_the_weights_that_papers_count() -> None:
    cifar, mnist = sizes(3, 32), sizes(1, 28)
    assert sum(cifar.values()) == 62006
    assert sum(mnist.values()) == 44426
    assert cifar == {"conv1": 456, "conv2": 2416, "fc1": 48120, "fc2": 10164, "fc3": 850}


def test_a_start_is_its_generators_and_leaves_torchs_own_alone() -> None:
    before = torch.get_rng_state()
    one, again, other = (
        torch.cat([each.reshape(-1) for each in network.parameters()])
        for network in (lenet5(1, 28, 10, np.random.default_rng(seed)) for seed in (0, 0, 1))
    )
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert torch.equal(before, torch.get_rng_state())


def test_images_that_cannot_be_halved_twice_are_refused() -> None:
    for side in (8, 27, 30):
        with pytest.raises(ConfigError, match=f"not {side} x {side}"):
            lenet5(1, side, 10, np.random.default_rng(0))

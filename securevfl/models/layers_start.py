"""The numbers that an mlp starts with, whatever computes it: torch, or products of stored cells."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from securevfl.models.local_model import StateDict


def layers_start(
    columns: int, hidden: Sequence[int], outputs: int, generator: np.random.Generator
) -> StateDict:
    """Random weights and biases of all layers, with the names and shapes that torch gives them.

    They are uniform within ±1/√(a layer's inputs), as torch's linear layers begin.

    Args:
        columns: inputs of the first layer.
        hidden: units of each hidden layer.
        outputs: C.
        generator: of a party's own draws.

    Returns:
        By name the weights, shape (outputs, inputs) of a layer, and the biases, shape (outputs,).
    """
    state = {}
    for place, (before, after) in enumerate(pairwise((columns, *hidden, outputs))):
        bound = 1 / np.sqrt(before)
        numbers = generator.uniform(-bound, bound, (before + 1, after))
        state[f"{2 * place}.weight"] = numbers[:-1].T
        state[f"{2 * place}.bias"] = numbers[-1]
    return state

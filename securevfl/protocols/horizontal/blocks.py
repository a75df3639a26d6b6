"""Which parameters a client uploads: blocks of θ, and a shared block that everyone uploads.

Source: FedBCGD (ACM MM 2024), section 3: N blocks, here b, and the shared block x_s of last layers.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np

from securevfl.arrays import IntArray
from securevfl.errors import ConfigError
from securevfl.protocols.horizontal.settings import whole


@dataclass(frozen=True, eq=False)
class Blocks:
    """A partition of the p entries of θ.

    Attributes:
        own: of each block, its entries in ascending order; none is empty.
        shared: the entries of the shared block in ascending order; may be empty.

    Raises:
        ConfigError: an entry in two blocks or in none, or a block without entries.
    """

    own: tuple[IntArray, ...]
    shared: IntArray

    def __post_init__(self) -> None:
        every = np.concatenate([*self.own, self.shared])
        if not np.array_equal(np.sort(every), np.arange(len(every))):
            raise ConfigError("blocks: expected every parameter in one block")
        if not all(len(block) for block in self.own):
            raise ConfigError("blocks: one holds no parameters")

    def __len__(self) -> int:
        return len(self.own)

    @property
    def parameters(self) -> int:
        """Their number in θ, p."""
        return sum(map(len, self.own)) + len(self.shared)

    def uploaded(self, block: int) -> IntArray:
        """The entries that a client of a block's group uploads: the block's, then the shared."""
        return np.concatenate([self.own[block], self.shared])

    @classmethod
    def whole(cls, parameters: int) -> Self:
        """One block of everything, as methods without blocks upload it."""
        return cls((np.arange(parameters),), np.arange(0))

    @classmethod
    def equal(cls, sizes: Mapping[str, int], blocks: int, shared: Collection[str] = ()) -> Self:
        """Blocks of as many parameters each, wherever that cuts a tensor.

        Args:
            sizes: numbers in each tensor of the model, by its name, in the order of θ.
            blocks: b.
            shared: names of the shared tensors, or of layers that hold them ("fc2").

        Raises:
            ConfigError: a shared name that is no tensor's, or fewer parameters than blocks.
        """
        entries, common = _entries(sizes, shared)
        own = np.concatenate([*entries.values(), np.arange(0)])
        _require_enough(len(own), blocks, "parameters")
        return cls(tuple(np.array_split(own, blocks)), common)

    @classmethod
    def by_layers(cls, sizes: Mapping[str, int], blocks: int, shared: Collection[str] = ()) -> Self:
        """Blocks of whole tensors: the largest first, each to the block that holds least.

        Args:
            sizes: as in `equal`.
            blocks: b.
            shared: as in `equal`.

        Raises:
            ConfigError: a shared name that is no tensor's, or fewer tensors than blocks.
        """
        entries, common = _entries(sizes, shared)
        _require_enough(len(entries), blocks, "tensors")
        groups: list[list[IntArray]] = [[] for _ in range(blocks)]
        for tensor in sorted(entries.values(), key=len, reverse=True):
            min(groups, key=lambda group: sum(map(len, group))).append(tensor)
        return cls(tuple(np.sort(np.concatenate(group)) for group in groups), common)


def _require_enough(available: int, blocks: int, what: str) -> None:
    if not 1 <= whole("blocks", blocks) <= available:
        raise ConfigError(f"blocks = {blocks}: expected 1 to {available}, the unshared {what}")


def _entries(
    sizes: Mapping[str, int], shared: Collection[str]
) -> tuple[dict[str, IntArray], IntArray]:
    """The entries of each tensor that is not shared, and those of all that are."""
    if not isinstance(sizes, Mapping):
        raise ConfigError(f"sizes: expected numbers by name, not a {type(sizes).__name__}")
    shared = [shared] if isinstance(shared, str) else shared
    for name in shared:
        if not any(_is_in(tensor, name) for tensor in sizes):
            raise ConfigError(f"shared = {name!r}: the model's tensors are {', '.join(sizes)}")
    ends = np.cumsum(list(sizes.values()))
    entries = {
        tensor: np.arange(end - size, end)
        for (tensor, size), end in zip(sizes.items(), ends, strict=True)
    }
    common = [tensor for tensor in sizes if any(_is_in(tensor, name) for name in shared)]
    return (
        {tensor: each for tensor, each in entries.items() if tensor not in common},
        np.concatenate([np.arange(0), *(entries[tensor] for tensor in common)]),
    )


def _is_in(tensor: str, name: str) -> bool:
    return tensor == name or tensor.startswith(f"{name}.")

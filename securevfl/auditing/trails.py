"""The weights that a party of transfer learning had on the way: its own, and no secret from it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from typing_extensions import override

from securevfl.arrays import FloatArray
from securevfl.models.layers import DenseLayer
from securevfl.models.local_model import LocalModel


@dataclass
class _Trail(DenseLayer):
    """A layer that keeps every W it had, the first and each local step's."""

    past: list[FloatArray] = field(default_factory=list)

    @override
    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name == "past" or (name == "weights" and "past" in vars(self)):
            self.past.append(self.weights)


class Trails:
    """Every W of the layers that a run trains, by party."""

    def __init__(self) -> None:
        self._layers: dict[str, _Trail] = {}

    def follow(self, party: str, model: LocalModel) -> LocalModel:
        """What is trained in place of a layer of units; other models stay what they are."""
        if not isinstance(model, DenseLayer):
            return model
        self._layers[party] = _Trail(**vars(model))
        return self._layers[party]

    @property
    def past(self) -> Mapping[str, list[FloatArray]]:
        """By party, shapes (P, w), the first and one a local step."""
        return {party: layer.past for party, layer in self._layers.items()}

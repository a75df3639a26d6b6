"""One party's trained model in a file: safetensors, with a JSON header that says what it is.

A party's file holds its own weights, columns and scaling and nothing of the others. A network's
file holds its state dict, and its architecture in the header; of a custom module only that it is
one, so that its maker is needed to read it back. No code is ever read from a file.
"""

import json
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, TypeAdapter
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from securevfl.errors import DataError
from securevfl.files import replace_file
from securevfl.models.dense import DenseLayer
from securevfl.models.local_model import LocalModel, MakeModule, Network, StateDict

FORMAT = 1
_HEADER = "securevfl"
_STATE = "network."


@dataclass(frozen=True)
class ModelHeader:
    """What a model file says of itself.

    Attributes:
        party: whose part of the model this is.
        columns: its feature columns, in the order of the weights' rows.
        intercept: whether one more row of weights belongs to a constant column of ones.
        classes: number of classes.
        loss: the loss it was trained with.
        job_hash: SHA-256 of the job, in hex.
        rounds: rounds trained.
        format: version of this header.
        network: what was trained in place of a linear model; the header of one leaves it out.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    party: str
    columns: tuple[str, ...]
    intercept: bool
    classes: int
    loss: str
    job_hash: str
    rounds: int
    format: int = FORMAT
    network: Network | None = None

    @property
    def is_dense(self) -> bool:
        """Whether it is one dense layer, whose weights are saved like those of a linear model."""
        return self.network is not None and self.network.kind == "dense"

    @property
    def outputs(self) -> int:
        """C, or the units of one dense layer."""
        if self.is_dense and self.network is not None:
            return self.network.hidden[-1]
        return 1 if self.classes == 2 else self.classes  # noqa: PLR2004


_MODEL_HEADER = TypeAdapter(ModelHeader)


@dataclass(frozen=True)
class SavedModel:
    """A party's model with the scaling of its features.

    Attributes:
        header: what it is.
        weights: θ_k, shape (P, C), the intercept's row last; of a network all numbers of its
            state dict, one after another, shape (n, 1).
        mean: subtracted from each feature column.
        scale: divides each feature column after that.
        state: a network's state dict.
        make_module: makes a custom network.
        phi: at the label party of transfer learning, what its peer's units are multiplied by,
            shape (d,): Φ·u_B scores a row that the peer holds alone.
    """

    header: ModelHeader
    weights: NDArray[np.float64]
    mean: NDArray[np.float64]
    scale: NDArray[np.float64]
    state: StateDict | None = None
    make_module: MakeModule | None = field(default=None, repr=False)
    phi: NDArray[np.float64] | None = None

    def predict(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Local predictions H_k of raw features, shape (S, len(columns)).

        Raises:
            DataError: another number of columns, or a state dict of another module.
        """
        if features.ndim != 2 or features.shape[1] != len(self.header.columns):  # noqa: PLR2004
            raise DataError(
                f"{self.header.party}: features of shape {features.shape}, expected "
                f"{len(self.header.columns)} columns"
            )
        inputs = (features - self.mean) / self.scale
        if self.header.is_dense and self.header.network is not None:
            layer = DenseLayer(self.weights, activation=self.header.network.activation)
            return layer.predict(layer.inputs(inputs))
        if self.header.network is not None and self.state is not None:
            from securevfl.models.neural import loaded_network, maker_of  # noqa: PLC0415

            make = maker_of(self.header.network, self.make_module)
            return loaded_network(make, inputs.shape[1], self.header.outputs, self.state).predict(
                inputs
            )
        weights = self.weights
        predictions: NDArray[np.float64] = inputs @ weights[: len(self.header.columns)]
        return predictions + weights[-1] if self.header.intercept else predictions


def saved_model(
    header: ModelHeader,
    model: LocalModel,
    *,
    mean: NDArray[np.float64],
    scale: NDArray[np.float64],
    make_module: MakeModule | None = None,
    phi: NDArray[np.float64] | None = None,
) -> SavedModel:
    """A local model as it stands, linear or a network."""
    state = model.state()
    weights = model.weights if state is None else _numbers(state)
    return SavedModel(header, weights, mean, scale, state, make_module, phi)


def save_model(path: Path, model: SavedModel) -> None:
    """Write a model in one step: a reader sees the old file or the new one, never half of it.

    Raises:
        DataError: the file cannot be written (no room, no permission).
    """
    tensors = {"mean": model.mean, "scale": model.scale}
    if model.state is None:
        tensors["weights"] = model.weights
    else:
        tensors |= {_STATE + name: values for name, values in model.state.items()}
    if model.phi is not None:
        tensors["phi"] = model.phi
    contiguous = {name: np.asarray(values, order="C") for name, values in tensors.items()}
    header = {key: value for key, value in asdict(model.header).items() if value is not None}
    data = save(contiguous, metadata={_HEADER: json.dumps(header)})
    replace_file(path, data, "model file")


def load_model(path: Path, make_module: MakeModule | None = None) -> SavedModel:
    """Read a model back.

    Args:
        path: where it is.
        make_module: makes the module of a custom network.

    Raises:
        DataError: no such file, not one of ours, shapes that do not fit the header, or a custom
            network without its maker.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        header = _MODEL_HEADER.validate_json(metadata[_HEADER], strict=True)
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise DataError(f"model file {path}: not a securevfl model ({error})") from error
    if header.format != FORMAT:
        raise DataError(f"model file {path}: format {header.format}, this reads {FORMAT}")
    shapes = _shapes(header)
    if header.is_dense and "phi" in tensors:
        shapes["phi"] = (header.outputs,)
    custom = header.network is not None and header.network.kind == "custom"
    if custom:
        if make_module is None:
            raise DataError(f"model file {path}: a custom network, whose module must be given")
        theirs = {name: values for name, values in tensors.items() if name.startswith(_STATE)}
        shapes |= {name: values.shape for name, values in theirs.items()}
    _require_numbers(path, tensors, shapes, custom=custom)
    if header.network is None or header.is_dense:
        weights, phi = tensors["weights"], tensors.get("phi")
        return SavedModel(header, weights, tensors["mean"], tensors["scale"], phi=phi)
    state = {
        name.removeprefix(_STATE): values
        for name, values in tensors.items()
        if name.startswith(_STATE)
    }
    return SavedModel(
        header, _numbers(state), tensors["mean"], tensors["scale"], state, make_module
    )


def _require_numbers(
    path: Path, tensors: StateDict, shapes: dict[str, tuple[int, ...]], *, custom: bool
) -> None:
    """Check names, shapes and values.

    Raises:
        DataError: they are not what a model of ours has.
    """
    odd = sorted(tensors.keys() ^ shapes.keys())
    if odd:
        raise DataError(f"model file {path}: not a securevfl model (tensor {odd[0]!r})")
    for name, shape in shapes.items():
        values = tensors[name]
        if values.shape != shape:
            raise DataError(
                f"model file {path}: {name} of {values.shape} do not fit the header's {shape}"
            )
        # Custom modules may hold integers beside their parameters; mlps have none.
        is_number = values.dtype == np.float64 or (custom and values.dtype.kind in "biu")
        if not is_number or not np.isfinite(values).all():
            raise DataError(f"model file {path}: {name} are not finite float64 numbers")
    if not (tensors["scale"] > 0).all():
        raise DataError(f"model file {path}: a scale is not positive")


def _shapes(header: ModelHeader) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a file's tensors, but for those of a custom network."""
    columns = len(header.columns)
    shapes: dict[str, tuple[int, ...]] = {"mean": (columns,), "scale": (columns,)}
    if header.network is None or header.is_dense:
        shapes["weights"] = (columns + header.intercept, header.outputs)
    elif header.network.kind == "mlp":
        # Dense layers with activations between them.
        sizes = (columns, *header.network.hidden, header.outputs)
        for layer, (before, after) in enumerate(pairwise(sizes)):
            shapes[f"{_STATE}{2 * layer}.weight"] = (after, before)
            shapes[f"{_STATE}{2 * layer}.bias"] = (after,)
    return shapes


def _numbers(state: StateDict) -> NDArray[np.float64]:
    return np.concatenate([state[name].ravel() for name in sorted(state)])[:, None]

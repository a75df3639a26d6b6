"""One party's trained model in a file: safetensors with a JSON header.

A party's file holds its own weights, columns and scaling and nothing of the other parties. A
network's file holds its state dict, and the architecture in its header; a custom module is only
named as such, so that its maker is needed to load it. The label party's file holds its head, if it
has one. No code is ever read from a file.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import pairwise
from math import inf, isfinite
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, TypeAdapter
from safetensors import SafetensorError
from safetensors.numpy import save
from typing_extensions import override

from securevfl.arrays import FloatArray
from securevfl.errors import ConfigError, DataError
from securevfl.files import read_arrays, replace_file
from securevfl.models.head import Head, HeadedModel
from securevfl.models.layers import DenseLayer, Multilayer
from securevfl.models.local_model import (
    KERNEL,
    LocalModel,
    MakeModule,
    Network,
    StateDict,
    pixels_left,
    require_torch,
)
from securevfl.models.losses import loss_for
from securevfl.recipe import Recipe
from securevfl.shown import Shown, controls
from securevfl.sparse import Matrix, SparseRows, scaled_for, standardized

FORMAT = 1
MOST = 1 << 63
"""Rounds and rows are sent as 64-bit integers."""
_HEADER = "securevfl"
_STATE, _HEAD, _BOUNDS = "network.", "head", "bounds"


@dataclass(frozen=True)
class ModelHeader:
    """The header of a model file.

    Attributes:
        party: the party that holds this part of the model.
        columns: its feature columns, in the order of the weights' rows.
        intercept: whether the last row of weights belongs to a constant column of ones.
        classes: number of classes; 0 for real targets.
        job_hash: SHA-256 of the job, in hex.
        format: version of this header.
        network: the network that was trained; None for a linear model.
        representation: w, if local models produce representations for a head.
        head: the parties in the head's order, if this party, the first of them, holds it.
        target_mean: at the label party of real targets, which are target_mean + target_scale·H.
        class_names: name of each class, at the label party only.
        rows: number of training rows N.
        recipe: how the columns are derived from raw columns, if they are not plain numbers.
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
    representation: int | None = None
    head: tuple[str, ...] | None = None
    target_mean: float | None = None
    target_scale: float | None = None
    class_names: tuple[str, ...] | None = None
    rows: int | None = None
    recipe: Recipe | None = None

    @property
    def is_dense(self) -> bool:
        """Whether it is a single dense layer, whose weights are saved like a linear model's."""
        return self.network is not None and self.network.kind == "dense"

    @property
    def holds_labels(self) -> bool:
        """Whether this is the label party's part."""
        return self.class_names is not None or self.target_mean is not None

    @property
    def outputs(self) -> int:
        """C, or the units of a single dense layer."""
        if self.is_dense and self.network is not None:
            return self.network.hidden[-1]
        return self.classes if self.classes > 2 else 1  # noqa: PLR2004

    @property
    def given(self) -> int:
        """Number of outputs of the local model per row: w or C."""
        return self.representation or self.outputs


_MODEL_HEADER = TypeAdapter(ModelHeader)


@dataclass(frozen=True, repr=False)
class SavedModel(Shown):
    """A party's model; its features are standardized by subtracting `mean` and dividing by `scale`.

    Attributes:
        bounds: shape (2, P): before that, features are clipped to these lowest and highest values.
        weights: θ_k, shape (P, C), with the intercept's row last; for a network all numbers of its
            state dict, concatenated, shape (n, 1).
        state: a network's state dict.
        make_module: makes a custom network.
        head: θ and b of the head that this party holds, shape (K·w + 1, C).
        phi: at the label party of transfer learning, shape (d,): Φ·u_B scores a row that only the
            other party holds.
    """

    header: ModelHeader
    weights: FloatArray
    mean: FloatArray
    scale: FloatArray
    state: StateDict | None = None
    make_module: MakeModule | None = field(default=None, repr=False)
    head: FloatArray | None = None
    phi: FloatArray | None = None
    bounds: FloatArray | None = None

    @override
    def shown(self) -> dict[str, object]:
        """The party, and the model's size."""
        header = self.header
        return {
            "party": header.party,
            "model": "linear" if header.network is None else header.network.kind,
            "columns": len(header.columns),
            "outputs": header.outputs,
            "rounds": header.rounds,
        }

    @property
    def digest(self) -> str:
        """SHA-256 (hex) over all numbers that determine predictions."""
        tensors = _tensors(self)
        digest = hashlib.sha256()
        for name in sorted(tensors):
            values = np.ascontiguousarray(tensors[name])
            digest.update(f"{name} {values.dtype.str} {values.shape}|".encode() + values.tobytes())
        return digest.hexdigest()

    @property
    def top(self) -> Head | None:
        """The head that this party holds, if any."""
        names = self.header.head
        return None if names is None or self.head is None else Head(names, self.head)

    def predict(self, features: Matrix) -> FloatArray:
        """Local predictions H_k from raw features, shape (S, len(columns)).

        With a head, representations u_k, shape (S, w), and at the head's holder its own part of H.
        A DataError for another number of columns, or a state dict of another module.
        """
        given, top = self._give(features), self.top
        if top is None:
            return given
        own: FloatArray = given @ top.part(self.header.party) + top.values[-1]
        return own

    def together(self, parts: Mapping[str, FloatArray]) -> FloatArray:
        """At the label party: H, shape (S, C), from all parties' local predictions.

        Real targets are in their own units; transfer learning yields φ = Φ·u_B. A DataError for
        parts of other parties or shapes, and at other parties.
        """
        if self.header.representation is not None and self.head is None:
            raise DataError(f"{self.header.party!r} holds no head: use the label party's model")
        if self.phi is not None:
            (units,) = (part for name, part in parts.items() if name != self.header.party)
            return units @ self.phi[:, None]
        if self.header.head is not None:
            _require_parts(self.header, parts)
        if self.top is not None:
            return self.top.together(parts)
        total: FloatArray = np.sum(list(parts.values()), axis=0)
        return self.in_target_units(total)

    def in_target_units(self, predictions: FloatArray) -> FloatArray:
        """At the label party: H for classes, and predictions of real targets in their own units.

        A DataError at another party, which does not know them.
        """
        if self.header.classes:
            return predictions
        mean, scale = self.header.target_mean, self.header.target_scale
        if mean is None or scale is None:
            raise DataError(
                f"{self.header.party!r} does not know the targets' scale: use the label party's "
                "model"
            )
        return mean + scale * predictions

    def _give(self, features: Matrix) -> FloatArray:
        if features.ndim != 2 or features.shape[1] != len(self.header.columns):  # noqa: PLR2004
            raise DataError(
                f"{self.header.party}: features of shape {features.shape}, expected "
                f"{len(self.header.columns)} columns"
            )
        scale = partial(standardized, shift=self.mean, scale=self.scale, bounds=self.bounds)
        inputs = scaled_for(self.header.party, self.header.columns, features, scale)
        if self.header.is_dense and self.header.network is not None:
            layer = DenseLayer(self.weights, activation=self.header.network.activation)
            return layer.predict(layer.inputs(inputs))
        network = self.header.network
        if isinstance(inputs, SparseRows) and network is not None and network.kind == "mlp":
            return Multilayer(network, self.state or {}).predict(inputs)
        if network is not None and self.state is not None:
            require_torch()
            from securevfl.models.neural import loaded_network, maker_of  # noqa: PLC0415

            make, sizes = maker_of(network, self.make_module), (inputs.shape[1], self.header.given)
            return loaded_network(make, *sizes, self.state, network.precision).predict(inputs)
        weights = self.weights
        predictions: FloatArray = inputs @ weights[: len(self.header.columns)]
        return predictions + weights[-1] if self.header.intercept else predictions


def saved_model(
    header: ModelHeader,
    model: LocalModel,
    *,
    mean: FloatArray,
    scale: FloatArray,
    make_module: MakeModule | None = None,
    phi: FloatArray | None = None,
    bounds: FloatArray | None = None,
) -> SavedModel:
    """The current state of a local model, linear or a network, with the head on top of it."""
    head = None
    if isinstance(model, HeadedModel):
        header, head = replace(header, head=model.names), model.head
        model = model.model
    state = model.state()
    weights = model.weights if state is None else _numbers(state)
    return SavedModel(header, weights, mean, scale, state, make_module, head, phi, bounds)


def save_model(path: Path, model: SavedModel) -> None:
    """Write a model atomically: readers see the old file or the new one."""
    contiguous = {name: np.asarray(values, order="C") for name, values in _tensors(model).items()}
    header = {key: value for key, value in asdict(model.header).items() if value is not None}
    data = save(contiguous, metadata={_HEADER: json.dumps(header)})
    replace_file(path, data, "model file")


def _tensors(model: SavedModel) -> dict[str, NDArray[Any]]:
    tensors = {"mean": model.mean, "scale": model.scale}
    if model.state is None:
        tensors["weights"] = model.weights
    else:
        tensors |= {_STATE + name: values for name, values in model.state.items()}
    if model.head is not None:
        tensors[_HEAD] = model.head
    if model.phi is not None:
        tensors["phi"] = model.phi
    if model.bounds is not None:
        tensors[_BOUNDS] = model.bounds
    return tensors


def load_model(
    path: Path, make_module: MakeModule | None = None, *, describe_only: bool = False
) -> SavedModel:
    """Read a model file.

    A custom network needs the function that makes its module, unless `describe_only`; it then
    cannot predict. A DataError if the file is not a valid model.
    """
    if not path.is_file():
        raise DataError(f"no model file {path}: name .safetensors files")
    try:
        metadata, tensors = read_arrays(path)
        header = _MODEL_HEADER.validate_json(metadata[_HEADER], strict=True)
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise DataError(f"model file {path}: not a securevfl model ({error})") from error
    _check_header(path, header)
    shapes = tensor_shapes(header)
    if header.is_dense and "phi" in tensors:
        shapes["phi"] = (header.outputs,)
    if _BOUNDS in tensors:
        shapes[_BOUNDS] = (2, len(header.columns))
    theirs = {name: values for name, values in tensors.items() if name.startswith(_STATE)}
    custom = header.network is not None and header.network.kind == "custom"
    if custom:
        if make_module is None and not describe_only:
            raise DataError(f"model file {path}: a custom network, whose module must be given")
        shapes |= {name: values.shape for name, values in theirs.items()}
    _require_numbers(path, tensors, shapes, custom=custom)
    scaling = tensors["mean"], tensors["scale"]
    head, phi, bounds = (tensors.get(name) for name in (_HEAD, "phi", _BOUNDS))
    if header.network is None or header.is_dense:
        weights = tensors["weights"]
        return SavedModel(header, weights, *scaling, head=head, phi=phi, bounds=bounds)
    state = {name.removeprefix(_STATE): values for name, values in theirs.items()}
    return SavedModel(header, _numbers(state), *scaling, state, make_module, head, bounds=bounds)


def _require_numbers(
    path: Path, tensors: StateDict, shapes: dict[str, tuple[int, ...]], *, custom: bool
) -> None:
    """Refuse tensors whose names, shapes or values do not match the header."""
    odd = sorted(tensors.keys() ^ shapes.keys())
    if odd:
        raise DataError(f"model file {path}: not a securevfl model (tensor {odd[0]!r})")
    for name, shape in shapes.items():
        values = tensors[name]
        if values.shape != shape:
            raise DataError(
                f"model file {path}: {name} of {values.shape} do not fit the header's {shape}"
            )
        # Custom modules may hold integers beside their parameters; others have none.
        is_number = values.dtype == np.float64 or (custom and values.dtype.kind in "biu")
        if not is_number or not np.isfinite(values).all():
            raise DataError(f"model file {path}: {name} are not finite float64 numbers")
    if not (tensors["scale"] > 0).all():
        raise DataError(f"model file {path}: a scale is not positive")
    if _BOUNDS in tensors and not (tensors[_BOUNDS][0] < tensors[_BOUNDS][1]).all():
        raise DataError(f"model file {path}: a lower bound is not below the upper one")


def _check_header(path: Path, header: ModelHeader) -> None:
    """Refuse another version, or an invalid header."""
    if controls((header.party, *header.columns, *(header.class_names or ()))) is not None:
        raise DataError(f"model file {path}: a name has control characters")
    if header.format != FORMAT:
        raise DataError(f"model file {path}: format {header.format}, this version reads {FORMAT}")
    _check_job(path, header)
    if header.head is not None and header.head[:1] != (header.party,):
        raise DataError(f"model file {path}: the head of {header.head[:1]} at {header.party!r}")
    if header.recipe is not None and header.recipe.columns != header.columns:
        raise DataError(f"model file {path}: its recipe does not make its columns")
    width, network = header.representation, header.network
    if (width is not None and width < 1) or (network and header.is_dense and not network.hidden):
        raise DataError(f"model file {path}: a layer without units, or representations of {width}")
    mean, scale = header.target_mean, header.target_scale
    if (mean is None) != (scale is None):
        raise DataError(f"model file {path}: target_mean {mean} with target_scale {scale}")
    if mean is not None and scale is not None and not (isfinite(mean) and 0 < scale < inf):
        raise DataError(f"model file {path}: targets are {mean} + {scale}·H")


def _check_job(path: Path, header: ModelHeader) -> None:
    if re.fullmatch("[0-9a-f]{64}", header.job_hash) is None:
        raise DataError(f"model file {path}: job_hash {header.job_hash!r}, expected SHA-256 in hex")
    counts = (header.rounds, 1 if header.rows is None else header.rows - 1)
    if not all(0 <= each < MOST for each in counts):
        raise DataError(f"model file {path}: {header.rounds} rounds of {header.rows} rows")
    classes, names = header.classes, header.class_names
    if classes < 0 or classes == 1:
        raise DataError(f"model file {path}: {classes} classes")
    try:
        fits = loss_for(header.loss, classes).name == header.loss
    except ConfigError:
        fits = False
    if not fits:
        raise DataError(f"model file {path}: loss {header.loss!r} of {classes} classes")
    if names is not None and (not names or len(set(names)) != len(names) or len(names) != classes):
        raise DataError(f"model file {path}: classes {', '.join(names)}, expected {classes}")
    if header.target_mean is not None and classes:
        raise DataError(f"model file {path}: target_mean of {classes} classes")


def tensor_shapes(header: ModelHeader) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a file's tensors, except those of a custom network."""
    columns = len(header.columns)
    shapes: dict[str, tuple[int, ...]] = {"mean": (columns,), "scale": (columns,)}
    if header.head is not None:
        shapes[_HEAD] = (len(header.head) * header.given + 1, header.outputs)
    if header.network is None or header.is_dense:
        shapes["weights"] = (columns + header.intercept, header.given)
    elif header.network.kind != "custom":
        shapes |= _layer_shapes(header.network, columns, header.given)
    return shapes


def _layer_shapes(network: Network, columns: int, outputs: int) -> dict[str, tuple[int, ...]]:
    """Shapes of the parameters of an mlp or a cnn, as `models.neural` stacks its layers."""
    layers: list[tuple[int, ...]] = []
    first, flat = 0, columns
    if network.kind == "cnn":
        # Layer 0 reshapes a row to an image.
        layers, first = [(b, a, KERNEL, KERNEL) for a, b in pairwise((1, *network.channels))], 1
        flat = (1, *network.channels)[-1] * pixels_left(columns, network.image_width, len(layers))
    places = [first + 2 * index for index in range(len(layers))]
    dense = [(b, a) for a, b in pairwise((flat, *network.hidden, outputs))]
    # A layer that flattens feature maps comes between.
    begin = first + 2 * len(layers) + (1 if network.kind == "cnn" else 0)
    places += [begin + 2 * index for index in range(len(dense))]
    shapes: dict[str, tuple[int, ...]] = {}
    for place, shape in zip(places, [*layers, *dense], strict=True):
        shapes |= {f"{_STATE}{place}.weight": shape, f"{_STATE}{place}.bias": shape[:1]}
    return shapes


def _numbers(state: StateDict) -> FloatArray:
    return np.concatenate([state[name].ravel() for name in sorted(state)])[:, None]


def _require_parts(header: ModelHeader, parts: Mapping[str, FloatArray]) -> None:
    names = header.head or ()
    if set(parts) != set(names):
        raise DataError(f"parts of {', '.join(parts)}: the head is over {', '.join(names)}")
    rows = len(parts[header.party])
    for name, part in parts.items():
        expected = rows, header.outputs if name == header.party else header.given
        if part.shape != expected:
            raise DataError(f"part of {name!r}: shape {part.shape}, expected {expected}")

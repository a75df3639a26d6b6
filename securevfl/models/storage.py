"""One party's trained model in a file: safetensors, with a JSON header that says what it is.

A party's file holds its own weights, columns and scaling and nothing of the others.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, TypeAdapter
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from securevfl.errors import DataError
from securevfl.files import replace_file

FORMAT = 1
_HEADER = "securevfl"


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


_MODEL_HEADER = TypeAdapter(ModelHeader)


@dataclass(frozen=True)
class SavedModel:
    """A party's model with the scaling of its features.

    Attributes:
        header: what it is.
        weights: θ_k, shape (P, C); the intercept's row last.
        mean: subtracted from each feature column.
        scale: divides each feature column after that.
    """

    header: ModelHeader
    weights: NDArray[np.float64]
    mean: NDArray[np.float64]
    scale: NDArray[np.float64]

    def predict(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Local predictions H_k of raw features, shape (S, len(columns)).

        Raises:
            DataError: another number of columns.
        """
        if features.ndim != 2 or features.shape[1] != len(self.header.columns):  # noqa: PLR2004
            raise DataError(
                f"{self.header.party}: features of shape {features.shape}, expected "
                f"{len(self.header.columns)} columns"
            )
        inputs = (features - self.mean) / self.scale
        weights = self.weights
        predictions: NDArray[np.float64] = inputs @ weights[: len(self.header.columns)]
        return predictions + weights[-1] if self.header.intercept else predictions


def save_model(path: Path, model: SavedModel) -> None:
    """Write a model in one step: a reader sees the old file or the new one, never half of it.

    Raises:
        DataError: the file cannot be written (no room, no permission).
    """
    tensors = {"weights": model.weights, "mean": model.mean, "scale": model.scale}
    contiguous = {name: np.ascontiguousarray(values) for name, values in tensors.items()}
    data = save(contiguous, metadata={_HEADER: json.dumps(asdict(model.header))})
    replace_file(path, data, "model file")


def load_model(path: Path) -> SavedModel:
    """Read a model back.

    Raises:
        DataError: no such file, not one of ours, or shapes that do not fit the header.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in ("weights", "mean", "scale")}
        header = _MODEL_HEADER.validate_json(metadata[_HEADER], strict=True)
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise DataError(f"model file {path}: not a securevfl model ({error})") from error
    if header.format != FORMAT:
        raise DataError(f"model file {path}: format {header.format}, this reads {FORMAT}")
    columns = len(header.columns)
    outputs = 1 if header.classes == 2 else header.classes  # noqa: PLR2004
    expected = {
        "weights": (columns + header.intercept, outputs),
        "mean": (columns,),
        "scale": (columns,),
    }
    for name, shape in expected.items():
        if tensors[name].shape != shape:
            raise DataError(
                f"model file {path}: {name} of {tensors[name].shape} do not fit {columns} columns"
            )
        if tensors[name].dtype != np.float64 or not np.isfinite(tensors[name]).all():
            raise DataError(f"model file {path}: {name} are not finite float64 numbers")
    if not (tensors["scale"] > 0).all():
        raise DataError(f"model file {path}: a scale is not positive")
    return SavedModel(header, tensors["weights"], tensors["mean"], tensors["scale"])

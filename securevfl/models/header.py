"""What a model file says of itself."""

import re
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path

from pydantic import ConfigDict

from securevfl.errors import ConfigError, DataError
from securevfl.models.local_model import Network
from securevfl.models.losses import loss_for
from securevfl.recipe import Recipe

FORMAT = 1
MOST = 1 << 63
"""Rounds and rows are sent as 64 bits."""


@dataclass(frozen=True)
class ModelHeader:
    """What a model file says of itself.

    Attributes:
        party: whose part of the model this is.
        columns: its feature columns, in the order of the weights' rows.
        intercept: whether one more row of weights belongs to a constant column of ones.
        classes: number of classes; 0 where targets are real.
        loss: the loss it was trained with.
        job_hash: SHA-256 of the job, in hex.
        rounds: rounds trained.
        format: version of this header.
        network: what was trained in place of a linear model; the header of one leaves it out.
        representation: w, where local models give representations to a head.
        head: the parties in the head's order, where this party, the first of them, holds it.
        target_mean: at the label party of real targets: these are it + `target_scale`·H.
        target_scale: their deviation.
        class_names: what each class is called, at the label party only.
        rows: N, of the training rows.
        recipe: how the columns are made of the party's raw ones, where that is more than reading.
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
        """Whether it is one dense layer, whose weights are saved like those of a linear model."""
        return self.network is not None and self.network.kind == "dense"

    @property
    def holds_labels(self) -> bool:
        """Whether this is the label party's part, which alone knows what labels mean."""
        return self.class_names is not None or self.target_mean is not None

    @property
    def outputs(self) -> int:
        """C, or the units of one dense layer."""
        if self.is_dense and self.network is not None:
            return self.network.hidden[-1]
        return self.classes if self.classes > 2 else 1  # noqa: PLR2004

    @property
    def given(self) -> int:
        """The numbers that the local model gives of a row: w or C."""
        return self.representation or self.outputs


def check_header(path: Path, header: ModelHeader) -> None:
    """Check what a header says beside tensors.

    Raises:
        DataError: another version, or what no header of ours says.
    """
    if header.format != FORMAT:
        raise DataError(f"model file {path}: format {header.format}, this reads {FORMAT}")
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
    """Check what a header says of the job, as far as one could be."""
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

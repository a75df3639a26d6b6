"""Jobs whose guards write down what they show, and what they have written."""

from pathlib import Path

from securevfl.data.tables import VerticalDataset
from securevfl.training import Environment, TrainingResult
from tests.jobs import Settings, SmallKeys, breast_cancer, fit

BOTH: Settings = {"scheme": "bfv", "hide": "both"}


def run(
    directory: Path | None,
    dataset: VerticalDataset | None = None,
    exchange: str | Settings = "paillier",
    watched: Settings | None = None,
    /,
    **settings: object,
) -> TrainingResult:
    """Two rounds whose gradients are counted, not scored unless it says other."""
    environment = Environment(keys=SmallKeys(), guard_directory=directory, **(watched or {}))
    common: Settings = {"rounds": 2, "eval_every": "never", "allow_feature_leak": True}
    return fit(dataset or breast_cancer(), exchange, environment, **{**common, **settings})


def written(directory: Path) -> set[str]:
    everything = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)) for path in everything if path.suffix != ".lock"}

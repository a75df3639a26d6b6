"""Vertical federated learning with the exchanges protected."""

from importlib import import_module

__version__ = "0.1.0"

_PLACES = {
    "VerticalLogisticRegression": "securevfl.interactive.estimators",
    "VerticalRidge": "securevfl.interactive.estimators",
    "audit": "securevfl.interactive.jobs",
    "train": "securevfl.interactive.jobs",
}
"""Imported on first use, so that `import securevfl` is fast."""
__all__ = ["VerticalLogisticRegression", "VerticalRidge", "__version__", "audit", "train"]


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module 'securevfl' has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""What `securevfl` has at its top, for type checkers: it is imported when first asked for."""

from securevfl.interactive.estimators import (
    VerticalLogisticRegression as VerticalLogisticRegression,
)

__version__: str

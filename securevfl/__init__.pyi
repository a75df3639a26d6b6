"""What `securevfl` has at its top, for type checkers: it is imported when first asked for."""

from securevfl.interactive.estimators import (
    VerticalLogisticRegression as VerticalLogisticRegression,
)
from securevfl.interactive.estimators import (
    VerticalRidge as VerticalRidge,
)
from securevfl.interactive.jobs import audit as audit
from securevfl.interactive.jobs import train as train

__version__: str

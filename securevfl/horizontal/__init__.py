"""Horizontal federated learning: FedBCGD and the methods it is compared with.

A server holds θ, all parameters of a model as one vector of shape (p,); clients hold rows. Clients
and server compute with pure functions (`client`, `server`, `codings`), so that every engine
averages with the same code: the project's own channel (`simulation`) and Flower
(`securevfl.flower`). Start with `train_horizontal`.
"""

from securevfl.horizontal.client import ClientProblem, JudgedProblem
from securevfl.horizontal.codings import Noisy, Plain, promise
from securevfl.horizontal.compression import Compressed, Quantizer, TopK
from securevfl.horizontal.federation import (
    METHODS,
    Blocks,
    Federation,
    Method,
    Settings,
    method_named,
)
from securevfl.horizontal.secure_aggregation import Masked
from securevfl.horizontal.training import HorizontalResult, train_horizontal

__all__ = [
    "METHODS",
    "Blocks",
    "ClientProblem",
    "Compressed",
    "Federation",
    "HorizontalResult",
    "JudgedProblem",
    "Masked",
    "Method",
    "Noisy",
    "Plain",
    "Quantizer",
    "Settings",
    "TopK",
    "method_named",
    "promise",
    "train_horizontal",
]

"""θ⁰ and row offsets of another party, repeated from the job's seed as a simulation draws them.

Peers know the job, the parties' order and their numbers of columns. This gives the direction of θ⁰,
as its length follows from X, and all offsets.
"""

import numpy as np

from securevfl.arrays import FloatArray
from securevfl.privacy.streams import KEY_BYTES, NoiseStream
from securevfl.protocols.plan import Plan


def repeated_start(plan: Plan, party: str, columns: int) -> tuple[FloatArray, FloatArray]:
    """θ⁰ of a linear model up to its length, shape (P, C), and e of all rows, shape (N, C)."""
    start = np.random.default_rng([plan.job.job.seed, plan.facts.names.index(party)])
    holds_labels = party == plan.facts.label_party
    intercept = int(plan.job.job.intercept and holds_labels)
    weights = start.standard_normal((columns + intercept, plan.loss.outputs))[:columns]
    stream = NoiseStream(start.bytes(KEY_BYTES))
    return weights, plan.row_offsets * stream.gaussian((plan.facts.rows, plan.loss.outputs))

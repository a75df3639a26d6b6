"""Attacks as functions: from what a party holds and received to estimates about other parties."""

from dataclasses import dataclass

from securevfl.arrays import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class LabelEstimate:
    """An attack's estimate of labels."""

    rows: IntArray  # the rows that it estimates, shape (n,), each once
    # For two classes shape (n, 1), positive for class 1; otherwise (n, C), largest for the class
    scores: FloatArray

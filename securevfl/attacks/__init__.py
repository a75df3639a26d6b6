"""Attacks as estimates: from what a party holds and saw to what it says of others; never a run."""

from dataclasses import dataclass

from securevfl.arrays import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class LabelEstimate:
    """What an attack says about labels."""

    rows: IntArray  # which rows it speaks of, shape (n,), each once
    # Shape (n, C): two classes, one column, positive for class 1; more classes, the largest column
    # names the class
    scores: FloatArray

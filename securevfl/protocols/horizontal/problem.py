"""What a client minimizes: the mean loss of its rows, as gradients by θ."""

from typing import Protocol, runtime_checkable

from securevfl.arrays import IntArray, RealArray


@runtime_checkable
class ClientProblem(Protocol):
    """A client's rows and the model's loss on them; θ is a vector of shape (p,).

    Rows are asked for by their numbers from 0 on, shape (S,), and losses are means over them. What
    `gradient` returns has the dtype of θ and may be overwritten by the next call.
    """

    @property
    def rows(self) -> int:
        """How many rows the client holds, at least 1."""

    def gradient(self, weights: RealArray, rows: IntArray) -> RealArray:
        """The loss's gradient over these rows at θ, shape (p,), without weight decay."""


@runtime_checkable
class JudgedProblem(ClientProblem, Protocol):
    """One that tells its loss, too: what training came to is read off that, not off gradients."""

    def loss(self, weights: RealArray, rows: IntArray) -> float:
        """The loss of these rows at θ, without weight decay."""

    def labels(self, rows: IntArray) -> IntArray | None:
        """Their classes from 0 on, shape (S,), where the loss is their cross entropy; else None."""

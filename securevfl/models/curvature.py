"""The curvature of the loss along one party's weights, from its own columns alone."""

from functools import cached_property

import numpy as np
from threadpoolctl import threadpool_limits

from securevfl.arrays import FloatArray
from securevfl.errors import DataError
from securevfl.models.local_model import LocalModel
from securevfl.sparse import Matrix, SparseRows, dense, lengths_of

NULL_SPACE = 1e-9
JACOBIAN_VALUES = 1 << 22
POWER_ITERATIONS = 20
MOST_GRAM_COLUMNS, MOST_DENSE_COLUMNS = 2048, 8192
"""For rows with more columns, sparse ones or dense, M and its eigenvectors cost more than steps."""
ABOUT = 1e-3


class Curvature:
    """M = c·XᵀX/N + λI over all rows, X of shape (N, P), of a linear model.

    c bounds f″, so M bounds the Hessian of the block (Böhning and Lindsay 1988). Columns are scaled
    to the same length before the eigendecomposition, so that units do not matter. Directions whose
    eigenvalue is below `NULL_SPACE` times the largest, such as collinear columns without L2, count
    as null space, along which steps do not move. L2 excludes the intercept. M is never formed for
    more columns than `most_gram_columns`.

    Raises:
        DataError: columns whose squares are not finite.
    """

    def __init__(self, model: LocalModel, inputs: Matrix, curvature: float, l2: float) -> None:
        penalty = np.full(inputs.shape[1], l2)
        if model.intercept:
            penalty[-1] = 0.0
        self._penalty, self._inputs, self._curvature = penalty, inputs, curvature
        self.matrix: FloatArray = np.empty((0, 0))
        if len(penalty) - model.intercept > most_gram_columns(inputs):
            return
        with np.errstate(over="ignore", invalid="ignore"):
            squares = curvature / len(inputs) * (inputs.T @ inputs)
        if not np.isfinite(squares).all():
            raise DataError("columns whose squares overflow float64: standardize them")
        self.matrix = squares + np.diag(penalty)

    @cached_property
    def largest(self) -> float:
        """The largest eigenvalue; 0 if all columns are zero."""
        if not len(self.matrix):
            return self._largest_by_products()
        return max(float(np.linalg.eigvalsh(self.matrix)[-1]), 0.0)

    @cached_property
    def intrinsic_dimension(self) -> float:
        """The trace divided by the largest eigenvalue, from 1 to P; 0 if all columns are zero.

        Source: Tropp (2015), "An introduction to matrix concentration inequalities", section 7.1.
        """
        trace = float(np.trace(self.matrix))
        if not len(self.matrix):
            squares = lengths_of(self._inputs) ** 2
            trace = self._curvature * float(squares.mean()) + float(self._penalty.sum())
        return trace / self.largest if self.largest > 0 else 0.0

    def _largest_by_products(self) -> float:
        """The same without forming M, to one part in a thousand and rounded up (Lanczos)."""
        from scipy.sparse.linalg import LinearOperator, eigsh  # noqa: PLC0415  # slow to import

        inputs, columns = self._inputs, len(self._penalty)

        def bend(direction: FloatArray) -> FloatArray:
            bent = self._curvature / len(inputs) * (inputs.T @ (inputs @ direction))
            return bent + self._penalty * direction

        start = np.random.default_rng(columns).standard_normal(columns)
        operator = LinearOperator((columns, columns), bend, dtype=np.float64)
        with threadpool_limits(1, "blas"):  # SciPy has its own, loaded after a run limits others
            found = eigsh(operator, 1, which="LA", v0=start, tol=ABOUT, return_eigenvectors=False)
        return max(float(found[0]) * (1 + ABOUT), 0.0)

    @cached_property
    def inverted(self) -> FloatArray:
        """M⁻¹, shape (P, P); 0 along directions of the null space."""
        whitening, _ = self.whitening
        return whitening @ whitening.T

    @cached_property
    def whitening(self) -> tuple[FloatArray, FloatArray]:
        """W with WWᵀ = M⁻¹ and its pseudo-inverse W⁺, both 0 along the null space, shapes (P, P).

        In φ = W⁺θ the curvature is the same in all directions: H = XWφ, and ‖φ‖² = θᵀMθ.
        """
        diagonal = np.diagonal(self.matrix)
        lengths = np.divide(1.0, np.sqrt(diagonal), out=np.zeros_like(diagonal), where=diagonal > 0)
        values, vectors = np.linalg.eigh(lengths[:, None] * self.matrix * lengths)
        kept = values > NULL_SPACE * values[-1]
        roots = np.sqrt(np.where(kept, values, 0.0))
        inverse = np.divide(1.0, roots, out=np.zeros_like(roots), where=kept)
        back = np.divide(1.0, lengths, out=np.zeros_like(lengths), where=lengths > 0)
        return lengths[:, None] * vectors * inverse, roots[:, None] * vectors.T * back

    def inverse(self, scale: float, proximal: float) -> FloatArray:
        """(scale·M + μI)⁻¹, shape (P, P)."""
        if proximal == 0:
            return self.inverted / scale
        regular = scale * self.matrix + proximal * np.eye(len(self.matrix))
        inverse: FloatArray = np.asarray(np.linalg.inv(regular), dtype=np.float64)
        return inverse


def most_gram_columns(rows: Matrix) -> int:
    """The most columns of such rows for which a P x P matrix is formed."""
    return MOST_GRAM_COLUMNS if isinstance(rows, SparseRows) else MOST_DENSE_COLUMNS


def largest_curvature(model: LocalModel, inputs: Matrix, curvature: float) -> float:
    """The largest eigenvalue of c·JᵀJ/S at the current weights, for a batch X of shape (S, P).

    An estimate by power iteration, over as many rows as fit into memory.
    """
    outputs = model.predict(inputs[:1]).size
    rows = max(1, JACOBIAN_VALUES // (model.weights.size * outputs))
    tangent = dense(model.tangent(inputs[:rows])())
    direction = tangent.sum(axis=0)
    largest = 0.0
    for _ in range(POWER_ITERATIONS):
        length = float(np.linalg.norm(direction))
        if length == 0:
            break
        moved = tangent @ (direction / length)
        largest = float(moved @ moved)
        direction = tangent.T @ moved
    return curvature * largest / min(rows, len(inputs))

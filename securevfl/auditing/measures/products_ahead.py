"""What ciphertexts of products ahead give their owner, for jobs whose parameters stay in shares.

Keys are made in a job and nobody gets at them: these are products of the same code, of as many of a
feature party's columns and rows as an attack takes, by a key that the audit made.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from securevfl.arrays import IntArray
from securevfl.attacks.ciphertexts import NoiseKnowledge, matrix_from_noise
from securevfl.auditing.judging import CORRELATION, RECOVERED, Finding
from securevfl.auditing.scoring import shared_values
from securevfl.auditing.seats import local_part
from securevfl.auditing.subject import Subject
from securevfl.crypto import ring
from securevfl.crypto.fixed_point import encode
from securevfl.crypto.inspection import RingOpening, c1_without_protection
from securevfl.crypto.ring_layout import RingProductFormat
from securevfl.crypto.ring_products import RingProductEvaluator, RingProductOwner
from securevfl.protocols.blind.fixed_point import FEATURE_BITS
from securevfl.sparse import require_dense

ROWS, COLUMNS, QUERIES = 32, 32, 30


@dataclass(eq=False)
class ProductsAhead:
    """A holder's key, and what a feature party answers.

    Attributes:
        matrix: its X in fixed point, shape (S, P).
    """

    matrix: IntArray

    @classmethod
    def of(cls, subject: Subject) -> "ProductsAhead":
        """The columns of the subject's feature party, those that fit."""
        inputs = local_part(subject.plan, subject.dataset, subject.feature_party).inputs
        part = require_dense(inputs, "an audit")[:ROWS, :COLUMNS]
        largest = float(np.max(np.abs(part), initial=0.0))
        return cls(encode(part, FEATURE_BITS, largest, "features"))

    @cached_property
    def owner(self) -> RingProductOwner:
        """Of the key."""
        outputs, inner = self.matrix.shape
        largest = max(int(np.abs(self.matrix).max()), 1)
        return RingProductOwner(RingProductFormat(inner, outputs, 1, largest, products=QUERIES))

    def ratio(self) -> Finding:
        """X from c₁ of a reply, were it neither re-randomized nor masked."""
        evaluator, encrypted = self._evaluator(), self._encrypted()
        reply, _ = evaluator.product(encrypted, self.matrix)
        seen = RingOpening(self.owner).replies(reply)[0][1]
        guess = c1_without_protection(evaluator, encrypted, self.matrix)
        return Finding(RECOVERED, shared_values(seen.ravel(), guess.ravel()), chance=0.0)

    def noise(self) -> Finding:
        """X from the noise of replies."""
        evaluator, opening = self._evaluator(), RingOpening(self.owner)
        equations, seen = [], []
        for _ in range(QUERIES):
            encrypted = self._encrypted()
            reply, _ = evaluator.product(encrypted, self.matrix)
            equations.append(opening.noise_equations(encrypted))
            seen.append(opening.noise_of_reply(reply))
        found = matrix_from_noise(seen, NoiseKnowledge(equations))
        truth = self.matrix[: opening.layout.side].ravel()
        correlation = abs(float(np.corrcoef(found, truth)[0, 1]))
        detail = {"queries": QUERIES, "entries": len(truth)}
        return Finding(CORRELATION, correlation, chance=0.0, detail=detail)

    def _evaluator(self) -> RingProductEvaluator:
        return RingProductEvaluator(self.owner.public_bytes, self.owner.product_format)

    def _encrypted(self) -> bytes:
        return self.owner.encrypt(ring.uniform(self.matrix.shape[1], 1))

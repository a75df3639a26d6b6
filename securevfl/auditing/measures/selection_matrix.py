"""The attack of a feature party that multiplies by a selection matrix instead of X, measured.

The residuals pass the job's own encryption, and all key owners follow the protocol.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np
from typing_extensions import override

from securevfl.arrays import IntArray
from securevfl.attacks.labels_from_gradients import SIGN_LOSSES
from securevfl.attacks.labels_in_clear import labels_from_selections, rows_read, selection
from securevfl.auditing.figures import accuracy_finding, own_model
from securevfl.auditing.judging import RECOVERED, Finding
from securevfl.auditing.measures.ciphertexts import RememberedKeys
from securevfl.auditing.measuring import Attack, add_attack
from securevfl.auditing.subject import Subject, with_section
from securevfl.auditing.views import gradients_of
from securevfl.crypto.scheme import Evaluator, MaskedReply, ProductFormat
from securevfl.crypto.schemes import SCHEMES
from securevfl.errors import ConfigError
from securevfl.models.scores import accuracy

ROUNDS, SLOW_ROUNDS = 20, 2
# Selection matrices have, in place of 1, X's largest entry less so many bits. The cheater's own
# steps should not make its predictions diverge, and ckks should not round residuals away.
SHRINK_BITS = 2
APPROXIMATE = 1e-3
AT_THE_END = (
    "the final parameters give as many chosen sums of residuals as the cheater has columns, once "
    "per job: see tests/end_to_end/test_blind_cheats.py"
)


@dataclass
class _Selected:
    """A batch, as the cheater prepared it."""

    shape: tuple[int, int]  # of X
    visit: int  # the current one, counted from the batch's number
    prepared: object
    products: int = 0


def _entry(product_format: ProductFormat) -> int:
    return max(1, product_format.largest_entry >> SHRINK_BITS)


class SelectingEvaluator(Evaluator):
    """Multiplies by selection matrices instead of X, by another one at each visit of a batch."""

    def __init__(self, evaluator: Evaluator, product_format: ProductFormat) -> None:
        self._evaluator = evaluator
        self._outputs = product_format.vectors
        self._entry = _entry(product_format)
        self._batches = 0

    @property
    @override
    def modulus_bits(self) -> int:
        """As in the job's evaluator."""
        return self._evaluator.modulus_bits

    @override
    def prepare(self, matrix: IntArray) -> object:
        """Prepare a selection matrix of the shape of X."""
        rows, columns = matrix.shape
        first = self._batches
        self._batches += 1
        return _Selected((rows, columns), first, self._selection((rows, columns), first))

    @override
    def make_blinder(self) -> bool:
        """As the job's evaluator does."""
        return self._evaluator.make_blinder()

    @override
    def lacks_blinders(self, prepared: object) -> bool:
        """As the job's evaluator does."""
        assert isinstance(prepared, _Selected)  # noqa: S101
        return self._evaluator.lacks_blinders(prepared.prepared)

    @override
    def masked_product(self, encrypted: bytes, prepared: object) -> MaskedReply:
        """The masked product with this visit's selection matrix, which looks like any other."""
        assert isinstance(prepared, _Selected)  # noqa: S101
        if prepared.products and prepared.products % self._outputs == 0:
            prepared.visit += 1
            prepared.prepared = self._selection(prepared.shape, prepared.visit)
        prepared.products += 1
        return self._evaluator.masked_product(encrypted, prepared.prepared)

    def _selection(self, shape: tuple[int, int], visit: int) -> object:
        return self._evaluator.prepare(selection(shape, visit, self._entry))


@add_attack
@partial(
    Attack,
    "selection_matrix",
    "malicious feature party",
    "the schedule; the best model of its columns",
    immune=lambda subject: "residuals are in clear anyway" if subject.in_clear else "",
    place=210,
)
def selection_matrix(subject: Subject) -> Finding:
    """Residuals of chosen rows, per visit as many as the cheater has columns."""
    settings, job = subject.job.exchange, subject.job.job
    if subject.exchange.shares_parameters:
        raise ConfigError(AT_THE_END)
    if job.loss not in SIGN_LOSSES or settings.hide != "residuals":
        raise ConfigError("selection_matrix supports logistic losses and hide = 'residuals'")
    if subject.plan.networks:
        raise ConfigError("selection_matrix supports linear models")
    keys = RememberedKeys(subject.keys, SelectingEvaluator)
    two_trips = with_section(subject.job, "exchange", round_trips=2)
    rounds = min(job.rounds, SLOW_ROUNDS if subject.is_slow else ROUNDS)
    recording = Subject(two_trips, subject.dataset, subject.seed, keys).record(rounds=rounds)
    adversary, truth = recording.adversary(subject.feature_party), recording.labels
    gradients, columns = gradients_of(recording.view(adversary.name)), adversary.inputs.shape[1]
    answered, fmt = adversary.answered, keys.formats[0]
    own = own_model(adversary.inputs, truth)
    found = labels_from_selections(
        gradients,
        answered,
        own.probabilities,
        entry=float(np.ldexp(_entry(fmt), -fmt.matrix_fraction_bits)),
        resolution=0.0 if SCHEMES[subject.scheme].exact else APPROXIMATE,
    )
    every = rows_read((subject.plan.schedule.batch(each) for each in range(job.rounds)), columns)
    return accuracy_finding(
        RECOVERED,
        accuracy(found.scores, truth[found.rows]),
        own.score.majority,
        own.score.accuracy,
        len(found.rows),
        detail={
            "visits": len(gradients),
            "residuals_a_visit": min(columns, *map(len, answered)),
            "rows_read": len(found.rows),
            "rows_read_after_all_rounds": len(np.unique(np.concatenate(every))),
            "rows": len(truth),
            "equations_over_rows": len(gradients) * columns / len(truth),
            "label_guard_ratio": recording.result.label_guard_ratio,
        },
    )

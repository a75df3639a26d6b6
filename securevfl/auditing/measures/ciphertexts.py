"""What ciphertexts give away, as rows of the audit: the product as it is, attacked from views.

Jobs whose parameters stay in shares make the keys of their offline products themselves, and nobody
can read those. The audit attacks products of the same code instead, with a key of its own, on as
many of a feature party's columns and rows as an attack takes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import ceil

import numpy as np
from typing_extensions import override

from securevfl.arrays import FloatArray, IntArray
from securevfl.attacks.ciphertexts import (
    parities_from_symbols,
    secret_from_crafted_queries,
)
from securevfl.auditing.figures import shared_values
from securevfl.auditing.judging import RECOVERED, Finding, Metric
from securevfl.auditing.measuring import Attack, Reason, add_attack
from securevfl.auditing.subject import Recording, Subject, local_part, with_section
from securevfl.auditing.views import blobs_of
from securevfl.crypto import ring
from securevfl.crypto.bfv import BfvEvaluator, BfvOwner
from securevfl.crypto.bfv_parameters import DEGREE
from securevfl.crypto.ckks import CkksEvaluator, CkksOwner
from securevfl.crypto.fixed_point import encode
from securevfl.crypto.inspection import (
    BfvOpening,
    RingOpening,
    c1_without_protection,
    ckks_key,
    ckks_key_guess,
    ckks_matrix,
    ckks_ratio,
    ckks_slots,
    crafted_replies,
    jacobi_symbols,
    owner_secret,
)
from securevfl.crypto.ring_layout import RingProductFormat
from securevfl.crypto.ring_products import RingProductEvaluator, RingProductOwner
from securevfl.crypto.scheme import Evaluator, KeyOwner, ProductFormat
from securevfl.errors import ConfigError
from securevfl.job import ExchangeSettings
from securevfl.protocols.blind.fixed_point import FEATURE_BITS
from securevfl.protocols.session.keys import KeyMaker
from securevfl.runtime.views import View
from securevfl.sparse import require_dense
from securevfl.wire.codec import Shows

OWN_KEY = "its own key and ciphertexts"
ROWS, QUERIES = 64, 60
# Over 2880 numbers or more, 48 a reply, chance passes this once in 50,000 seeds; X·e under flooding
# that is ten times as wide has 0.1.
NOISE_CORRELATION = Metric("correlation", 0.08)
SYMBOL_ROWS, SYMBOL_QUERIES = 24, 60
KEY_ROWS = 8
AHEAD_ROWS, AHEAD_COLUMNS = 32, 32
EXACT = "exact schemes release no approximations"
CRAFTED_AHEAD = (
    "what is decrypted ahead comes back under a pad, unless it was made from the pad's own "
    "ciphertext, which is an oracle for the key: tried in tests/end_to_end/test_blind_cheats.py"
)


class RememberedKeys(KeyMaker):
    """Keys as the job asks for them; an adversary keeps the one that it made.

    `cheat` stands in place of a peer's end, which follows the protocol by default.
    """

    def __init__(
        self,
        keys: KeyMaker,
        cheat: Callable[[Evaluator, ProductFormat], Evaluator] = lambda honest, _: honest,
    ) -> None:
        self._keys, self._cheat = keys, cheat
        self.made: list[tuple[KeyOwner, ProductFormat]] = []
        self.formats: list[ProductFormat] = []

    @override
    def owner(self, settings: ExchangeSettings, product_format: ProductFormat) -> KeyOwner:
        """A fresh key, remembered."""
        made = self._keys.owner(settings, product_format)
        self.made.append((made, product_format))
        return made

    @override
    def evaluator(
        self, settings: ExchangeSettings, material: bytes, product_format: ProductFormat
    ) -> Evaluator:
        self.formats.append(product_format)
        honest = self._keys.evaluator(settings, material, product_format)
        return self._cheat(honest, product_format)


@dataclass(frozen=True, eq=False)
class Exchanged:
    """The label party's key and ciphertexts of a run, with the answers of one feature party."""

    owner: KeyOwner  # the label party's end of its key
    product_format: ProductFormat
    inputs: list[bytes]  # encrypted vectors that it sent, one a round
    replies: list[bytes]  # what came back, one a round
    party: str
    recording: Recording

    @property
    def matrix(self) -> IntArray:
        """The feature party's X of the batch as integers, for scores; shape (S, P)."""
        inputs = self.recording.adversary(self.party).inputs[self.recording.batches[0]]
        fmt = self.product_format
        return encode(inputs, fmt.matrix_fraction_bits, fmt.matrix_bound, "features")


def _immune(**schemes: str) -> Reason:
    """Nothing is encrypted, or the scheme, by name, has not what the attack reads."""

    def reason(subject: Subject) -> str:
        return "nothing is encrypted" if subject.in_clear else schemes.get(subject.scheme, "")

    return reason


@add_attack
@partial(
    Attack,
    "ciphertext_ratio",
    "label party",
    OWN_KEY,
    immune=_immune(paillier="not an RLWE scheme: there is no c1"),
    place=160,
)
def ratio(subject: Subject) -> Finding:
    """X from c₁ of replies and of inputs."""
    if subject.exchange.shares_parameters:
        return _offline_ratio(subject)
    run = _run(subject, ROWS, 2)
    if isinstance(run.owner, CkksOwner):
        evaluator = CkksEvaluator(run.owner.public_bytes, run.product_format)
        truth = ckks_matrix(evaluator.prepare(run.matrix))
        value = shared_values(ckks_ratio(run.replies[0], run.inputs[0]), truth)
    elif isinstance(run.owner, BfvOwner):
        opening = BfvOpening(run.product_format, owner_secret(run.owner))
        seen = opening.replies(run.replies[0], run.matrix.shape[1])
        guess = opening.expected_c1(
            run.inputs[0], run.matrix, BfvEvaluator(run.owner.public_bytes, run.product_format)
        )
        pairs = [(one[1].ravel(), other.ravel()) for one, other in zip(seen, guess, strict=True)]
        value = float(np.mean([shared_values(*pair) for pair in pairs]))
    else:
        raise ConfigError("this attack reads c1 of bfv and ckks")
    return Finding(RECOVERED, value, chance=0.0)


@add_attack
@partial(
    Attack,
    "ciphertext_noise",
    "label party",
    f"{OWN_KEY}, its noise e",
    immune=_immune(paillier="Paillier's ciphertexts hold no noise"),
    place=170,
    cost=2.0,
)
def noise(subject: Subject) -> Finding:
    """X from the noise of replies, which the owner sees and whose share X·e it can compute."""
    if subject.exchange.shares_parameters:
        return _offline_noise(subject)
    run = _run(subject, ROWS, QUERIES)
    if not isinstance(run.owner, BfvOwner):
        raise ConfigError("this attack reads the noise of bfv replies")
    opening = BfvOpening(run.product_format, owner_secret(run.owner))
    rows, columns = run.matrix.shape
    within = min(columns, opening.parameters.columns_per_reply)
    if opening.parameters.inputs > 1:
        raise ConfigError("several inputs a vector: this attack takes one")
    equations = [opening.noise_equations(each, rows, within) for each in run.inputs]
    seen = [opening.reply_noise(each, columns)[0] for each in run.replies]
    return _from_noise(seen, equations, run.matrix[:, :within].T)


@add_attack
@partial(
    Attack,
    "jacobi_symbol",
    "anybody",
    "that batches repeat",
    immune=_immune(**dict.fromkeys(("bfv", "ckks", "blind"), "symbols are Paillier's")),
    place=180,
)
def symbols(subject: Subject) -> Finding:
    """Parities of X from Jacobi symbols."""
    if subject.scheme != "paillier":
        raise ConfigError("symbols are Paillier's")
    run = _run(subject, SYMBOL_ROWS, SYMBOL_QUERIES)
    modulus = run.owner.public_bytes
    equations = np.array(
        [
            [*jacobi_symbols(one, modulus), jacobi_symbols(reply, modulus)[0]]
            for one, reply in zip(run.inputs, run.replies, strict=True)
        ]
    )
    found = parities_from_symbols(equations, len(run.matrix))
    truth = run.matrix[:, 0] % 2
    value = 0.0 if found is None else shared_values(found, truth)
    detail = {"replies": len(equations), "contradicted": found is None}
    return Finding(RECOVERED, value, chance=0.0, detail=detail)


@add_attack
@partial(
    Attack,
    "ckks_key",
    "feature party",
    "batches of fewer rows than its columns",
    immune=_immune(bfv=EXACT, paillier=EXACT, blind=EXACT),
    place=190,
)
def approximate_key(subject: Subject) -> Finding:
    """The CKKS key from what decryptions tell of an input."""
    run = _run(subject, KEY_ROWS, 2)
    if not isinstance(run.owner, CkksOwner):
        raise ConfigError("this attack reads the key of ckks")
    adversary = run.recording.adversary(subject.feature_party)
    bits = run.product_format.value_fraction_bits
    # Products tell the residuals of so few rows, up to what was rounded and flooded.
    sums = run.recording.view(adversary.name).learned()[0].values * len(run.matrix)
    residuals = np.linalg.lstsq(adversary.inputs[run.recording.batches[0]].T, sums, rcond=None)[0]
    slots = ckks_slots(run.product_format, np.rint(np.ldexp(residuals[:, 0], bits)))
    value = shared_values(ckks_key_guess(run.inputs[0], slots), ckks_key(run.owner, run.inputs[0]))
    return Finding(RECOVERED, value, chance=0.0)


@add_attack
@partial(
    Attack,
    "crafted_query",
    "malicious feature party",
    "that its replies are decrypted",
    immune=_immune(),
    place=200,
)
def crafted_query(subject: Subject) -> Finding:
    """The BFV key, and every residual, by an evaluator that does not follow the protocol."""
    if subject.exchange.shares_parameters:
        raise ConfigError(CRAFTED_AHEAD)
    if subject.scheme != "bfv":
        raise ConfigError("crafted queries are built for bfv")
    run = _run(subject, subject.plan.most_batch_rows, 2)
    owner, fmt = run.owner, run.product_format
    assert isinstance(owner, BfvOwner)  # noqa: S101
    names = run.recording.plan.facts.names
    columns = {each: len(run.recording.adversary(each).model.weights) for each in names}
    del columns[subject.dataset.label_party]
    queries = list(crafted_replies(fmt, [columns[subject.feature_party]]))
    pooled = list(crafted_replies(fmt, list(columns.values())))
    secret = secret_from_crafted_queries(queries, owner.decrypt, owner.modulus_bits, DEGREE)
    opening, true_secret = BfvOpening(fmt, secret), owner_secret(owner)
    truth = BfvOpening(fmt, true_secret)
    pairs = [(opening.decrypted(each), truth.decrypted(each)) for each in run.inputs]
    first = np.concatenate([places.ravel() for _, places in queries[: fmt.vectors]]) % DEGREE
    return Finding(
        RECOVERED,
        float(np.mean(secret == true_secret)),
        chance=1 / 3,
        detail={
            "columns": columns[subject.feature_party],
            "digits_a_value": queries[0][1].shape[1],
            "rounds": ceil(len(queries) / fmt.vectors),
            "rounds_if_all_peers_pool": ceil(len(pooled) / (fmt.vectors * len(columns))),
            "key_after_one_round": len(np.unique(first)) / DEGREE,
            "residuals_read": float(np.mean([shared_values(*pair) for pair in pairs])),
        },
    )


def _run(subject: Subject, rows: int, rounds: int) -> Exchanged:
    """A run of full batches of a few rows under encryption."""
    keys = RememberedKeys(subject.keys)
    job = with_section(subject.job, "exchange", predictions="clear", round_trips=2)
    dataset = subject.with_rows(rows).dataset
    small = Subject(job, dataset, subject.seed, keys, keeps_ciphertexts=True)
    recording = small.record(
        rounds=rounds, batch_size="full", algorithm="fedsgd", eval_every="never"
    )
    label = dataset.label_party
    own, other = recording.view(label), recording.view(subject.feature_party)
    told = [
        value
        for entry in other.received()
        if entry.sender == label and entry.message.stage == "setup"
        for value in vars(entry.message).values()
    ]
    made = next(each for each in keys.made if each[0].public_bytes in told)
    return Exchanged(
        *made,
        inputs=_first_vectors(other, label, "residuals"),
        replies=_first_vectors(own, subject.feature_party, "gradients"),
        party=subject.feature_party,
        recording=recording,
    )


def _first_vectors(view: View, sender: str, shows: Shows) -> list[bytes]:
    """The first vector of every message in ciphertexts that would show this, in order."""
    messages = [message for name, message in view.showing(shows) if name == sender]
    return [blobs_of(each)[0] for each in messages if each.carries == "ciphertexts"]


def _from_noise(noise: list[FloatArray], equations: list[FloatArray], matrix: IntArray) -> Finding:
    """How the noise of replies goes with X·e, which only a scorer can compute.

    An owner's estimate of X, whatever it is, starts from that: without it the noise tells nothing.
    The correlation is over all numbers that the replies hold. Over the entries of X it would be
    high by chance alone where a party has few columns.
    """
    seen, truth = np.concatenate(noise), matrix.ravel()
    detail = {"queries": len(noise), "entries": len(truth), "numbers": len(seen)}
    value = abs(float(np.corrcoef(seen, np.vstack(equations) @ truth)[0, 1]))
    return Finding(NOISE_CORRELATION, value, chance=0.0, detail=detail)


def _offline_ratio(subject: Subject) -> Finding:
    """X from c₁ of a reply, were it neither re-randomized nor masked."""
    matrix, owner, evaluator = _ahead(subject)
    encrypted = owner.encrypt(ring.uniform(matrix.shape[1], 1))
    reply, _ = evaluator.product(encrypted, matrix)
    seen = RingOpening(owner).replies(reply)[0][1]
    guess = c1_without_protection(evaluator, encrypted, matrix)
    return Finding(RECOVERED, shared_values(seen.ravel(), guess.ravel()), chance=0.0)


def _offline_noise(subject: Subject) -> Finding:
    matrix, owner, evaluator = _ahead(subject)
    opening = RingOpening(owner)
    equations, seen = [], []
    for _ in range(QUERIES):
        encrypted = owner.encrypt(ring.uniform(matrix.shape[1], 1))
        reply, _ = evaluator.product(encrypted, matrix)
        equations.append(opening.noise_equations(encrypted))
        seen.append(opening.noise_of_reply(reply))
    return _from_noise(seen, equations, matrix[: opening.layout.side])


def _ahead(subject: Subject) -> tuple[IntArray, RingProductOwner, RingProductEvaluator]:
    """X of the feature party in fixed point, as far as it fits, and both ends of a key."""
    inputs = local_part(subject.plan, subject.dataset, subject.feature_party).inputs
    part = require_dense(inputs, "an audit")[:AHEAD_ROWS, :AHEAD_COLUMNS]
    matrix = encode(part, FEATURE_BITS, float(np.max(np.abs(part), initial=0.0)), "features")
    outputs, inner = matrix.shape
    largest = max(int(np.abs(matrix).max()), 1)
    owner = RingProductOwner(RingProductFormat(inner, outputs, 1, largest, products=QUERIES))
    return matrix, owner, RingProductEvaluator(owner.public_bytes, owner.product_format)

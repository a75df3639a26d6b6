"""Attacks of parties that cheat on the other end of a key, measured on the schemes as they are.

A key owner crafts what it encrypts and reads the other side's columns; a key's other end crafts
what its owner decrypts and reads the key.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import ceil, sqrt

import numpy as np
from numpy.typing import NDArray

from securevfl.arrays import IntArray, RingArray
from securevfl.attacks.ciphertexts import secret_from_crafted_queries
from securevfl.auditing.figures import shared_values
from securevfl.auditing.judging import CORRELATION, RECOVERED, Finding
from securevfl.auditing.measures.ciphertexts import (
    ROWS,
    SYMBOL_ROWS,
    offline_ends,
    run_of,
    unless_encrypted,
)
from securevfl.auditing.measuring import Attack, add_attack
from securevfl.auditing.subject import Subject
from securevfl.crypto import ring
from securevfl.crypto.bfv import BfvOwner
from securevfl.crypto.bfv_parameters import DEGREE
from securevfl.crypto.ckks import CkksOwner, PreparedSlots
from securevfl.crypto.crafted import (
    Oversized,
    ckks_with_noise,
    crafted_replies,
    readable_noise,
    with_digits,
    with_noise,
)
from securevfl.crypto.inspection import (
    BfvOpening,
    Phases,
    RingOpening,
    ckks_entries,
    ckks_seen,
    owner_secret,
)
from securevfl.crypto.paillier import PaillierKeyOwner
from securevfl.crypto.scheme import MODULUS_BITS
from securevfl.errors import ConfigError
from securevfl.protocols.blind.checks import Combinations

READ, SLOW_READ = 8, 3  # rows of X, one a reply
CKKS_NOISE = 1 << 94
ROUNDS = 20
NO_KEY = (
    "no reply is known to tell Paillier's key; which plaintexts an evaluator may choose: see "
    "selection_matrix"
)


@add_attack
@partial(
    Attack,
    "crafted_inputs",
    "malicious label party",
    "its own key, with noise or numbers of its choice",
    immune=unless_encrypted(),
    place=195,
)
def crafted_inputs(subject: Subject) -> Finding:
    """X, by a key owner that encrypts what no honest one does, from where masks might end."""
    if subject.exchange.shares_parameters:
        return _noise_offline(subject)
    few = SYMBOL_ROWS if subject.is_slow else ROWS
    run, settings = run_of(subject, few, 1), subject.job.exchange
    most, rounds = subject.plan.most_batch_rows, subject.job.job.rounds
    fmt, matrix = replace(run.product_format, rows=most, rounds=rounds), run.matrix
    owner, columns = subject.keys.owner(settings, fmt), matrix.shape[1]
    evaluator = subject.keys.evaluator(settings, owner.public_bytes, fmt)
    nothing = np.zeros(len(matrix), np.int64)
    if isinstance(owner, PaillierKeyOwner):
        crafted = Oversized(owner, columns)
        some, encrypted = matrix[:SLOW_READ, : crafted.columns], crafted.encrypted()
        rows = (evaluator.prepare(row[None, :]) for row in some)
        replies = [evaluator.masked_product(encrypted, each).ciphertext for each in rows]
        found = np.stack([crafted.read(each) for each in replies])
        return _share(found, some[:, crafted.top :: crafted.side])
    prepared = evaluator.prepare(matrix)
    if isinstance(owner, CkksOwner):
        assert isinstance(prepared, PreparedSlots)  # noqa: S101
        encrypted = ckks_with_noise(owner, owner.encrypt(nothing), CKKS_NOISE)
        reply = evaluator.masked_product(encrypted, prepared)
        pair = ckks_seen(owner, reply.ciphertext, columns), ckks_entries(prepared)
        value, numbers = abs(float(np.corrcoef(*pair)[0, 1])), len(pair[0])
        detail: dict[str, object] = {"numbers": numbers}
        return Finding(CORRELATION, value, 0.0, error=1 / sqrt(numbers), detail=detail)
    if not isinstance(owner, BfvOwner):
        raise ConfigError("crafted_inputs supports bfv, ckks, paillier and blind")
    opening = BfvOpening(fmt, owner_secret(owner))
    positions = opening.parameters.positions(columns)[: opening.parameters.columns_per_reply]

    def answered(encrypted: bytes) -> list[RingArray]:
        reply = evaluator.masked_product(encrypted, prepared)
        return opening.replies(reply.ciphertext, columns)

    return _read_in_noise(opening, owner.encrypt(nothing), answered, positions, matrix)


@add_attack
@partial(
    Attack,
    "crafted_query",
    "malicious feature party",
    "that its replies are decrypted",
    immune=unless_encrypted(),
    place=200,
)
def crafted_query(subject: Subject) -> Finding:
    """The BFV key, and every residual, by an evaluator that deviates from the protocol."""
    if subject.exchange.shares_parameters:
        return _digits_offline(subject)
    if subject.scheme == "paillier":
        raise ConfigError(NO_KEY)
    if subject.scheme != "bfv":
        raise ConfigError("crafted_query supports bfv and blind")
    run = run_of(subject, subject.plan.most_batch_rows, 2)
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


def _read_in_noise(
    opening: Phases,
    nothing: bytes,
    answered: Callable[[bytes], list[RingArray]],
    positions: NDArray[np.int64],
    matrix: IntArray,
) -> Finding:
    """Rows of X in the noise of replies to encryptions of nothing, each with a word of noise."""
    truth = matrix[:READ]
    unit = readable_noise(opening.sizes, int(np.abs(matrix).max(initial=0)))
    crafted = (with_noise(opening.sizes, nothing, row, unit) for row in range(len(truth)))
    found = [opening.read(answered(each), positions, unit)[: truth.shape[1]] for each in crafted]
    return _share(np.stack(found), truth)


def _noise_offline(subject: Subject) -> Finding:
    matrix, owner, evaluator = offline_ends(subject)
    opening, nothing = RingOpening(owner), owner.encrypt(np.zeros((matrix.shape[1], 1), np.uint64))
    positions = opening.layout.positions()[: opening.layout.side]

    def answered(encrypted: bytes) -> list[RingArray]:
        return opening.replies(evaluator.product(encrypted, matrix)[0])

    return _read_in_noise(opening, nothing, answered, positions, matrix.T)


def _share(found: NDArray[np.generic], truth: IntArray) -> Finding:
    """The share of X's entries that were read exactly, shapes (rows, columns)."""
    value = shared_values(found.ravel(), truth.ravel())
    return Finding(RECOVERED, value, chance=0.0, detail={"entries": truth.size})


def _digits_offline(subject: Subject) -> Finding:
    """Digits of the holder's key that come into what it uses, if its check lets replies pass."""
    rounds, checks = min(subject.job.job.rounds, ROUNDS), subject.plan.checks
    matrix, owner, evaluator = offline_ends(subject, rounds + checks)
    holder, inner = Combinations(checks), matrix.shape[1]
    columns = holder.extended(ring.uniform(inner, rounds))
    honest, masks = evaluator.product(owner.encrypt(columns), matrix)
    reply, places = with_digits(owner.product_format, honest)
    words = owner.decrypt(reply)
    holder.take(words)
    cheat = Combinations(checks, holder.seed)
    cheat.take_mask(masks, rounds)
    first, second = (each.test(b"audit") for each in (holder, cheat))
    passed = not checks or first.accepts(second.point, second.tag(first.point))

    def changed(*_: object) -> RingArray:
        digits: RingArray = words - masks - ring.Factor(matrix) @ columns
        return digits.ravel() << np.uint64(MODULUS_BITS - ring.RING_BITS)

    secret = secret_from_crafted_queries([(reply, places)], changed, ring.RING_BITS, DEGREE)
    read = np.unique(places % DEGREE)
    share = float(np.sum((secret == owner_secret(owner))[read]) / DEGREE)
    return Finding(
        RECOVERED,
        share if passed else 0.0,
        chance=0.0,
        detail={
            "checks": checks,
            "passed": passed,
            "rounds": rounds,
            "digits_a_word": places.shape[1],
            "digits_in_replies": share,
        },
    )

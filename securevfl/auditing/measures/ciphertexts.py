"""Attacks on ciphertexts in views, measured.

Jobs whose parameters stay in shares make the keys of their offline products inside the protocol,
where no audit can read them. For these the audit attacks products of the same code under a key of
its own, on some of a feature party's columns and rows.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, prod, sqrt
from secrets import token_bytes

import numpy as np
from typing_extensions import override

from securevfl.arrays import FloatArray, IntArray
from securevfl.attacks.ciphertexts import parities_from_symbols, secret_from_crafted_queries
from securevfl.auditing.figures import shared_values
from securevfl.auditing.judging import CORRELATION, RECOVERED, Finding, Metric
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
    Oversized,
    Phases,
    RingOpening,
    c1_without_protection,
    ckks_entries,
    ckks_key,
    ckks_key_guess,
    ckks_matrix,
    ckks_ratio,
    ckks_seen,
    ckks_slots,
    ckks_with_noise,
    crafted_replies,
    jacobi_symbols,
    owner_secret,
    with_digits,
    with_noise,
)
from securevfl.crypto.paillier import PaillierKeyOwner
from securevfl.crypto.ring_layout import RingProductFormat
from securevfl.crypto.ring_products import RingProductEvaluator, RingProductOwner
from securevfl.crypto.scheme import KEY_SEED_BYTES, MODULUS_BITS, Evaluator, KeyOwner, ProductFormat
from securevfl.errors import ConfigError
from securevfl.job import ExchangeSettings
from securevfl.protocols.blind.checks import Combinations
from securevfl.protocols.blind.fixed_point import FEATURE_BITS
from securevfl.protocols.session.keys import KeyMaker
from securevfl.runtime.views import View
from securevfl.sparse import require_dense
from securevfl.wire.codec import Shows

OWN_KEY = "its own key and ciphertexts"
ROWS, QUERIES = 64, 60
# Four standard errors of 2880 numbers, 48 per reply; noise ten times as wide as X·e beside it would
# give 0.1.
NOISE_CORRELATION = Metric("correlation", 0.08)
# Steps too small to arrive: a run that ends early leaves few numbers.
ENDLESS: dict[str, object] = {"local_steps": 1, "learning_rate": 1e-3, "tolerance": 0.0}
SYMBOL_ROWS, SYMBOL_QUERIES = 24, 60
KEY_ROWS = 8
OFFLINE_ROWS, OFFLINE_COLUMNS = 32, 32
# Rows of X that are read by crafted inputs, one a reply
READ, FEW_READ = 8, 3
CKKS_NOISE = 1 << 94
CHEATED_ROUNDS = 20
EXACT = "exact schemes release no approximations"
NO_QUERY = {
    "paillier": "no reply is known that tells Paillier's key; see selection_matrix",
    "ckks": "15 digits of the key a reply: see tests/unit/crypto/test_ckks_leaks.py",
}


class RememberedKeys(KeyMaker):
    """A key maker that records its keys; `cheat` may replace the evaluators that it makes."""

    def __init__(
        self,
        keys: KeyMaker,
        cheat: Callable[[Evaluator, ProductFormat], Evaluator] = lambda honest, _: honest,
    ) -> None:
        self._keys, self._cheat = keys, cheat
        self.made: list[tuple[KeyOwner, ProductFormat]] = []
        self.formats: list[ProductFormat] = []

    @override
    def owner(
        self, settings: ExchangeSettings, product_format: ProductFormat, seed: bytes
    ) -> KeyOwner:
        """A fresh key, recorded in `made`."""
        made = self._keys.owner(settings, product_format, seed)
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
    """The label party's key and ciphertexts in a run, with one feature party's replies."""

    owner: KeyOwner
    product_format: ProductFormat
    inputs: list[bytes]  # encrypted vectors that it sent, one per round
    replies: list[bytes]  # one per round
    party: str
    recording: Recording

    @property
    def matrix(self) -> IntArray:
        """The feature party's X of the batch as integers, shape (S, P): the truth."""
        inputs = self.recording.adversary(self.party).inputs[self.recording.batches[0]]
        fmt = self.product_format
        return encode(inputs, fmt.matrix_fraction_bits, fmt.matrix_bound, "features")


def _immune(**schemes: str) -> Reason:
    """Immune if nothing is encrypted, or for the given reason, by scheme."""

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
    """X from c₁ of replies and inputs."""
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
        raise ConfigError("ciphertext_ratio supports bfv and ckks")
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
    """X from the noise of replies, which the owner sees and of which it can compute X·e."""
    if subject.exchange.shares_parameters:
        return _offline_noise(subject)
    run = _run(subject, ROWS, QUERIES)
    if not isinstance(run.owner, BfvOwner):
        raise ConfigError("ciphertext_noise supports bfv")
    opening = BfvOpening(run.product_format, owner_secret(run.owner))
    rows, columns = run.matrix.shape
    within = min(columns, opening.parameters.columns_per_reply)
    if opening.parameters.inputs > 1:
        raise ConfigError("several inputs a vector: ciphertext_noise supports one")
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
    """The CKKS key from an input whose plaintext the decrypted products reveal."""
    run = _run(subject, KEY_ROWS, 2)
    if not isinstance(run.owner, CkksOwner):
        raise ConfigError("ckks_key supports ckks")
    adversary = run.recording.adversary(subject.feature_party)
    bits = run.product_format.value_fraction_bits
    # Products determine the residuals of so few rows, up to rounding and noise flooding.
    sums = run.recording.view(adversary.name).learned()[0].values * len(run.matrix)
    residuals = np.linalg.lstsq(adversary.inputs[run.recording.batches[0]].T, sums, rcond=None)[0]
    slots = ckks_slots(run.product_format, np.rint(np.ldexp(residuals[:, 0], bits)))
    value = shared_values(ckks_key_guess(run.inputs[0], slots), ckks_key(run.owner, run.inputs[0]))
    return Finding(RECOVERED, value, chance=0.0)


@add_attack
@partial(
    Attack,
    "crafted_inputs",
    "malicious label party",
    "its own key, with noise or numbers of its choice",
    immune=_immune(),
    place=195,
)
def crafted_inputs(subject: Subject) -> Finding:
    """X, by a key owner that encrypts what no honest one does, from where masks might end."""
    if subject.exchange.shares_parameters:
        return _crafted_offline(subject)
    run = _run(subject, SYMBOL_ROWS if subject.is_slow else ROWS, 1)
    settings, most = subject.job.exchange, subject.plan.most_batch_rows
    matrix = run.matrix[:most, run.matrix[:most].any(axis=0)]  # zeros are skipped, as all see
    fmt = replace(run.product_format, rows=most, rounds=subject.job.job.rounds)
    owner = subject.keys.owner(settings, fmt, token_bytes(KEY_SEED_BYTES))
    nothing = np.zeros(len(matrix), np.int64)
    evaluator = subject.keys.evaluator(settings, owner.public_bytes, fmt)
    if isinstance(owner, PaillierKeyOwner):
        crafted, entries = Oversized(owner), matrix[:FEW_READ, :1]
        each = (evaluator.prepare(entry[None, :]) for entry in entries)
        replies = (evaluator.masked_product(crafted.encrypted(), one) for one in each)
        return _share([crafted.entry(reply.ciphertext) for reply in replies], entries)
    prepared = evaluator.prepare(matrix)
    if isinstance(owner, CkksOwner):
        encrypted = ckks_with_noise(owner.encrypt(nothing), CKKS_NOISE)
        seen = ckks_seen(owner, evaluator.masked_product(encrypted, prepared).ciphertext)
        value = abs(float(np.corrcoef(seen, ckks_entries(prepared))[0, 1]))
        detail: dict[str, object] = {"numbers": len(seen)}
        return Finding(CORRELATION, value, 0.0, error=1 / sqrt(len(seen)), detail=detail)
    if not isinstance(owner, BfvOwner):
        raise ConfigError("crafted_inputs supports bfv, ckks, paillier and blind")
    opening, columns = BfvOpening(fmt, owner_secret(owner)), matrix.shape[1]

    def noise_of_reply(encrypted: bytes) -> FloatArray:
        reply = evaluator.masked_product(encrypted, prepared).ciphertext
        return opening.reply_noise(reply, columns).ravel()

    known = matrix[:, : opening.parameters.columns_per_reply]  # those of the first reply
    return _from_chosen_noise(opening, owner.encrypt(nothing), noise_of_reply, known)


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
    """A BFV key, and with it every residual, by an evaluator; under blind until its check."""
    if subject.exchange.shares_parameters:
        return _digits_offline(subject)
    if subject.scheme != "bfv":
        raise ConfigError(NO_QUERY.get(subject.scheme, "crafted_query supports bfv and blind"))
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
    """An encrypted run with full batches of a few rows."""
    keys = RememberedKeys(subject.keys)
    job = with_section(subject.job, "exchange", predictions="clear", round_trips=2)
    dataset = subject.with_rows(rows).dataset
    small = Subject(job, dataset, subject.seed, keys, keeps_ciphertexts=True)
    recording = small.record(
        rounds=rounds, batch_size="full", algorithm="fedsgd", eval_every="never", **ENDLESS
    )
    label = dataset.label_party
    own, other = recording.view(label), recording.view(subject.feature_party)
    received = [
        value
        for entry in other.received()
        if entry.sender == label and entry.message.stage == "setup"
        for value in vars(entry.message).values()
    ]
    made = next(each for each in keys.made if each[0].public_bytes in received)
    return Exchanged(
        *made,
        inputs=_first_vectors(other, label, "residuals"),
        replies=_first_vectors(own, subject.feature_party, "gradients"),
        party=subject.feature_party,
        recording=recording,
    )


def _first_vectors(view: View, sender: str, shows: Shows) -> list[bytes]:
    """The first vector of each encrypted message that would show this in clear, in order."""
    messages = [message for name, message in view.showing(shows) if name == sender]
    return [blobs_of(each)[0] for each in messages if each.carries == "ciphertexts"]


def _from_noise(noise: list[FloatArray], equations: list[FloatArray], matrix: IntArray) -> Finding:
    """The correlation of the replies' noise with X·e, over all numbers of the replies.

    Without such a correlation no estimate of X from the noise is possible. Over the entries of X
    themselves it would be high by chance for parties with few columns.
    """
    seen, truth = np.concatenate(noise), matrix.ravel()
    detail = {"queries": len(noise), "entries": len(truth), "numbers": len(seen)}
    value = abs(float(np.corrcoef(seen, np.vstack(equations) @ truth)[0, 1]))
    return Finding(NOISE_CORRELATION, value, 0.0, error=1 / sqrt(len(seen)), detail=detail)


def _offline_ratio(subject: Subject) -> Finding:
    """X from c₁ of a reply, as if it were neither re-randomized nor masked."""
    matrix, owner, evaluator = _offline(subject)
    encrypted = owner.encrypt(ring.uniform(matrix.shape[1], 1))
    reply, _ = evaluator.product(encrypted, matrix)
    seen = RingOpening(owner).replies(reply)[0][1]
    guess = c1_without_protection(evaluator, encrypted, matrix)
    return Finding(RECOVERED, shared_values(seen.ravel(), guess.ravel()), chance=0.0)


def _offline_noise(subject: Subject) -> Finding:
    matrix, owner, evaluator = _offline(subject)
    opening = RingOpening(owner)
    equations, seen = [], []
    for _ in range(QUERIES):
        encrypted = owner.encrypt(ring.uniform(matrix.shape[1], 1))
        reply, _ = evaluator.product(encrypted, matrix)
        equations.append(opening.noise_equations(encrypted))
        seen.append(opening.noise_of_reply(reply))
    return _from_noise(seen, equations, matrix[: opening.layout.side])


def _offline(
    subject: Subject, vectors: int = 1
) -> tuple[IntArray, RingProductOwner, RingProductEvaluator]:
    """Some of the feature party's X in fixed point, and both ends of an offline product."""
    inputs = local_part(subject.plan, subject.dataset, subject.feature_party).inputs
    part = require_dense(inputs, "an audit")[:OFFLINE_ROWS, :OFFLINE_COLUMNS]
    matrix = encode(part, FEATURE_BITS, float(np.max(np.abs(part), initial=0.0)), "features")
    outputs, inner = matrix.shape
    largest = max(int(np.abs(matrix).max()), 1)
    owner = RingProductOwner(RingProductFormat(inner, outputs, vectors, largest, products=QUERIES))
    return matrix, owner, RingProductEvaluator(owner.public_bytes, owner.product_format)


def _from_chosen_noise(
    opening: Phases, nothing: bytes, noise_of_reply: Callable[[bytes], FloatArray], matrix: IntArray
) -> Finding:
    """Rows of X in the noise of replies to encryptions of nothing, each with a word of noise."""
    truth, sizes, primes = matrix[:READ], opening.sizes, opening.primes
    # Between two plaintexts is room for 2^17 such units, of which a mask on all of it shows any.
    largest = max(int(np.abs(matrix).max(initial=0)), 1 << 16)
    unit = 9 * prod(primes) // (20 * largest) >> sizes.plain_bits
    seen = [noise_of_reply(with_noise(sizes, nothing, row, unit)) for row in range(len(truth))]
    found = np.rint(np.stack(seen) * (prod(primes[sizes.reply_primes :]) / unit))
    return _share(found[:, : truth.shape[1]].ravel(), truth)


def _crafted_offline(subject: Subject) -> Finding:
    matrix, owner, evaluator = _offline(subject)
    opening, nothing = RingOpening(owner), owner.encrypt(np.zeros((matrix.shape[1], 1), np.uint64))

    def noise_of_reply(encrypted: bytes) -> FloatArray:
        return opening.noise_of_reply(evaluator.product(encrypted, matrix)[0])

    known = matrix[: opening.layout.side].T
    return _from_chosen_noise(opening, nothing, noise_of_reply, known)


def _share(found: Iterable[int], truth: IntArray) -> Finding:
    """The share of X's entries that were read exactly."""
    value = shared_values(found, truth.ravel())
    return Finding(RECOVERED, value, chance=0.0, detail={"entries": truth.size})


def _digits_offline(subject: Subject) -> Finding:
    """Digits of the holder's key that come into what it uses, if its check lets replies pass."""
    rounds, checks = min(subject.job.job.rounds, CHEATED_ROUNDS), subject.plan.checks
    matrix, owner, evaluator = _offline(subject, rounds + checks)
    holder = Combinations(checks)
    columns = holder.extended(ring.uniform(matrix.shape[1], rounds))
    honest, masks = evaluator.product(owner.encrypt(columns), matrix)
    reply, places = with_digits(owner.product_format, honest)
    words, cheat = owner.decrypt(reply), Combinations(checks, holder.seed)
    holder.take(words)
    cheat.take_mask(masks, rounds)
    first, second = (each.test(b"audit") for each in (holder, cheat))
    passed = not checks or first.accepts(second.point, second.tag(first.point))
    digits = (words - masks - ring.Factor(matrix) @ columns).ravel()
    digits <<= np.uint64(MODULUS_BITS - ring.RING_BITS)
    queries = [(reply, places)]
    secret = secret_from_crafted_queries(queries, lambda *_: digits, ring.RING_BITS, DEGREE)
    read = np.unique(places % DEGREE)
    share = float(np.sum((secret == owner_secret(owner))[read]) / DEGREE)
    detail = {"checks": checks, "digits_a_word": places.shape[1], "digits_in_replies": share}
    return Finding(RECOVERED, share if passed else 0.0, chance=0.0, detail=detail)

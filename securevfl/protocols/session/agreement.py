"""Before the first round: do all parties run the same job on the same rows?

Learns:
    every party: the others' number of columns and a hash of the job, and whether they hold the same
        people in the same order, see `proof_of_rows`. Before encrypted products
        also the power of two that bounds their features, the number of fraction bits that make
        these exact (0 for integers), and whether their columns are those of an earlier job. A
        party with a network announces its number of parameters in place of all these. Before
        encrypted products also a seed that no one chose, see `joint_seed`.
"""

import hmac
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from math import frexp

import numpy as np

from securevfl.arrays import FloatArray
from securevfl.crypto.masks import MaskKey, PairwiseMasks
from securevfl.errors import PeerViolation
from securevfl.protocols.session.gathering import Party
from securevfl.protocols.session.joint_seed import commitment, draw_seed, fresh_opening
from securevfl.runtime.channel import collect, tell
from securevfl.runtime.costs import SETUP
from securevfl.sparse import Matrix, values_of
from securevfl.wire.codec import Message, message_kind

MOST_FRACTION_BITS = 32
COMMITMENT_BYTES = 16
_INT64 = 2.0**63


@message_kind(0, stage="setup")
class Hello(Message):
    """Set-up, every party to every other: the sender's view of the job.

    The sender's features stay within ±2^`feature_bound_bits`, which sizes products, and are exact
    with `feature_fraction_bits` behind the point (32: not with fewer). `mask_key` is a fresh X25519
    public key. `commitments` are keyed hashes of the sender's scaled columns of every fixed batch,
    by which the label guard recognizes them in later jobs. `seed_commitment` is the sender's to its
    part of a joint seed; empty where nothing is encrypted. `proof_of_rows` is that function's of
    the sender's rows; empty where they have no ids, and to observers.
    """

    job_hash: bytes
    rows: int
    test_rows: int
    columns: int
    feature_bound_bits: int
    feature_fraction_bits: int
    mask_key: bytes
    commitments: bytes
    seed_commitment: bytes
    proof_of_rows: bytes


@dataclass(frozen=True)
class Agreement:
    """What the parties know of each other when training starts.

    Attributes:
        own_columns: P of this party, constant columns included, or a network's p.
        columns: P of every other party.
        feature_bound: features of all parties stay within ±feature_bound.
        feature_fraction_bits: the number that makes all features exact, at most 32.
        commitments: every other party's, 16 bytes per fixed batch, or none.
        seed: 32 bytes, the same at all parties, that none chose; empty where nothing is encrypted.
    """

    own_columns: int
    columns: Mapping[str, int]
    feature_bound: float
    feature_fraction_bits: int
    masks: PairwiseMasks
    commitments: Mapping[str, bytes]
    seed: bytes


def proof_of_rows(party: str, job_hash: bytes, mask_key: bytes, digest: bytes) -> bytes:
    """32 bytes by which who holds the same rows in the same order knows that `party` does, too.

    HMAC-SHA-256 of a digest of all ids in order. It differs with the sender and its fresh mask key,
    so no peer can send back what it received, nor can two jobs be linked by it. Whoever holds other
    rows could only try whole lists of ids: it must guess all N, in order, at once. Against a party
    that lies about the rows of its values there is no protection.
    """
    return digest and hmac.digest(digest, job_hash + mask_key + party.encode(), "sha256")


def require_same_rows(peer: str, theirs: bytes, expected: bytes) -> None:
    """Refuse a peer's proof of rows unless it is as expected.

    Raises:
        PeerViolation: its rows are others, or one of both has ids and the other has none.
    """
    if bool(theirs) != bool(expected):
        has, lacks = (peer, "this party") if theirs else ("this party", peer)
        raise PeerViolation(
            f"{has} has ids and {lacks} has rows without ids: nobody can tell whether they are the "
            "same; load all tables from files, or none"
        )
    if not hmac.compare_digest(theirs, expected):
        raise PeerViolation(f"{peer} holds the same number of rows, but others or in another order")


def feature_bound_bits(inputs: Matrix) -> int:
    """The smallest b ≥ 0 such that all features stay within ±2^b."""
    largest = max(float(np.max(np.abs(each), initial=1.0)) for each in values_of(inputs))
    fraction, exponent = frexp(largest)
    # Exact where a logarithm would round: 0.5 is a power of two, anything above is not.
    return exponent - 1 if fraction == 0.5 else exponent  # noqa: PLR2004


def feature_fraction_bits(inputs: Matrix) -> int:
    """The fewest fraction bits that represent all features exactly, at most 32."""
    return max(map(_fraction_bits, values_of(inputs)))


def _fraction_bits(values: FloatArray) -> int:
    scaled = np.ldexp(values, MOST_FRACTION_BITS - 1)
    rounded = np.rint(scaled)
    if not (np.array_equal(scaled, rounded) and np.max(np.abs(scaled), initial=0.0) < _INT64):
        return MOST_FRACTION_BITS
    ones = int(np.bitwise_or.reduce(rounded.astype(np.int64), axis=None)) | 1 << 63
    trailing_zeros = (ones & -ones).bit_length() - 1
    return max(0, MOST_FRACTION_BITS - 1 - trailing_zeros)


async def agree(
    party: Party,
    job_hash: bytes,
    inputs: Matrix,
    test_rows: int,
    *,
    parameters: int | None = None,
    encrypted: bool = True,
    rows_digest: bytes = b"",
    commitments: bytes = b"",
    observers: Collection[str] = (),
) -> Agreement:
    """Introduce this party to all others and check that they run the same job.

    `parameters` is p of a network, whose Jacobians are scaled to ±1. Features of a network, or of a
    job without encryption, are not described. `rows_digest` is that of the party's table.
    `commitments` go to the parties that decrypt this party's gradients. `observers`, such as a
    server without rows, receive the greeting only, and no proof of rows.

    Raises:
        PeerViolation: a peer runs another job, holds other rows or in another order, or opens
            another seed than it committed to.
    """
    sizes = encrypted and parameters is None
    opening = fresh_opening()
    async with party.costs.compute(SETUP):
        mask_key = MaskKey.generate()
        hello = Hello(
            job_hash=job_hash,
            rows=len(inputs),
            test_rows=test_rows,
            columns=inputs.shape[1] if parameters is None else parameters,
            feature_bound_bits=feature_bound_bits(inputs) if sizes else 0,
            feature_fraction_bits=(feature_fraction_bits(inputs) if sizes else MOST_FRACTION_BITS),
            mask_key=mask_key.public_bytes,
            commitments=commitments,
            seed_commitment=commitment(party.name, job_hash, opening) if encrypted else b"",
            proof_of_rows=proof_of_rows(party.name, job_hash, mask_key.public_bytes, rows_digest),
        )
    await tell(party.channel, party.others, hello)
    await tell(party.channel, observers, replace(hello, proof_of_rows=b""))
    hellos = await collect(party.channel, party.others, Hello)
    for name, other in hellos.items():
        _check_same_job(name, other, hello)
        expected = proof_of_rows(name, job_hash, other.mask_key, rows_digest)
        require_same_rows(name, other.proof_of_rows, expected)
    async with party.costs.compute(SETUP):
        keys = {name: other.mask_key for name, other in hellos.items()}
        masks = mask_key.agree(party.name, keys, job_hash)
    committed = {name: other.seed_commitment for name, other in hellos.items()}
    seed = await draw_seed(party, job_hash, opening, committed) if encrypted else b""
    everyone = (hello, *hellos.values())
    return Agreement(
        own_columns=hello.columns,
        columns={name: other.columns for name, other in hellos.items()},
        feature_bound=2.0 ** max(each.feature_bound_bits for each in everyone),
        feature_fraction_bits=max(each.feature_fraction_bits for each in everyone),
        masks=masks,
        commitments={name: other.commitments for name, other in hellos.items()},
        seed=seed,
    )


def _check_same_job(peer: str, theirs: Hello, ours: Hello) -> None:
    if theirs.job_hash != ours.job_hash:
        raise PeerViolation(
            f"{peer} runs another job: hash {theirs.job_hash[:8].hex()}, "
            f"here {ours.job_hash[:8].hex()}"
        )
    for what, there, here in (
        ("training", theirs.rows, ours.rows),
        ("held-out", theirs.test_rows, ours.test_rows),
    ):
        if there != here:
            raise PeerViolation(f"{peer} holds {there} {what} rows, here {here}")
    if theirs.feature_fraction_bits > MOST_FRACTION_BITS:
        raise PeerViolation(
            f"{peer} announces {theirs.feature_fraction_bits} fraction bits, at most "
            f"{MOST_FRACTION_BITS}"
        )
    if theirs.feature_bound_bits > 64:  # noqa: PLR2004
        raise PeerViolation(
            f"{peer} announces features up to 2^{theirs.feature_bound_bits}, at most 2^64"
        )

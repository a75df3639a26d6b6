"""Before the first round: is everyone in the same job, over the same rows?

Learns:
    every party: the others' number of columns and a hash of the job; before encrypted products, the
        power of two that bounds their features, how many fraction bits make these exact (0
        where all are integers), and whether their columns are those of an earlier job. Of a party
        with a network its number of parameters in place of these. Nothing else about rows.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import frexp

import numpy as np

from securevfl.arrays import FloatArray
from securevfl.crypto.masks import MaskKey, PairwiseMasks
from securevfl.errors import PeerViolation
from securevfl.protocols.session.gathering import Party
from securevfl.runtime.channel import collect
from securevfl.runtime.costs import SETUP
from securevfl.sparse import Matrix, values_of
from securevfl.wire.codec import Message, message_kind

MOST_FRACTION_BITS = 32
COMMITMENT_BYTES = 16
_INT64 = 2.0**63


@message_kind(0, stage="setup")
class Hello(Message):
    """Set-up, everyone to everyone: is this the same job, over the same rows?

    `feature_bound_bits` b says that the sender's features stay within ±2^b: products are sized
    by it. With `feature_fraction_bits` behind the point they are exact (32: not with fewer).
    `mask_key` is a fresh X25519 public key. `commitments` are keyed hashes of the sender's scaled
    columns of every fixed batch, so that a record of what was revealed knows them again.
    """

    job_hash: bytes
    rows: int
    test_rows: int
    columns: int
    feature_bound_bits: int
    feature_fraction_bits: int
    mask_key: bytes
    commitments: bytes


@dataclass(frozen=True)
class Agreement:
    """What the parties know of each other when training starts.

    Attributes:
        own_columns: P of this party, constant columns included, or a network's p.
        columns: the same of every other party.
        feature_bound: no party's features leave ±feature_bound.
        feature_fraction_bits: with so many, all features are exact; 32 if they are not with fewer.
        commitments: of every other party, 16 bytes for each fixed batch, or none.
    """

    own_columns: int
    columns: Mapping[str, int]
    feature_bound: float
    feature_fraction_bits: int
    masks: PairwiseMasks
    commitments: Mapping[str, bytes]


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
    commitments: bytes = b"",
    observers: Collection[str] = (),
) -> Agreement:
    """Introduce this party to all others and check that they run the same job.

    `parameters` are p of a network, whose Jacobians are brought within ±1 and rounded. A network's
    features, and those of a job that is not `encrypted`, stay unmentioned. `commitments` are to
    this party's columns, for those who decrypt its gradients. `observers` are told without
    answering: a server checks, and holds no rows.

    Raises:
        PeerViolation: a peer runs another job, or holds another number of rows.
    """
    sizes = encrypted and parameters is None
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
        )
    for name in (*party.others, *observers):
        await party.channel.send(name, hello)
    hellos = await collect(party.channel, party.others, Hello)
    for name, other in hellos.items():
        _check_same_job(name, other, hello)
    async with party.costs.compute(SETUP):
        keys = {name: other.mask_key for name, other in hellos.items()}
        masks = mask_key.agree(party.name, keys, job_hash)
    everyone = (hello, *hellos.values())
    return Agreement(
        own_columns=hello.columns,
        columns={name: other.columns for name, other in hellos.items()},
        feature_bound=2.0 ** max(each.feature_bound_bits for each in everyone),
        feature_fraction_bits=max(each.feature_fraction_bits for each in everyone),
        masks=masks,
        commitments={name: other.commitments for name, other in hellos.items()},
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

"""Before new rows are scored: parts of the same model, and the same rows in the same order?

Learns:
    every party: the others' hash of the job that their part was trained in, its rounds, the number
        of rows and a hash over their ids. These say whether all is the same, and nothing where it
        is: each knows its own.
"""

from securevfl.crypto.masks import MaskKey, PairwiseMasks
from securevfl.errors import PeerViolation
from securevfl.models.storage import ModelHeader
from securevfl.protocols.session.party import Party
from securevfl.runtime.channel import collect
from securevfl.runtime.costs import SETUP
from securevfl.wire.codec import Message, message_kind


@message_kind(55, stage="setup")
class ScoringHello(Message):
    """Everyone to everyone: which model, and which rows.

    `rows_hash` is SHA-256 over the ids in their order; `mask_key` a fresh X25519 public key.
    """

    job_hash: bytes
    rounds: int
    rows: int
    rows_hash: bytes
    mask_key: bytes


async def agree_on_rows(
    party: Party, header: ModelHeader, rows: int, rows_hash: bytes
) -> PairwiseMasks:
    """Introduce this party to all others, and check that they score the same.

    Args:
        party: who it is.
        header: of its part of the model.
        rows: how many it scores.
        rows_hash: SHA-256 over their ids.

    Returns:
        Masks for this scoring alone.

    Raises:
        PeerViolation: a peer's part is of another model, or its rows are others.
    """
    async with party.costs.compute(SETUP):
        mask_key = MaskKey.generate()
        job_hash = bytes.fromhex(header.job_hash)
        hello = ScoringHello(job_hash, header.rounds, rows, rows_hash, mask_key.public_bytes)
    for name in party.others:
        await party.channel.send(name, hello)
    hellos = await collect(party.channel, party.others, ScoringHello)
    for name, other in hellos.items():
        _check_same(name, other, hello)
    async with party.costs.compute(SETUP):
        keys = {name: other.mask_key for name, other in hellos.items()}
        return mask_key.agree(party.name, keys, rows_hash)


def _check_same(peer: str, theirs: ScoringHello, ours: ScoringHello) -> None:
    if theirs.job_hash != ours.job_hash:
        raise PeerViolation(
            f"{peer} scores with a part of another model: of job {theirs.job_hash[:8].hex()}, "
            f"here {ours.job_hash[:8].hex()}"
        )
    if theirs.rounds != ours.rounds:
        raise PeerViolation(
            f"{peer} scores with a part after {theirs.rounds} rounds, here {ours.rounds}"
        )
    if theirs.rows != ours.rows:
        raise PeerViolation(f"{peer} scores {theirs.rows} rows, here {ours.rows}")
    if theirs.rows_hash != ours.rows_hash:
        raise PeerViolation(f"{peer} scores {theirs.rows} rows, but others or in another order")

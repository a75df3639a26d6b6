"""A party's exchange of components, and how held-out rows are scored, ready for the first round."""

from collections.abc import Callable
from dataclasses import dataclass

from securevfl.arrays import FloatArray
from securevfl.crypto.scheme import KeyOwner
from securevfl.protocols.exchange import GivesSingly, HoldsKeys, Session
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.agreement import Agreement
from securevfl.protocols.session.keys import KeyMaker, exchange_keys
from securevfl.protocols.session.label_guard import LeakageCount
from securevfl.protocols.session.party import Party
from securevfl.protocols.session.privacy_account import Noise
from securevfl.protocols.session.scoring import GivesHeldOut, ScoresHeldOut
from securevfl.protocols.transfer.encrypted import EncryptedSide, product_format
from securevfl.protocols.transfer.encrypted_scores import (
    EncryptedFeatureScores,
    EncryptedLabelScores,
    score_format,
)
from securevfl.protocols.transfer.in_clear import ClearFeatureScores, ClearLabelScores, ClearSide
from securevfl.protocols.transfer.settings import settings_of
from securevfl.protocols.transfer.steps import Side


@dataclass(frozen=True)
class Ready:
    """What a party trains and scores with.

    Attributes:
        side: of the exchange.
        gives_held_out: the feature party's side of scoring.
        scores_held_out: the label party's.
        key: its own homomorphic key, if it has one.
    """

    side: Side
    gives_held_out: GivesHeldOut
    scores_held_out: ScoresHeldOut
    key: KeyOwner | None = None


def in_clear(party: Party, plan: Plan, phi: Callable[[], FloatArray], noise: Noise | None) -> Ready:
    """Everything in clear; steps as encryption has them where the job says gauss-newton.

    Args:
        party: who it is.
        plan: of the job.
        phi: Φ at the weights now, asked of the label party only.
        noise: what this party adds, where the exchange adds noise.
    """
    assert isinstance(plan.exchange, GivesSingly)  # noqa: S101
    release = plan.exchange.release(noise)
    side = ClearSide(party, linearized=plan.rule.gauss_newton, release=release)
    gives = ClearFeatureScores(party, plan.exchange.release(noise, "held-out predictions"))
    # Another release of Φ would cost more noise.
    return Ready(side, gives, ClearLabelScores(party, phi if release is None else side.given_phi))


async def under_encryption(
    party: Party,
    plan: Plan,
    phi: Callable[[], FloatArray],
    agreement: Agreement,
    *,
    leakage: LeakageCount,
    keys: KeyMaker,
) -> Ready:
    """Both components under encryption, and φ.

    Args:
        party: who it is.
        plan: of the job.
        phi: Φ at the weights now, asked of the label party only.
        agreement: what the parties told each other.
        leakage: counts what the gradients under this party's key reveal.
        keys: makes homomorphic keys.

    Raises:
        RangeExceeded: products could overflow; before any key is made.
        PeerViolation: a peer's key does not fit.
    """
    settings, units = plan.job.exchange, settings_of(plan).units
    columns = {name: values // units for name, values in agreement.columns.items()}
    fmt = product_format(plan, max(agreement.own_columns // units, *columns.values()))
    assert isinstance(plan.exchange, HoldsKeys)  # noqa: S101
    session = Session(party, plan, agreement, leakage, keys)
    own_key, peers = await plan.exchange.keys(session, fmt, columns)
    assert own_key is not None  # noqa: S101
    (peer_key,) = peers.values()
    side, own = EncryptedSide(party, own_key, peer_key), own_key.owner
    if not plan.timetable.test_rows:
        return Ready(side, ClearFeatureScores(party), ClearLabelScores(party, phi), own)
    scoring = score_format(plan, units)
    owners = (party.label_party,)
    owner, ends = await exchange_keys(party, settings, scoring, owners=owners, keys=keys)
    if owner is not None:
        label_scores = EncryptedLabelScores(party, owner, scoring, phi)
        return Ready(side, ClearFeatureScores(party), label_scores, own)
    gives = EncryptedFeatureScores(party, ends[party.label_party], scoring)
    return Ready(side, gives, ClearLabelScores(party, phi), own)

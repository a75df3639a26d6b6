"""Who shares whose parameters with whom."""

from dataclasses import dataclass

from securevfl.protocols.session.party import Party


@dataclass(frozen=True)
class Link:
    """Two parties that share θ_k.

    Attributes:
        owner: k, who holds X_k and learns θ_k at the end.
        holder: who holds the other share, and a homomorphic key.
    """

    owner: str
    holder: str


def partner_of(party: Party) -> str:
    """The first feature party, which computes residuals with the label party."""
    return party.feature_parties[0]


def computing_parties(party: Party) -> tuple[str, str]:
    """The two that compute residuals: the label party and its partner."""
    return party.label_party, partner_of(party)


def links_of(party: Party) -> tuple[Link, ...]:
    """One for each party: the label party holds for all others, and its partner for it."""
    label_party, partner = computing_parties(party)
    return tuple(
        Link(name, partner if name == label_party else label_party) for name in party.names
    )


def owners_held_by(party: Party) -> tuple[str, ...]:
    """Of whose parameters this party holds the other share."""
    return tuple(each.owner for each in links_of(party) if each.holder == party.name)


def holder_of(party: Party) -> str:
    """Who holds the other share of this party's parameters."""
    return next(each.holder for each in links_of(party) if each.owner == party.name)

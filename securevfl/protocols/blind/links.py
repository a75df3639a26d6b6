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


def links_of(party: Party) -> tuple[Link, ...]:
    """One for each party: the label party holds for all others, and the first of them for it."""
    label_party, others = party.label_party, party.feature_parties
    return tuple(
        Link(name, others[0] if name == label_party else label_party) for name in party.names
    )

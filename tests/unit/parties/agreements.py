"""Agreements between a bank, which holds the labels, and a shop."""

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from securevfl.parties.agreement import Agreement, parse_agreement
from securevfl.parties.identity import Identity, public_text

BANK, SHOP, TELCO = (
    Identity(Ed25519PrivateKey.from_private_bytes(bytes([seed] * 32))) for seed in range(3)
)
RELAY = '[links]\nrelay = "wss://relay.example"\n'


def party(name: str, role: str, identity: Identity, more: str = "") -> str:
    public = public_text(identity.public)
    return f'[[party]]\nname = "{name}"\nrole = "{role}"\nidentity = "{public}"\n{more}\n'


TEXT = (
    '[job]\nname = "credit"\nrounds = 20\n\n[exchange]\nscheme = "bfv"\n'
    + party("bank", "label", BANK, 'address = "ws://bank.example:7000"')
    + party("shop", "feature", SHOP)
)


def changed(old: str, new: str) -> str:
    assert TEXT.count(old) == 1
    return TEXT.replace(old, new)


def of(text: str) -> Agreement:
    return parse_agreement(text.encode())

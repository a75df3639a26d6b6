"""A new identity for a party, which the old one has signed, so that peers can take it over."""

import base64
import binascii
import tomllib

from securevfl.errors import ConfigError
from securevfl.files import toml_tables
from securevfl.parties.agreement import shown
from securevfl.parties.identity import Identity, parse_public, public_text, verify

SIGNED = "rotate"
"""The context of signatures."""


def rotation(name: str, old: Identity) -> tuple[Identity, str]:
    """A new identity, and the line by which peers know that it is the same party's."""
    new = Identity.generate()
    signature = base64.urlsafe_b64encode(old.sign(SIGNED, _said(name, old.public, new.public)))
    return new, ":".join(
        (name, public_text(old.public), public_text(new.public), signature.decode().rstrip("="))
    )


def confirmed(text: str, line: str) -> tuple[str, str]:
    """An agreement's text with a peer's new identity, and the peer's name.

    Raises:
        ConfigError: no line of `rotation`, or the old identity is not once in the text.
        PeerNotTrusted: the old identity has not signed the new one.
    """
    try:
        name, old_text, new_text, signed = line.strip().split(":")
        signature = base64.urlsafe_b64decode(signed + "==")
    except (ValueError, binascii.Error) as error:
        raise ConfigError("no line that securevfl party rotate prints") from error
    old, new = parse_public(old_text), parse_public(new_text)
    verify(old, SIGNED, _said(name, old, new), signature, f"party {shown(name)!r}")
    try:
        parties = toml_tables(text).get("party", [])
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"the job is not TOML: {error}") from error
    if (name, old_text) not in [(each.get("name"), each.get("identity")) for each in parties]:
        raise ConfigError(f"the old identity is not that of {shown(name)!r} in the job")
    quoted = f'"{old_text}"'
    if text.count(quoted) != 1:
        raise ConfigError(f"the old identity {old_text} is {text.count(quoted)} times in the job")
    return text.replace(quoted, f'"{new_text}"'), name


def _said(name: str, old: bytes, new: bytes) -> bytes:
    return old + new + name.encode()

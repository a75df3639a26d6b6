"""The agreement: a job file with the parties' identities, the same bytes at all parties.

It says what is trained and how, who takes part, and where parties reach one another. What a party
keeps to itself is in its own file (`own_file`). Each party signs the bytes.
"""

import hashlib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from securevfl.errors import ConfigError, DataError, PeerNotTrusted
from securevfl.files import private_folder, reading, replace_file, toml_tables
from securevfl.job import DataSettings, Job, check_job
from securevfl.parties.identity import Identity, parse_public, public_text, verify

MOST_BYTES, MOST_BYTES_A_LINE = 1 << 16, 1 << 12
MOST_SHOWN, MOST_DIFFERENCES = 80, 20
SIGNED = "agreement"
"""The context of signatures."""
SIGNATURES = "signatures.json"
OWN_KEYS = frozenset({*DataSettings.model_fields, "preprocess"})
BARE = re.compile(r"[A-Za-z0-9_-]+")
_KEPT = TypeAdapter(dict[str, str])


@dataclass(frozen=True)
class Agreement:
    """What the parties of a job agree on.

    Attributes:
        text: the bytes of the file.
        job: the job in it.
        identities: public key of each party, in the job's order.
        addresses: where parties are reached, of those that listen.
        relay: address of the relay through which the others meet.
    """

    text: bytes
    job: Job
    identities: Mapping[str, bytes]
    addresses: Mapping[str, str]
    relay: str | None

    @property
    def hash(self) -> bytes:
        """SHA-256 of the text."""
        return hashlib.sha256(self.text).digest()

    @property
    def meeting_point(self) -> bytes:
        """Under which the parties meet: of their names and keys and the job's name alone.

        So parties whose agreements differ meet, too, and can say in what.
        """
        parties = [self.job.job.name, *(f"{n} {key.hex()}" for n, key in self.identities.items())]
        return hashlib.sha256(b"meeting point|" + "|".join(sorted(parties)).encode()).digest()

    @property
    def names(self) -> tuple[str, ...]:
        """The parties, in the job's order."""
        return tuple(self.identities)

    @property
    def label_party(self) -> str:
        """The party that holds the labels."""
        return next(party.name for party in self.job.party if party.role == "label")

    def outward(self, own: str) -> dict[str, str | None]:
        """Where a party connects to, by peer; the other peers connect to it.

        Of two parties with addresses the one whose name sorts first connects; two without any meet
        at the relay.
        """
        listens = own in self.addresses
        return {
            name: self.addresses.get(name, self.relay)
            for name in self.names
            if name != own and not (listens and (name not in self.addresses or name < own))
        }

    def require_own(self, name: str, identity: Identity) -> None:
        """Check that a party takes part, under this identity; otherwise a ConfigError."""
        if name not in self.identities:
            raise ConfigError(f"party {name!r} is not in the agreement ({', '.join(self.names)})")
        if self.identities[name] != identity.public:
            raise ConfigError(
                f"party {name!r}: the agreement has identity {public_text(self.identities[name])}, "
                f"the key file {public_text(identity.public)}"
            )


def read_agreement(path: Path) -> Agreement:
    """Read an agreement; a DataError if it cannot be read, otherwise see `parse_agreement`."""
    with reading(f"agreement {path}"), path.open("rb") as file:
        text = file.read(MOST_BYTES + 1)
    return parse_agreement(text, str(path))


def parse_agreement(text: bytes, where: str = "agreement") -> Agreement:
    """Parse and validate the bytes of an agreement, which may come from a peer.

    Raises:
        ConfigError: no job; parties without an identity, or two with the same; two parties that
            cannot reach each other; anything that is a party's own affair; one line.
    """
    try:
        job = Job.of_file(_tables(text))
        identities = _identities(job)
        check_job(job)
        _refuse_own_affairs(job)
        addresses = {each.name: each.address for each in job.party if each.address is not None}
        if job.links.relay is None:
            _require_addresses(tuple(identities), addresses)
    except RecursionError as error:
        raise ConfigError(f"{where}: nested too deeply") from error
    except ValueError as error:  # so are our own errors; pydantic and json have more
        raise ConfigError(f"{where}: {shown(str(error), 400)}") from error
    return Agreement(text, job, identities, addresses, job.links.relay)


def differences(ours: bytes, theirs: bytes) -> list[str]:
    """The keys in which two agreements differ, one a line, with both values.

    What the peer wrote is escaped and cut. The list is empty for equal bytes only.
    """
    if ours == theirs:
        return []
    try:
        here, there = dict(_flat(_tables(ours))), dict(_flat(_tables(theirs)))
    except RecursionError:
        return ["theirs is nested too deeply"]
    except ValueError as error:
        return [f"theirs cannot be read: {shown(str(error))}"]
    found = [
        f"{shown(key)}: {_beside(here.get(key), there.get(key))} here, "
        f"{_beside(there.get(key), here.get(key))} there"
        for key in dict.fromkeys((*here, *there))
        if here.get(key) != there.get(key)
    ]
    if not found:
        return ["all keys are equal, but not the bytes: comments, order or layout differ"]
    more = len(found) - MOST_DIFFERENCES
    return found if more <= 0 else [*found[:MOST_DIFFERENCES], f"and {more} more keys"]


def shown(text: str, most: int = MOST_SHOWN) -> str:
    """Text of a peer for a terminal: control characters escaped, and cut to `most` characters."""
    start = text[: most + 1]
    safe = "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in start
    )
    return safe if len(safe) <= most else f"{safe[: most - 1]}…"


def sign_agreement(agreement: Agreement, identity: Identity) -> bytes:
    """A party's signature of the agreement's bytes."""
    return identity.sign(SIGNED, agreement.text)


def require_signature(agreement: Agreement, name: str, signature: bytes) -> None:
    """Check a party's signature of the agreement; a PeerNotTrusted if it is not that."""
    verify(agreement.identities[name], SIGNED, agreement.text, signature, f"party {name!r}")


def folder_of(state: Path, agreement: Agreement) -> Path:
    """The folder for what a party keeps about an agreement, within its state."""
    return state / agreement.hash.hex()[:32]


def read_signatures(state: Path, agreement: Agreement) -> dict[str, bytes]:
    """The signatures that a party has collected, by party; empty if none.

    Raises:
        DataError: the file cannot be read, is damaged, or has a signature that is not the party's.
    """
    path = folder_of(state, agreement) / SIGNATURES
    try:
        kept = _KEPT.validate_json(path.read_bytes(), strict=True)
        signatures = {name: bytes.fromhex(each) for name, each in kept.items()}
        for name, each in signatures.items():
            require_signature(agreement, name, each)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise DataError(f"signatures {path} cannot be read: {error.strerror}") from error
    except (ValidationError, ValueError, KeyError, PeerNotTrusted) as error:
        raise DataError(f"signatures {path} are damaged: remove the file and sign again") from error
    return signatures


def keep_signature(state: Path, agreement: Agreement, name: str, signature: bytes) -> None:
    """Add a party's signature to those kept.

    Raises:
        PeerNotTrusted: it is not the party's signature of this agreement.
        DataError: the file is damaged, or cannot be written.
    """
    require_signature(agreement, name, signature)
    kept = {**read_signatures(state, agreement), name: signature}
    text = json.dumps({each: kept[each].hex() for each in agreement.names if each in kept})
    folder = folder_of(state, agreement)
    private_folder(folder, "state folder")
    replace_file(folder / SIGNATURES, text.encode(), "signatures")


def _tables(text: bytes) -> dict[str, Any]:
    if len(text) > MOST_BYTES:
        raise ConfigError(f"over {MOST_BYTES} bytes")
    if max(map(len, text.split(b"\n"))) > MOST_BYTES_A_LINE:
        # The time that tomllib takes for a dotted key grows with the square of its length.
        raise ConfigError(f"a line of over {MOST_BYTES_A_LINE} bytes")
    try:
        tables = toml_tables(text.decode())
    except UnicodeDecodeError as error:
        raise ConfigError("not UTF-8 text") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"not TOML: {error}") from error
    # People read it before they sign; a peer who proposes it must not steer their terminal.
    for each in (*text.decode().split("\n"), *_strings(tables)):
        if not each.removesuffix("\r").replace("\t", " ").isprintable():
            raise ConfigError(f"characters that do not print: {shown(each)}")
    return tables


def _identities(job: Job) -> dict[str, bytes]:
    if job.job.dataset is not None:
        raise ConfigError("job.dataset: parties of different organizations train on their own data")
    if not job.party:
        raise ConfigError("no [[party]]: an agreement names each party and its identity")
    found: dict[str, bytes] = {}
    for party in job.party:
        if party.identity is None:
            raise ConfigError(
                f"party {party.name!r}: identity is missing; `securevfl party invite` adds it"
            )
        public = parse_public(party.identity)
        for other, known in found.items():
            if known == public:
                raise ConfigError(f"parties {other!r} and {party.name!r} have the same identity")
        found[party.name] = public
    return found


def _refuse_own_affairs(job: Job) -> None:
    """Refuse what is in each party's own file: no path, column or file name stands here."""
    said = [
        f"[[party]] {party.name}: {key}"
        for party in job.party
        for key in sorted(OWN_KEYS & party.model_fields_set)
    ]
    said += ["[preprocess]"] if job.preprocess is not None else []
    said += ["output.directory"] if "directory" in job.output.model_fields_set else []
    said += ["exchange.workers"] if "workers" in job.exchange.model_fields_set else []
    for each in said:
        raise ConfigError(f"{each}: belongs in the party's own file, which nobody else sees")


def _require_addresses(names: tuple[str, ...], addresses: Mapping[str, str]) -> None:
    for pair in combinations(names, 2):
        if not addresses.keys() & set(pair):
            raise ConfigError(
                f"parties {pair[0]!r} and {pair[1]!r} cannot reach each other: give one of them an "
                "address, or [links] relay"
            )


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value:
            yield from _strings(each)
        if isinstance(value, dict):
            yield from _strings(list(value.values()))


def _flat(value: object, place: str = "") -> Iterator[tuple[str, str]]:
    """Every key with its value as text; parties by name, not by number."""
    if isinstance(value, dict) and value:
        for key, each in value.items():
            name = key if BARE.fullmatch(key) else json.dumps(key)
            yield from _flat(each, f"{place}.{name}" if place else name)
    elif isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
        names = [str(each.get("name")) for each in value]
        by_name = len(set(names)) == len(names)
        numbered = {(names[at] if by_name else str(at)): each for at, each in enumerate(value)}
        yield from _flat(numbered, place)
    else:
        yield place, json.dumps(value, ensure_ascii=False, default=str)


def _beside(value: str | None, other: str | None) -> str:
    """A value cut so that it shows where it differs from the other."""
    if value is None or other is None:
        return "not set" if value is None else shown(value)
    start = next((at for at, (a, b) in enumerate(zip(value, other, strict=False)) if a != b), 0)
    return shown(value if start < MOST_SHOWN // 2 else f"…{value[start - MOST_SHOWN // 4 :]}")

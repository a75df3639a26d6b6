"""An invitation: organizations that share nothing but a spoken code come to one signed agreement.

The proposer has a draft: a job in which parties have names and roles. Each party without an
identity gets a code of 51 bits, good for ten minutes, five tries and one use (see `talk`). When all
have joined, their identities are written into the draft; each sees what it says and signs it, or
nobody keeps it.

Learns:
    joiner: the draft with all identities and addresses, and everybody's signatures.
    inviter: each joiner's public key, address and signature.

Both ends show six words over both keys and the agreement (77 bits). Whoever stands between them has
one guess: each end commits to a number of its own before it sees the other's, and the words follow
from both. Whoever knows a nameplate, which has five digits, can use up the tries of its code.
"""

import asyncio
import hashlib
import json
import re
import secrets
import tomllib
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Mapping,
)
from contextlib import asynccontextmanager, suppress
from typing import Any, Literal, TypeVar

from pydantic import Field

from securevfl.errors import (
    ConfigError,
    PeerError,
    PeerNotTrusted,
    PeerUnreachable,
    PeerViolation,
)
from securevfl.files import toml_tables
from securevfl.job import Job, parse_job
from securevfl.parties.agreement import (
    Agreement,
    parse_agreement,
    require_signature,
    sign_agreement,
)
from securevfl.parties.door import Refused, Stream, meet_by_nameplate, serve_nameplates
from securevfl.parties.identity import Identity, public_text, words_of
from securevfl.parties.meeting import Control
from securevfl.parties.talk import Code, Over, Talk, shake_hands

T = TypeVar("T")
TRIES = 5
INVITED_SECONDS, JOIN_SECONDS, AGAIN_SECONDS = 600.0, 20.0, 1.0
BUSY_SECONDS = (0.2, 0.5, 1.0)
_HEX_32 = r"^[0-9a-f]{64}$"
_SECTION, _PARTY = re.compile(r"\s*\["), re.compile(r"\s*\[\[\s*party\s*\]\]")
_NAME = re.compile(r"\s*name\s*=")
_GONE = "the code has expired, has been used, or is mistyped"


class Joined(Control):
    """Joiner to inviter: who it is, and where it can be reached, if anywhere."""

    kind: Literal["joined"] = "joined"
    name: str = Field(max_length=256)
    address: str | None = Field(max_length=1024)
    proof: str = Field(max_length=128)


class Proposed(Control):
    """Inviter to joiner: the agreement, and a commitment to a number for the six words."""

    kind: Literal["proposed"] = "proposed"
    text: str
    commitment: str = Field(pattern=_HEX_32)
    proof: str = Field(max_length=128)


class Number(Control):
    """Each to the other: its number for the six words, 32 bytes; the joiner first."""

    kind: Literal["number"] = "number"
    number: str = Field(pattern=_HEX_32)


class Signatures(Control):
    """Signatures of the agreement in hex, by party: the joiner's, and then everybody's."""

    kind: Literal["signatures"] = "signatures"
    by_party: dict[str, str]


class Kept(Control):
    """The joiner has kept the agreement."""

    kind: Literal["kept"] = "kept"


def names_without_identity(draft: Job) -> list[str]:
    """The parties that a draft does not know yet."""
    return [party.name for party in draft.party if party.identity is None]


def completed(text: str, joined: Mapping[str, tuple[bytes, str | None]]) -> str:
    """A draft with identities, and with addresses that it lacks.

    Each becomes a line after its party's name; all else stays as it is.

    Raises:
        ConfigError: the draft is laid out so that this cannot be.
    """
    tables = toml_tables(text)
    added = [_added(party, joined) for party in tables.get("party", [])]
    for party, keys in zip(tables.get("party", []), added, strict=True):
        party.update(keys)
    lines, place, within = [], -1, False
    for line in text.splitlines(keepends=True):
        lines.append(line)
        if _SECTION.match(line):
            within = bool(_PARTY.match(line))
            place += within
        elif within and _NAME.match(line) and place < len(added):
            end = "\r\n" if line.endswith("\r\n") else "\n"
            lines[-1] = line.rstrip("\r\n") + end
            lines += [f"{key} = {json.dumps(value)}{end}" for key, value in added[place].items()]
    found = "".join(lines)
    try:
        same = toml_tables(found) == tables
    except tomllib.TOMLDecodeError:
        same = False
    if not same:
        raise ConfigError(
            "identities cannot be written into the draft: begin every party with a line [[party]] "
            'and give its name a line of its own, name = "…"'
        )
    return found


def _added(
    party: Mapping[str, Any], joined: Mapping[str, tuple[bytes, str | None]]
) -> dict[str, str]:
    if party["name"] not in joined:
        return {}
    public, address = joined[party["name"]]
    keys = {"identity": public_text(public)}
    if address is not None and "address" not in party:
        keys["address"] = address
    return keys


Agree = Callable[[Agreement, Mapping[str, str]], Awaitable[bool]]
"""Shows a person what an agreement says, with the six words by peer; whether it is accepted."""


@asynccontextmanager
async def _visitors(
    codes: Mapping[str, Code], listen: str | None, proxy: str | None, say: Callable[[str], None]
) -> AsyncIterator[Callable[[str], Awaitable[Stream]]]:
    """Yields a function that waits for the next visitor with the code of a party.

    At a door of one's own if `listen` says where, else at the relay of the codes.
    """
    if listen is None:

        async def met(name: str) -> Stream:
            code, told = codes[name], ""
            while True:
                try:
                    return await meet_by_nameplate(code.url, code.salt, inviter=True, proxy=proxy)
                except PeerUnreachable as error:
                    if str(error) != told:  # ten minutes of tries are one line
                        told = str(error)
                        say(f"waits for {name}: {told}")
                    await asyncio.sleep(AGAIN_SECONDS)  # a relay may still see the last visitor

        yield met
        return
    plates = {name: code.salt for name, code in codes.items()}
    async with serve_nameplates(listen, plates.values(), say) as next_joiner:
        yield lambda name: next_joiner(plates[name])


async def _joined(
    name: str,
    code: Code,
    next_visitor: Callable[[str], Awaitable[Stream]],
    identity: Identity,
    say: Callable[[str], None],
) -> tuple[Talk, str | None]:
    """Wait until a party has joined; a PeerNotTrusted after five wrong tries of its code."""
    for tried in range(1, TRIES + 1):
        stream = await next_visitor(name)
        try:
            talk = await shake_hands(stream, identity, code, name, inviter=True)
            told = await talk.receive(Joined)
            talk.require(told.proof)
            if told.name != name:
                await talk.send(Over(why="named"))
                raise PeerViolation(f"{name}: whoever joined has another name in its own file")
        except (PeerError, TimeoutError) as error:
            say(f"{error or f'{name} is too slow'} (try {tried} of {TRIES})")
            await stream.close()
            continue
        say(f"{name} has joined")
        return talk, told.address
    raise PeerNotTrusted(f"{TRIES} tries of the code for {name}: the invitation ends, invite again")


async def invite(
    draft: str,
    own: tuple[str, str | None],
    identity: Identity,
    codes: Mapping[str, Code],
    agree: Agree,
    *,
    listen: str | None,
    proxy: str | None,
    say: Callable[[str], None],
    opened: Callable[[], None],
) -> tuple[Agreement, dict[str, bytes]]:
    """Wait for all who get codes, and come to an agreement with them.

    Args:
        draft: text of a job with names and roles.
        own: this party's name, and its address if it has one.
        identity: its key.
        codes: by party.
        agree: asks the person here, while the others are asked too.
        listen: where this party listens for them; None if they meet at a relay.
        proxy: for connections outward.
        say: takes a line an event.
        opened: called once joiners may come; codes are to be told no earlier.

    Returns:
        The agreement and everybody's signatures.

    Raises:
        ConfigError: nobody joins in time, or the draft and identities make no agreement.
        PeerError: a party leaves, or does not accept it.
    """
    async with _visitors(codes, listen, proxy, say) as next_visitor:
        opened()
        try:
            async with asyncio.timeout(INVITED_SECONDS):
                found = await _all(
                    {
                        name: _joined(name, code, next_visitor, identity, say)
                        for name, code in codes.items()
                    }
                )
        except TimeoutError as error:
            raise ConfigError("not all have joined in ten minutes: invite again") from error
        given = {name: (talk.other, address) for name, (talk, address) in found.items()}
        if own[0] in names_without_identity(parse_job(draft)):
            given[own[0]] = identity.public, own[1]
        agreement = parse_agreement(completed(draft, given).encode())
        talks = {name: talk for name, (talk, _) in found.items()}
        try:
            words = await _all({n: _propose(t, agreement, identity) for n, t in talks.items()})
            await _accepted(agree, agreement, words)
            signatures = await _all({n: _signature(t, agreement) for n, t in talks.items()})
            signatures[own[0]] = sign_agreement(agreement, identity)
            every = Signatures(by_party={n: each.hex() for n, each in signatures.items()})
            for talk in talks.values():
                await talk.send(every)
            await _all({n: t.receive(Kept) for n, t in talks.items()})
        except (ConfigError, PeerError) as error:
            over = Over(why="declined" if isinstance(error, ConfigError) else "ended")
            for talk in talks.values():
                with suppress(PeerError):
                    await talk.send(over)
            raise
        finally:
            for talk in talks.values():
                await talk.stream.close()
    return agreement, signatures


async def _propose(talk: Talk, agreement: Agreement, identity: Identity) -> str:
    """Send the agreement; the six words, from numbers that neither end could choose."""
    number = secrets.token_hex(32)
    commitment = hashlib.sha256(number.encode()).hexdigest()
    text, proof = agreement.text.decode(), talk.prove(identity)
    await talk.send(Proposed(text=text, commitment=commitment, proof=proof))
    theirs = await talk.receive(Number)
    await talk.send(Number(number=number))
    return words_over(talk, agreement, number, theirs.number)


def words_over(talk: Talk, agreement: Agreement, *numbers: str) -> str:
    """Six words over both keys, the agreement and the two ends' numbers, the inviter's first."""
    keys = b"".join(sorted((talk.own, talk.other)))
    return words_of(keys + agreement.hash + b"".join(map(bytes.fromhex, numbers)))


async def _signature(talk: Talk, agreement: Agreement) -> bytes:
    signed = await talk.receive(Signatures)
    return _checked(agreement, [talk.who], signed)[talk.who]


def _checked(agreement: Agreement, names: Iterable[str], signed: Signatures) -> dict[str, bytes]:
    found = {}
    for name in names:
        try:
            found[name] = bytes.fromhex(signed.by_party.get(name, ""))
        except ValueError as error:
            raise PeerViolation(f"no signature of {name}") from error
        require_signature(agreement, name, found[name])
    return found


async def join(
    code: Code,
    own: tuple[str, str | None],
    identity: Identity,
    agree: Agree,
    keep: Callable[[Agreement, Mapping[str, bytes]], None],
    *,
    proxy: str | None,
) -> Agreement:
    """Come to an agreement with whoever gave this code.

    Args:
        code: as it was told.
        own: this party's name, and its address if it has one.
        identity: its key.
        agree: asks the person here.
        keep: writes the agreement with all signatures; called before the inviter hears of it.
        proxy: for connections outward.

    Raises:
        ConfigError: the proposal is no agreement, or is not accepted here.
        PeerNotTrusted: the code is wrong.
        PeerUnreachable: nobody waits with this code.
        PeerError: the inviter, or another party, ends the invitation.
    """
    try:
        async with asyncio.timeout(JOIN_SECONDS):
            stream = await _visit(code, proxy)
    except TimeoutError as error:
        raise PeerUnreachable(f"nobody waits at {code.place}: {_GONE}") from error
    except PeerUnreachable as error:
        raise PeerUnreachable(f"{error}: {_GONE}") from error
    try:
        talk = await shake_hands(stream, identity, code, "the inviter", inviter=False)
        name, address = own
        await talk.send(Joined(name=name, address=address, proof=talk.prove(identity)))
        proposed = await talk.receive(Proposed)
        talk.require(proposed.proof)
        agreement = parse_agreement(proposed.text.encode())
        agreement.require_own(name, identity)
        inviter = next((n for n, key in agreement.identities.items() if key == talk.other), None)
        if inviter is None:
            raise PeerViolation("the inviter is no party of the agreement that it proposes")
        number = secrets.token_hex(32)
        await talk.send(Number(number=number))
        theirs = (await talk.receive(Number)).number
        if hashlib.sha256(theirs.encode()).hexdigest() != proposed.commitment:
            raise PeerViolation("the inviter changed its number for the six words")
        try:
            words = words_over(talk, agreement, theirs, number)
            await _accepted(agree, agreement, {inviter: words})
        except ConfigError:
            await talk.send(Over(why="declined"))
            raise
        own_signature = sign_agreement(agreement, identity)
        await talk.send(Signatures(by_party={name: own_signature.hex()}))
        every = await talk.receive(Signatures)
        keep(agreement, _checked(agreement, agreement.names, every))
        await talk.send(Kept())
    except TimeoutError as error:
        raise PeerUnreachable("the inviter is too slow") from error
    finally:
        await stream.close()
    return agreement


async def _visit(code: Code, proxy: str | None) -> Stream:
    """Reach whoever invites; a PeerUnreachable if nobody can, or it is busy for long."""
    for pause in BUSY_SECONDS:
        try:
            return await meet_by_nameplate(code.url, code.salt, inviter=False, proxy=proxy)
        except Refused:  # the door may still see the last visitor
            await asyncio.sleep(pause)
    return await meet_by_nameplate(code.url, code.salt, inviter=False, proxy=proxy)


async def _accepted(agree: Agree, agreement: Agreement, words: Mapping[str, str]) -> None:
    if not await agree(agreement, words):
        raise ConfigError("the agreement is not accepted here: nothing is kept")


async def _all(waits: Mapping[str, Coroutine[Any, Any, T]]) -> dict[str, T]:
    """Wait for all; the first error ends the others."""
    tasks = {name: asyncio.ensure_future(each) for name, each in waits.items()}
    try:
        return dict(zip(tasks, await asyncio.gather(*tasks.values()), strict=True))
    finally:
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)

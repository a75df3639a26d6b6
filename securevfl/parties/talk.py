"""Talks between two who know one code and nothing else of each other: sealed, keys bound in.

Both make a key of the code (SPAKE2, Abdalla and Pointcheval, CT-RSA 2005), in which whoever guesses
wrong learns only that, and prove their identities to each other. Frames are numbered and sealed by
direction (ChaCha20-Poly1305).

Learns:
    both: the other's public key. Whoever carries the connection: the nameplate, sizes and times.

Not protected: whoever hears the code and is on the way at once can stand between both. Then their
six words differ, which two people notice if they read them to each other.
"""

import asyncio
import hashlib
import hmac
import re
import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, TypeVar

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from pydantic import ValidationError
from spake2 import SPAKE2_A, SPAKE2_B
from spake2.spake2 import SPAKEError
from typing_extensions import override

from securevfl.errors import (
    ConfigError,
    PeerError,
    PeerNotTrusted,
    PeerUnreachable,
    PeerViolation,
)
from securevfl.parties.door import HANDSHAKE_SECONDS, NAMEPLATE_BYTES, Stream
from securevfl.parties.identity import PUBLIC_BYTES, Identity, random_words, verify
from securevfl.parties.meeting import Control

C = TypeVar("C", bound=Control)
WORDS_OF_CODE, DIGITS = 4, 5
_CODE = re.compile(r"(\d{5})-([a-z]+(?:-[a-z]+)*)@(\S+)")
_VERSION = b"securevfl invitation 1"
_WRONG = b"wrong"


@dataclass(frozen=True)
class Code:
    """What an inviter tells one joiner.

    Attributes:
        nameplate: five digits, which whoever carries the connection sees.
        words: four words, which nobody else may know.
        place: HOST:PORT of the inviter or of a relay; wss://… where it is behind a gateway.
    """

    nameplate: str
    words: str
    place: str

    @classmethod
    def new(cls, place: str) -> "Code":
        """A code that nobody can guess."""
        digits = secrets.randbelow(10**DIGITS)
        words = "-".join(random_words(WORDS_OF_CODE))
        return cls(f"{digits:0{DIGITS}}", words, place.removeprefix("ws://"))

    @classmethod
    def parse(cls, text: str) -> "Code":
        """The code of a text; a ConfigError unless it looks like one."""
        found = _CODE.fullmatch(text.strip())
        if found is None:
            raise ConfigError(
                "no code of an invitation: expected 12345-four-words-with-dashes@host:port"
            )
        return cls(*found.groups())

    @override
    def __str__(self) -> str:
        return f"{self.nameplate}-{self.words}@{self.place}"

    @property
    def url(self) -> str:
        """Where to meet."""
        return self.place if "://" in self.place else f"ws://{self.place}"

    @property
    def salt(self) -> bytes:
        """The nameplate, as doors know it."""
        return hashlib.sha256(b"nameplate " + self.nameplate.encode()).digest()[:NAMEPLATE_BYTES]

    @property
    def secret(self) -> bytes:
        """What both ends prove to know."""
        return f"{self.nameplate}-{self.words}".encode()


class Over(Control):
    """The invitation ends without an agreement, and why."""

    kind: Literal["over"] = "over"
    why: Literal["declined", "named", "ended"]


_WHY = {
    "declined": "does not accept the agreement",
    "named": "invites a party of another name with this code",
    "ended": "ends the invitation: another party has left it, or does not accept the agreement",
}


class Talk:
    """Sealed frames between two who know one code; `shake_hands` makes one.

    Attributes:
        who: the other end, for messages.
        own: this end's public key.
        other: the other end's public key.
        transcript: SHA-256 of the handshake, the same at both ends and in no other talk.
    """

    def __init__(
        self,
        stream: Stream,
        who: str,
        identities: tuple[bytes, bytes],
        transcript: bytes,
        keys: Sequence[bytes],
    ) -> None:
        self.stream, self.who = stream, who
        self.own, self.other = identities
        self.transcript = transcript
        self._out, self._in = map(ChaCha20Poly1305, keys)
        self._numbers: Counter[str] = Counter()

    async def send(self, message: Control) -> None:
        """Send a message; a PeerUnreachable if the other end is gone."""
        data = message.model_dump_json().encode()
        with _naming(self.who):
            await self.stream.send(self._out.encrypt(self._nonce("out"), data, _VERSION))

    async def receive(self, kind: type[C]) -> C:
        """The next message.

        Raises:
            PeerUnreachable: the other end is gone.
            PeerViolation: it is not what was sent next on this way, or no such message.
            PeerError: the other end ends the invitation.
        """
        with _naming(self.who):
            sealed = await self.stream.receive()
        try:
            data = self._in.decrypt(self._nonce("in"), sealed, _VERSION)
        except InvalidTag as error:
            raise PeerViolation(f"{self.who}: a frame was changed on the way") from error
        try:
            if kind is not Over and b'"kind":"over"' in data[:16]:
                over = Over.model_validate_json(data)
                raise PeerError(f"{self.who} {_WHY[over.why]}")
            return kind.model_validate_json(data)
        except ValidationError as error:
            raise PeerViolation(f"{self.who} sent no {kind.__name__} where one is due") from error

    def prove(self, identity: Identity) -> str:
        """A signature by which the other end knows that this identity takes part in this talk."""
        return identity.sign("invitation", self.transcript).hex()

    def require(self, proof: str) -> None:
        """Check the other end's; a PeerNotTrusted."""
        try:
            verify(self.other, "invitation", self.transcript, bytes.fromhex(proof), self.who)
        except ValueError as error:
            raise PeerNotTrusted(f"{self.who}: no proof of its identity") from error

    def _nonce(self, way: str) -> bytes:
        number = self._numbers[way]
        self._numbers[way] += 1
        return number.to_bytes(12, "little")


@contextmanager
def _naming(who: str) -> Iterator[None]:
    """Name the other end in errors of its stream."""
    try:
        yield
    except PeerUnreachable as error:
        raise PeerUnreachable(f"{who} {error}") from error


async def shake_hands(
    stream: Stream, identity: Identity, code: Code, who: str, *, inviter: bool
) -> Talk:
    """Make a key of a code, both of which end here if the other end has another code.

    Raises:
        PeerNotTrusted: it has.
        PeerUnreachable, PeerViolation: it is gone, or speaks something else.
    """
    spake = (SPAKE2_A if inviter else SPAKE2_B)(code.secret, b"inviter", b"joiner")
    ours = _VERSION + identity.public + spake.start()
    with _naming(who):
        async with asyncio.timeout(HANDSHAKE_SECONDS):
            if not inviter:  # who guesses commits first
                await stream.send(ours)
            theirs = await stream.receive()
            if inviter:
                await stream.send(ours)
    if len(theirs) != len(ours) or not theirs.startswith(_VERSION):
        raise PeerViolation(f"{who} speaks another version of invitations")
    at = len(_VERSION)
    other = theirs[at : at + PUBLIC_BYTES]
    try:
        secret = spake.finish(theirs[at + PUBLIC_BYTES :])
    except (SPAKEError, ValueError) as error:
        raise PeerViolation(f"{who} sent no key of an invitation") from error
    transcript = hashlib.sha256(ours + theirs if inviter else theirs + ours).digest()
    made = HKDF(SHA256(), 128, transcript, _VERSION).derive(secret)
    keys = [made[place : place + 32] for place in range(0, 128, 32)]
    confirms = keys[:2] if inviter else keys[1::-1]
    with _naming(who):
        async with asyncio.timeout(HANDSHAKE_SECONDS):
            if not inviter:
                await stream.send(confirms[0])
            confirmed = hmac.compare_digest(await stream.receive(), confirms[1])
            if inviter:
                await stream.send(confirms[0] if confirmed else _WRONG)
    if not confirmed:
        raise PeerNotTrusted(f"{who}: the code is wrong")
    ends = keys[2:] if inviter else keys[:1:-1]
    return Talk(stream, who, (identity.public, other), transcript, ends)

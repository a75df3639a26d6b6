"""Files that a party seals under keys of its own: one-time pads, and states that hold shares.

Pads are made offline, encrypted, and used once. The file of pads lies in the output folder, its key
elsewhere, in the party's own state folder. Before pads are used, their key is destroyed on disk:
copies of the file become useless, and no crash leads to a second use. A marker replaces the key, so
a key that is put back is refused. Restoring a whole disk to an earlier day goes unnoticed
(docs/decisions/0035-pads-at-rest.md).

Layout of a file: b"SVFLPAD2", the length of the header, the header (JSON, in clear), and records
after their lengths: tensors (safetensors), sealed (`crypto.sealing`) with the header, the record's
number and whether it is the last. They are written while pads are made, and read in this order
while they are used.

All parties first agree on the batch of pads that they use or make.

Learns:
    every party: whether the others hold pads that were made offline, and the name of their batch.
"""

import hashlib
import os
import secrets
import struct
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Annotated, Any, BinaryIO, NoReturn, TypeAlias
from weakref import finalize

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load, save

from securevfl.crypto.sealing import KEY_BYTES, new_key, seal, unseal
from securevfl.errors import ConfigError, CryptoError, DataError, PeerViolation
from securevfl.files import (
    content_if_there,
    reading,
    remove_unfinished,
    replace_file,
    replacing,
    require_room,
    sync_folder,
    wipe_file,
)
from securevfl.protocols.session.gathering import Party
from securevfl.runtime.channel import exchange_with
from securevfl.wire.codec import Message, message_kind

MAGIC, WITHIN, SEALED = b"SVFLPAD2", "within", "sealed"
MOST_HEADER_BYTES, NAME_BYTES = 1 << 16, 16
TAKEN = ".taken"
_LENGTH, _RECORD = struct.Struct("<I"), struct.Struct("<Q")
_START = len(MAGIC) + _LENGTH.size

Arrays: TypeAlias = Mapping[str, NDArray[Any]]
Hex16 = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


class StateSeal:
    """Seals the states of one party's session under a key that is destroyed when the session ends.

    States lie in the output folder, and two parties' states together reveal parameters in the
    middle of a job. The key lies in the party's own folder `keys`.
    """

    def __init__(self, keys: Path, party: str, job_hash: str) -> None:
        self._key = keys / f"{job_hash[:32]}.state-key"
        self._header = f"{party} {job_hash}".encode()

    def renew(self) -> None:
        """Make a fresh key for a new session: earlier states become unreadable."""
        self.destroy()
        replace_file(self._key, new_key(), "key of states")

    def seal(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """The arrays, encrypted as one."""
        data = save({name: np.ascontiguousarray(values) for name, values in arrays.items()})
        return {SEALED: np.frombuffer(seal(self._read(), data, self._header), np.uint8)}

    def open(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """The sealed arrays; a DataError without the key, or for another party or job."""
        key = self._read()
        try:
            opened: dict[str, NDArray[Any]] = load(
                unseal(key, arrays[SEALED].tobytes(), self._header)
            )
        except (CryptoError, SafetensorError, KeyError) as error:
            raise DataError("session state: its shares are damaged, or another party's") from error
        return opened

    def destroy(self) -> None:
        """Destroy the key if there is one; DataError if that fails."""
        try:
            wipe_file(self._key)
            self._key.unlink()
            sync_folder(self._key.parent)
        except FileNotFoundError:
            return
        except OSError as error:
            raise DataError(f"key of states {self._key}: {error.strerror}") from error

    def _read(self) -> bytes:
        try:
            return self._key.read_bytes()
        except OSError as error:
            raise DataError(
                f"session state: no key of its shares, {self._key} ({error.strerror})"
            ) from error


class PadsHeader(BaseModel):
    """The public description of a party's pads.

    Attributes:
        batch: name of the pads that all parties made together, 16 bytes in hexadecimal.
        job_hash: in hexadecimal.
        party: their owner.
        parties: all parties of the job, in its order.
        first_round: the first round that they serve, counted from 0.
        rounds: the number of rounds that they serve.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    batch: Hex16
    job_hash: str
    party: str
    parties: tuple[str, ...]
    first_round: NonNegativeInt
    rounds: PositiveInt


class _Within(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    data: str
    costs: dict[str, float]


@dataclass(frozen=True, eq=False)
class Pads:
    """A party's part of a batch of pads.

    Attributes:
        records: its arrays by name, record by record, as they were kept. They are read when they
            are asked for; a DataError if the file was changed meanwhile.
        costs: see `Costs.made_offline`.
    """

    header: PadsHeader
    records: Iterator[Arrays]
    costs: Mapping[str, float]


class PadStore:
    """One party's pads and, in another folder, their keys."""

    def __init__(self, folder: Path, keys: Path, party: str) -> None:
        if keys.resolve().is_relative_to(folder.resolve()):
            raise ConfigError(f"keys of pads in {keys}: not within {folder}, beside what they seal")
        self.path = folder / f"{party}.pads"
        self._keys = keys / party
        self._party = party

    @property
    def there(self) -> bool:
        """Whether a file of pads exists, usable or not."""
        return self.path.exists()

    @contextmanager
    def keep(
        self, header: PadsHeader, data: str, costs: Callable[[], Mapping[str, float]]
    ) -> Iterator[Callable[[Arrays], None]]:
        """Keep pads, record by record, by calling what this gives; none before the last is there.

        Their key is on disk no earlier. A DataError if pads exist, or cannot be written.

        Args:
            header: their description.
            data: fingerprint of the rows and inputs that they are made for.
            costs: asked at the end, see `Costs.made_offline`.
        """
        self.require_none()
        remove_unfinished(self.path)
        text = header.model_dump_json().encode()
        head, key, place = MAGIC + _LENGTH.pack(len(text)) + text, new_key(), self._key_of(header)
        try:
            with replacing(self.path, "pads") as file:
                file.write(head)
                numbers = count()

                def add(arrays: Arrays) -> None:
                    record = save({name: np.ascontiguousarray(a) for name, a in arrays.items()})
                    sealed = seal(key, record, _place(head, next(numbers), last=WITHIN in arrays))
                    file.write(_RECORD.pack(len(sealed)))
                    file.write(sealed)

                yield add
                within = _Within(data=data, costs=dict(costs())).model_dump_json()
                add({WITHIN: np.frombuffer(within.encode(), np.uint8)})
                replace_file(place, key, "key of pads")
        except BaseException:
            if place.exists():
                self._destroy(place)
            raise

    def require_none(self) -> None:
        """Refuse to overwrite pads, usable or not."""
        if self.there:
            self._refuse("there are some already")

    def require_room(self, size: int) -> None:
        """Check before any work that pads of this many bytes fit on disk; otherwise a DataError."""
        require_room({self.path: size, self._keys / "key": KEY_BYTES}, "pads")

    def header(self) -> PadsHeader | None:
        """The description of the stored pads; None where there are none."""
        with reading(f"pads {self.path}", verb="are"):
            try:
                file = self.path.open("rb")
            except FileNotFoundError:
                return None
            with file:
                return self._header_of(file.read(_START + MOST_HEADER_BYTES))[0]

    def usable(
        self, job_hash: str, parties: Collection[str], data: str | None = None
    ) -> PadsHeader:
        """Check that this job may use the stored pads; returns their description.

        With `data` the whole file is read and compared with it, as `take` does.

        Raises:
            DataError: there are none, or they are damaged, used already, or for another job or
                party.
        """
        header = self.header()
        if header is None:
            raise DataError(f"pads {self.path}: no such file")
        if header.party != self._party:
            self._refuse(f"they are {header.party!r}'s")
        if header.job_hash != job_hash:
            self._refuse(f"of another job, {header.job_hash[:16]}, and this one is {job_hash[:16]}")
        if header.parties != tuple(parties):
            self._refuse(f"made with other parties: {', '.join(header.parties)}")
        self._key(header)
        if data is not None:
            with self._opened() as file:
                self._check(file, self._key(header), data)
        return header

    def take(self, batch: str, job_hash: str, parties: Collection[str], data: str) -> Pads:
        """Use the pads, once only: their key is destroyed on disk before this returns.

        All of them are checked before, and again when they are read from the deleted file.

        All parties have agreed on `batch`; `data` is the fingerprint as in `Pads`.

        Raises:
            DataError: as `usable`, or pads of another batch, for other data or under another key,
                or another process uses them at this moment.
        """
        header = self.usable(job_hash, parties)
        if header.batch != batch:
            self._refuse(f"batch {header.batch[:8]}, and the parties have agreed on {batch[:8]}")
        key = self._key(header)
        with self._opened() as file:
            costs = self._check(file, key, data)
            self._destroy(self._key_of(header))
            self._delete_file()
            held = _held(file)
        return Pads(header, self._given(held, key), costs)

    def discard(self) -> bool:
        """Delete the stored pads, usable or not; returns whether there were any."""
        if not self.there:
            return False
        try:
            header = self.header()
        except DataError:  # unreadable: its key, if any, is useless without it
            header = None
        if header is not None and self._key_of(header).exists():
            self._destroy(self._key_of(header))
        self._delete_file()
        return True

    def state_seal(self, job_hash: str) -> StateSeal:
        """The seal of this party's states, whose key lies beside those of pads."""
        return StateSeal(self._keys, self._party, job_hash)

    def _key_of(self, header: PadsHeader) -> Path:
        return self._keys / f"{header.batch}.key"

    def _key(self, header: PadsHeader) -> bytes:
        place = self._key_of(header)
        key = content_if_there(place, "key of pads")
        # All zeros where a crash came between destroying the key and writing the marker.
        if place.with_suffix(TAKEN).exists() or (key is not None and not any(key)):
            self._refuse("they have been taken already, and no pad is used twice")
        if key is None:
            self._refuse(f"no key for them in {self._keys}: they were made elsewhere")
        if len(key) != KEY_BYTES:
            self._refuse(f"a key of {len(key)} bytes, expected {KEY_BYTES}")
        return key

    def _opened(self) -> BinaryIO:
        with reading(f"pads {self.path}", verb="are"):
            return self.path.open("rb")

    def _check(self, file: BinaryIO, key: bytes, data: str) -> Mapping[str, float]:
        """Check the whole file and for which data it is; returns its costs."""
        (last,) = deque(self._records(file, key), maxlen=1) or [{}]
        with reading(f"pads {self.path}", verb="are"):
            within = _Within.model_validate_json(last[WITHIN].tobytes())
        if within.data != data:
            self._refuse("made for other rows or other inputs of this party")
        return within.costs

    def _given(self, file: BinaryIO, key: bytes) -> Iterator[Arrays]:
        """All records but the last, which is not of the pads."""
        for record in self._records(file, key):
            if WITHIN in record:
                return
            yield record

    def _records(self, file: BinaryIO, key: bytes) -> Iterator[Arrays]:
        """Decrypt the file, record by record."""
        with reading(f"pads {self.path}", verb="are"):
            whole = file.seek(0, os.SEEK_END)
            file.seek(0)
            start = file.read(_START + MOST_HEADER_BYTES)
            _, at = self._header_of(start)  # authenticated under the key that another one named
            head = start[:at]
            for number in count():
                file.seek(at)
                length = file.read(_RECORD.size).ljust(_RECORD.size, b"\xff")
                at += _RECORD.size + _RECORD.unpack(length)[0]
                if at > whole:
                    self._refuse("cut off")
                place = _place(head, number, last=at == whole)
                try:
                    yield load(unseal(key, file.read(at - file.tell()), place))
                except CryptoError as error:
                    raise DataError(f"pads {self.path}: {error}") from error
                if at == whole:
                    return

    def _header_of(self, data: bytes) -> tuple[PadsHeader, int]:
        if len(data) < _START or not data.startswith(MAGIC):
            self._refuse("not a file of pads")
        end = _START + _LENGTH.unpack_from(data, len(MAGIC))[0]
        if end > len(data):
            self._refuse("damaged")
        try:
            return PadsHeader.model_validate_json(data[_START:end]), end
        except ValidationError as error:
            raise DataError(f"pads {self.path}: damaged") from error

    def _destroy(self, key: Path) -> None:
        """Destroy a key on disk, with a marker; on a DataError the pads must not be used."""
        try:
            wipe_file(key)
            key.rename(key.with_suffix(TAKEN))
            sync_folder(key.parent)
        except FileNotFoundError as error:
            raise DataError(f"pads {self.path}: another run has just taken them") from error
        except OSError as error:
            raise DataError(f"key of pads {key} cannot be destroyed: {error.strerror}") from error

    def _delete_file(self) -> None:
        try:
            self.path.unlink(missing_ok=True)
            with suppress(OSError):  # other parties' pads may be there
                self.path.parent.rmdir()
        except OSError as error:
            raise DataError(f"pads {self.path} cannot be deleted: {error.strerror}") from error

    def _refuse(self, why: str) -> NoReturn:
        raise DataError(f"pads {self.path}: {why}")


def _place(head: bytes, number: int, *, last: bool) -> bytes:
    return head + _RECORD.pack(number) + bytes([last])


@dataclass(frozen=True)
class PadPlaces:
    """The folders of all parties' pads and keys, in a process that runs all parties."""

    folder: Path
    keys: Path

    def of(self, party: str) -> PadStore:
        """One party's store."""
        return PadStore(self.folder, self.keys, party)


@message_kind(79, stage="setup")
class NamePads(Message):
    """Set-up, every party to every other: the pads that the sender holds.

    If they were `made` offline, `name` is theirs. Otherwise it is random, and the names of all
    parties together give the name of the pads to be made.
    """

    made: bool
    name: bytes


async def agree_on_pads(party: Party, held: str | None) -> str:
    """Agree with all parties on a batch of pads; returns its name, 32 hexadecimal digits.

    It is the name of the pads `held` here, or a new one where no party holds any.

    Raises:
        PeerViolation: a peer holds other pads, or only one of both holds any.
    """
    own = NamePads(
        held is not None, secrets.token_bytes(NAME_BYTES) if held is None else bytes.fromhex(held)
    )
    names = {party.name: own, **await exchange_with(party.channel, party.others, own)}
    for name in party.others:
        _require_same(name, names[name], own)
    if held is not None:
        return held
    parts = (names[name].name for name in party.names)
    return hashlib.sha256(b"".join(parts)).digest()[:NAME_BYTES].hex()


def _require_same(peer: str, theirs: NamePads, ours: NamePads) -> None:
    if len(theirs.name) != NAME_BYTES:
        raise PeerViolation(f"{peer} names pads in {len(theirs.name)} bytes, expected {NAME_BYTES}")
    if theirs.made != ours.made:
        with_, without = (peer, "this party") if theirs.made else ("this party", peer)
        raise PeerViolation(
            f"{with_} holds pads made offline and {without} none: all make them again, or none"
        )
    if ours.made and theirs.name != ours.name:
        raise PeerViolation(
            f"{peer} holds pads {theirs.name[:4].hex()}, made offline, and this party "
            f"{ours.name[:4].hex()}: all make them again"
        )


def _held(file: BinaryIO) -> BinaryIO:
    """Another reader of a file that may be deleted; it is closed with the last reference to it."""
    descriptor = os.dup(file.fileno())
    held = open(descriptor, "rb", closefd=False)  # noqa: SIM115
    finalize(held, os.close, descriptor)
    return held

"""Private alignment: which rows all parties hold, by X25519, without showing ids.

Ids become points of Curve25519, hashed under a key of this one alignment. Each party raises points
to a secret of its own that it never uses again. All sets go round the ring of parties; at each hop
they are raised, and sorted, so that their order tells nothing. After K hops equal ids have become
equal points. They end at the label party, which alone compares them, and announces how many all
have. Once every party accepts that number, places go back round the ring: each hop maps them to
those before its sorting, and the owner finds its own rows. Meadows, IEEE S&P 1986; Huberman,
Franklin, Hogg, EC 1999.

Who learns what, if all follow the protocol (semi-honest parties, which may pool what they see):

- every party: how many training and test ids each has, how many all have in common, and which of
  its own rows these are, in an order that the label party chooses: by id, which tells nothing, or
  that of the label party's rows, which tells how its common rows are ordered;
- the label party: moreover, the number of ids in every intersection of the parties' sets, such as
  all ids that two feature parties share and it lacks; of its own ids only which all have. A number
  near nothing or all of a small set tells of single ids;
- a party on the way: of another's set a random function of each id, under a key that it lacks, in
  sorted order, and which of these, in random order, all have. No two sets that one such party sees
  are raised to the same secrets, so it can compare none, nor try ids of its own.

What is not protected: a party that breaks the protocol. It may bring ids that it made up, such as
all telephone numbers, and learns which of them all others have: no protocol of this kind proves an
id. Against that stand `Limits`, counts to which all commit before they see another's, and a policy
that counts alignments. A party may replace points or lie about places, so that common rows are
wrong or fewer; `proof_of_rows`, compared before training, refuses rows that differ. The label
party may name rows that are not common, or send back places of its ids that not all have, and so
learn who has these. Received points must be on the curve, reduced, not of small order and none
twice, as all points of honest parties are: others would be marks that survive the sorting.
"""

import hmac
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.arrays import IntArray, RingArray
from securevfl.crypto.curve25519 import (
    KEY_BYTES,
    POINT_BYTES,
    Task,
    new_secret,
    raise_all,
    raised_ids,
    raised_points,
)
from securevfl.errors import ConfigError, CryptoError, DataError, PeerViolation, SecureVFLError
from securevfl.runtime.channel import Channel, exchange_with, tell
from securevfl.runtime.costs import SETUP, Costs
from securevfl.wire.codec import Message, encode, message_kind

PART_WORDS = (1 << 20) // 8
EXAMPLES = 3
_POINT = np.dtype(f"S{POINT_BYTES}")
_WORDS = POINT_BYTES // 8

Points = NDArray[np.bytes_]
Progress = Callable[[int, int], None]
"""Called with how many points are raised, and of how many."""


@dataclass(frozen=True)
class Limits:
    """What a party accepts of an alignment.

    Attributes:
        most_ids_ratio: a peer may bring so many times as many ids as this party has.
        least_overlap: the share of this party's training ids that all must have.
        fewest_rows: so many training ids all must have.
    """

    most_ids_ratio: float = 10.0
    least_overlap: float = 0.0
    fewest_rows: int = 1


@dataclass(frozen=True, eq=False)
class Common:
    """Places of the common rows in a party's own lists, in the order that all parties share."""

    train: IntArray
    test: IntArray


@message_kind(100, stage="setup")
class SizesSealed(Message):
    """Every party to every other: commits to `Sizes`."""

    commitment: bytes


@message_kind(101, stage="setup")
class Sizes(Message):
    """Every party to every other: how many ids it has; the nonce hides them, and is in the key."""

    train: int
    test: int
    has_test: bool
    nonce: bytes

    @property
    def total(self) -> int:
        """Training and test ids."""
        return self.train + self.test


@message_kind(102, stage="setup")
class CountsAccepted(Message):
    """Every party to every other: whether its limits accept the counts that it knows by now."""

    accepts: bool


@dataclass(frozen=True, eq=False)
class Part(Message):
    """A part of a party's list; all but the last of a list have PART_WORDS words."""

    owner: str
    words: RingArray


@message_kind(103, stage="setup")
class RaisedPoints(Part):
    """To the next party or the label party: 4 words a point; training before test ids, sorted."""


@message_kind(104, stage="setup")
class Overlap(Message):
    """The label party to every other: how many ids all have."""

    train: int
    test: int


@message_kind(105, stage="setup")
class Places(Part):
    """Back to the party before: where the common ids are in the set that it sent on."""


@message_kind(106, stage="setup")
class Order(Part):
    """The label party to every other: which of its places come first, second, …."""


async def align(
    channel: Channel,
    costs: Costs,
    *,
    names: Sequence[str],
    label_party: str,
    context: bytes,
    train: Sequence[bytes],
    test: Sequence[bytes] | None = None,
    limits: Limits | None = None,
    by_id: bool = True,
    progress: Progress = lambda done, total: None,
    workers: int | None = None,
) -> Common:
    """Find the rows that all parties hold; see the module for who learns what.

    Args:
        channel: to all other parties.
        costs: this party's ledger.
        names: all parties, in the same order at all.
        label_party: compares, and chooses the order.
        context: 32 bytes that all parties share and no other alignment has.
        train: this party's ids, normalized and distinct.
        test: ids of its test rows, at all parties or at none.
        limits: what this party accepts.
        by_id: at the label party: common rows are sorted by id, else kept in its own order.
        progress: see `Progress`.
        workers: the most processes that raise points; all cores by default.

    Raises:
        DataError: no ids, an id twice, or too few ids in common.
        ConfigError: a context of another length, or test ids at some parties only.
        PeerViolation: a peer brings too many ids, refuses the counts, or breaks the protocol.
    """
    lists = [train] if test is None else [train, test]
    if len(context) != KEY_BYTES:
        raise ConfigError(f"context of {len(context)} bytes, expected {KEY_BYTES}")
    if not all(lists):
        raise DataError("no ids to align")
    used = workers or os.cpu_count() or 1
    ring = _Ring(channel, costs, tuple(names), label_party, progress=progress, workers=used)
    own = Sizes(len(train), len(test or ()), test is not None, os.urandom(KEY_BYTES))
    limits = limits or Limits()
    key = await ring.exchange_sizes(context, own, limits)
    await ring.raise_all_sets(lists, key)
    common = await ring.compare(limits, lists)
    places = await ring.bring_back(common)
    if channel.name == label_party:
        return await ring.choose_order(places, common, lists, by_id=by_id)
    return await ring.receive_order(places)


class _Ring:
    """One party's place in the ring: it receives sets from the party before it in `names`.

    Attributes:
        sizes: by party.
        sortings: by owner, for each place in the set that this party sent on, the place before.
        finals: at the label party: by owner, its set raised to all secrets.
        overlap: how many ids all have.
        mixed: at the label party: by owner, the order in which its places go back.
    """

    def __init__(
        self,
        channel: Channel,
        costs: Costs,
        names: tuple[str, ...],
        label_party: str,
        *,
        progress: Progress,
        workers: int,
    ) -> None:
        self._channel, self._costs, self._names, self._label = channel, costs, names, label_party
        self._progress, self._workers = progress, workers
        self._others = [name for name in names if name != channel.name]
        self.sizes: dict[str, Sizes] = {}
        self.sortings: dict[str, IntArray] = {}
        self.finals: dict[str, Points] = {}
        self.overlap = Overlap(0, 0)
        self.mixed: dict[str, IntArray] = {}

    def _at(self, name: str, hops: int) -> str:
        """The party so many hops after another."""
        return self._names[(self._names.index(name) + hops) % len(self._names)]

    async def exchange_sizes(self, context: bytes, own: Sizes, limits: Limits) -> bytes:
        """Commit to sizes, open them, and judge them; the key of the points."""
        name = self._channel.name
        committed = SizesSealed(_commitment(context, name, own))
        sealed = await exchange_with(self._channel, self._others, committed)
        opened = await exchange_with(self._channel, self._others, own)
        for peer, sizes in opened.items():
            if _commitment(context, peer, sizes) != sealed[peer].commitment:
                raise PeerViolation(
                    f"{peer} opens other counts of ids than it committed to, or another alignment's"
                )
        by_name = {name: own} | opened
        self.sizes = {each: by_name[each] for each in self._names}
        await self._accept(self._problem_of_sizes(limits))
        nonces = b"".join(sizes.nonce for sizes in self.sizes.values())
        return hmac.digest(context, b"points of ids" + nonces, "sha256")

    def _problem_of_sizes(self, limits: Limits) -> SecureVFLError | None:
        own = self.sizes[self._channel.name]
        for peer, sizes in self.sizes.items():
            if sizes.has_test != own.has_test:
                return ConfigError(
                    f"test rows: {peer} has {sizes.test}, this party {own.test}; expected test "
                    "data at all parties or at none"
                )
            if sizes.total > limits.most_ids_ratio * own.total:
                return PeerViolation(
                    f"{peer} brings {sizes.total} ids, over {limits.most_ids_ratio:g} times this "
                    f"party's {own.total}"
                )
            if sizes.train < limits.fewest_rows:
                return DataError(
                    f"{peer} has {sizes.train} training ids, fewer than {limits.fewest_rows}"
                )
        return None

    async def raise_all_sets(self, lists: Sequence[Sequence[bytes]], key: bytes) -> None:
        """Raise every party's set to this party's secret, and send it on."""
        name, last = self._channel.name, len(self._names) - 1
        secret, before = new_secret(), self._at(name, -1)
        done = 0
        for hop in range(last + 1):
            owner = self._at(name, -hop)
            if hop == 0:
                tasks = [
                    task
                    for place, ids in enumerate(lists)
                    for task in raised_ids(secret, hmac.digest(key, bytes([place]), "sha256"), ids)
                ]
            else:
                tasks = raised_points(secret, (await self._set_of(owner, before)).tobytes())
            async with self._costs.compute(SETUP):
                points = self._sorted(owner, self._raise(tasks, done, owner, before))
            done += self.sizes[owner].total
            to = self._label if hop == last else self._at(name, 1)
            if to == name:
                self.finals[owner] = points
            else:
                await self._send(to, RaisedPoints, owner, points.view("<u8"))
        if name == self._label:
            for owner in self._names:
                if owner not in self.finals:
                    self.finals[owner] = await self._set_of(owner, self._at(owner, -1))

    def _raise(self, tasks: Sequence[Task], done: int, owner: str, before: str) -> Points:
        here, total = self.sizes[owner].total, sum(sizes.total for sizes in self.sizes.values())
        try:
            raised = raise_all(
                tasks, self._workers, lambda share: self._progress(done + int(share * here), total)
            )
        except CryptoError as error:
            raise PeerViolation(f"{before} sent {error}") from None
        return np.frombuffer(raised, _POINT)

    def _sorted(self, owner: str, points: Points) -> Points:
        """Points in an order of their own, training and test ids apart."""
        first = self.sizes[owner].train
        halves = np.argsort(points[:first]), np.argsort(points[first:]) + first
        self.sortings[owner] = np.concatenate(halves)
        points = points[self.sortings[owner]]
        if not self._increase(owner, points):
            if owner == self._channel.name:
                raise DataError("an id occurs twice, expected distinct ids")
            raise PeerViolation(f"the set of {owner} holds an id twice")
        return points

    async def _set_of(self, owner: str, sender: str) -> Points:
        """A set from the party before; none of its points may occur twice."""
        words = await self._receive(sender, RaisedPoints, owner, self.sizes[owner].total * _WORDS)
        points = words.view(_POINT)
        if not self._increase(owner, points):
            raise PeerViolation(f"{sender} sent points of {owner} that are not sorted, or twice")
        return points

    def _increase(self, owner: str, points: Points) -> bool:
        first = self.sizes[owner].train
        halves = points[:first], points[first:]
        return all(bool((half[1:] > half[:-1]).all()) for half in halves)

    async def compare(self, limits: Limits, lists: Sequence[Sequence[bytes]]) -> Sequence[Points]:
        """Find the common points at the label party; judge at all how many they are."""
        common: Sequence[Points] = ()
        if self._channel.name == self._label:
            async with self._costs.compute(SETUP):
                common = [
                    reduce(_in_both, halves)
                    for halves in zip(*(self._halves(owner) for owner in self._names), strict=True)
                ]
            self.overlap = Overlap(len(common[0]), len(common[1]))
            await tell(self._channel, self._others, self.overlap)
        else:
            _, self.overlap = await self._channel.receive([self._label], Overlap)
        await self._accept(self._problem_of_overlap(limits, lists))
        return common

    def _halves(self, owner: str) -> tuple[Points, Points]:
        points, first = self.finals[owner], self.sizes[owner].train
        return points[:first], points[first:]

    def _problem_of_overlap(
        self, limits: Limits, lists: Sequence[Sequence[bytes]]
    ) -> SecureVFLError | None:
        overlap, own = self.overlap, self.sizes[self._channel.name]
        counts = {"training": overlap.train} | ({"test": overlap.test} if own.has_test else {})
        most = min(s.train for s in self.sizes.values()), min(s.test for s in self.sizes.values())
        if overlap.train > most[0] or overlap.test > most[1]:
            return PeerViolation(f"{self._label} names more common ids than the smallest set has")
        for (what, common), ids in zip(counts.items(), lists, strict=True):
            if common == 0:
                known = ", ".join(
                    f"{name} {sizes.test if what == 'test' else sizes.train}"
                    for name, sizes in self.sizes.items()
                )
                examples = ", ".join(repr(each.decode(errors="replace")) for each in ids[:EXAMPLES])
                return DataError(
                    f"no common {what} ids ({known}); id_format may differ between the parties: "
                    f"this party's ids are such as {examples}"
                )
        if overlap.train < limits.fewest_rows:
            return DataError(
                f"{overlap.train} training ids in common, fewer than {limits.fewest_rows}"
            )
        if overlap.train < limits.least_overlap * own.train:
            return DataError(
                f"{overlap.train} of {own.train} training ids in common, less than the share "
                f"{limits.least_overlap:g}"
            )
        return None

    async def bring_back(self, common: Sequence[Points]) -> IntArray:
        """Pass places back, each through the parties that sorted the set; this party's own."""
        name, last = self._channel.name, len(self._names) - 1
        starts: dict[str, IntArray] = {}
        if name == self._label:
            for owner in self._names:
                async with self._costs.compute(SETUP):
                    starts[owner] = self._mixed_places(owner, common)
                if (to := self._at(owner, -1)) != name:
                    await self._send(to, Places, owner, starts[owner])
        places: IntArray = np.empty(0, np.int64)
        count = self.overlap.train + self.overlap.test
        for hop in range(last + 1):
            owner = self._at(name, 1 + hop)
            if hop == 0 and name == self._label:
                places = starts[owner]
            else:
                sender = self._at(name, 1) if hop else self._label
                places = _distinct(
                    await self._receive(sender, Places, owner, count),
                    self.sizes[owner].total,
                    sender,
                )
            places = self.sortings[owner][places]
            if hop < last:
                await self._send(self._at(name, -1), Places, owner, places)
        return places

    def _mixed_places(self, owner: str, common: Sequence[Points]) -> IntArray:
        """Places of the common points in a set, in an order that nobody else knows."""
        train, test = self._halves(owner)
        found = (
            np.searchsorted(train, common[0]),
            np.searchsorted(test, common[1]) + self.sizes[owner].train,
        )
        places = np.concatenate(found)
        self.mixed[owner] = np.argsort(np.frombuffer(os.urandom(8 * len(places)), np.uint64))
        return places[self.mixed[owner]]

    async def choose_order(
        self,
        places: IntArray,
        common: Sequence[Points],
        lists: Sequence[Sequence[bytes]],
        *,
        by_id: bool,
    ) -> Common:
        """At the label party: order the common rows, and tell each other party how."""
        name, first = self._channel.name, len(common[0])
        async with self._costs.compute(SETUP):
            mine = places[np.argsort(self.mixed[name])]
            ids = (
                [each for half in lists for each in half] if by_id else range(sum(map(len, lists)))
            )
            halves = range(first), range(first, len(mine))
            order = np.concatenate(
                [np.array(sorted(half, key=lambda n: ids[mine[n]]), np.int64) for half in halves]
            )
        for owner in self._others:
            await self._send(owner, Order, owner, np.argsort(self.mixed[owner])[order])
        return self._common(mine[order])

    async def receive_order(self, places: IntArray) -> Common:
        """At any other party: its common rows in the label party's order."""
        order = await self._receive(self._label, Order, self._channel.name, len(places))
        return self._common(places[_distinct(order, len(places), self._label)])

    def _common(self, places: IntArray) -> Common:
        first, own = self.overlap.train, self.sizes[self._channel.name]
        if (places[:first] >= own.train).any() or (places[first:] < own.train).any():
            raise PeerViolation(f"{self._label} sent places of training rows among test rows")
        return Common(places[:first], places[first:] - own.train)

    async def _accept(self, problem: SecureVFLError | None) -> None:
        """Tell all whether this party goes on; nobody does unless all do."""
        accepts = CountsAccepted(problem is None)
        verdicts = await exchange_with(self._channel, self._others, accepts)
        if problem is not None:
            raise problem
        common = self.overlap.train + self.overlap.test
        known = ", ".join(f"{name} {sizes.total}" for name, sizes in self.sizes.items())
        known += f"; {common} in common" if common else ""
        for peer, verdict in verdicts.items():
            if not verdict.accepts:
                raise PeerViolation(f"{peer} does not accept these numbers of ids ({known})")

    async def _send(self, to: str, kind: type[Any], owner: str, words: NDArray[Any]) -> None:
        for start in range(0, len(words), PART_WORDS):
            part = words[start : start + PART_WORDS].astype(np.uint64)
            await self._channel.send(to, kind(owner, part))

    async def _receive(self, sender: str, kind: type[Part], owner: str, count: int) -> RingArray:
        """A list of so many words, in the parts in which `_send` sends it."""
        parts: list[RingArray] = []
        for start in range(0, count, PART_WORDS):
            _, part = await self._channel.receive([sender], kind)
            expected = (min(PART_WORDS, count - start),)
            if part.owner != owner or part.words.shape != expected:
                raise PeerViolation(
                    f"{sender} sent {kind.__name__} of {part.words.shape} words, expected "
                    f"{expected} of {owner}"
                )
            parts.append(part.words)
        return np.concatenate(parts)


def _commitment(context: bytes, name: str, sizes: Sizes) -> bytes:
    return hmac.digest(context, encode(sizes) + name.encode(), "sha256")


def _in_both(some: Points, others: Points) -> Points:
    return np.intersect1d(some, others, assume_unique=True)


def _distinct(places: RingArray, below: int, sender: str) -> IntArray:
    """Places that a peer sent: each below a bound, and none twice."""
    if len(np.unique(places)) < len(places) or (places >= below).any():
        raise PeerViolation(f"{sender} sent places twice, or beyond the end of a set")
    return places.astype(np.int64)

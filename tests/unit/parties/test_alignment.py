"""Alignment beside plain sets, what each party sees of it, and what breaks it off."""

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from securevfl.crypto.curve25519 import Task, point_of, raise_all, raised_ids, raised_points
from securevfl.errors import ConfigError, DataError, PeerViolation, SecureVFLError
from securevfl.parties import alignment
from securevfl.parties.alignment import (
    Common,
    CountsAccepted,
    Limits,
    Order,
    Overlap,
    Places,
    RaisedPoints,
    Sizes,
    align,
)
from securevfl.runtime.channel import Channel
from securevfl.runtime.costs import Costs
from securevfl.runtime.line import PRESETS
from securevfl.runtime.simulation import Program, Simulated, Tamper, simulate
from securevfl.runtime.views import Received, View
from securevfl.wire.codec import Message, decode
from tests.tampering import changed

Lists = dict[str, tuple[list[bytes], list[bytes] | None]]
Changes = dict[str, dict[str, Any]]
CONTEXT = bytes(range(32))


def ids(numbers: Sequence[int] | range) -> list[bytes]:
    return [f"C-{number:02}".encode() for number in numbers]


TWO: Lists = {"bank": (ids(range(12)), None), "shop": (ids(range(6, 18)), None)}
THREE: Lists = {
    "bank": (ids(range(12)), ids(range(40, 46))),
    "shop": (ids(range(4, 16)), ids(range(42, 48))),
    "post": (ids(range(2, 10)), ids(range(40, 45))),
}


def program(lists: Lists, name: str, label: str, given: dict[str, Any]) -> Program[Common]:
    train, test = lists[name]

    async def run(channel: Channel, costs: Costs) -> Common:
        arguments = {"context": CONTEXT, "train": train, "test": test, **given}
        return await align(channel, costs, names=[*lists], label_party=label, **arguments)

    return run


def aligned(
    lists: Lists, label: str = "bank", changes: Changes | None = None, tamper: Tamper | None = None
) -> Simulated[Common]:
    """All parties' results; `changes` are arguments of `align` by party, or of "all"."""
    changes = changes or {}
    programs = {
        name: program(lists, name, label, changes.get("all", {}) | changes.get(name, {}))
        for name in lists
    }
    return simulate(programs, PRESETS["lan"], tamper=tamper, record_views=True)


def ends(lists: Lists, changes: Changes) -> tuple[dict[str, SecureVFLError], set[type[Message]]]:
    """The error of each party, and the kinds of all messages that were sent."""
    sent: set[type[Message]] = set()

    def note(_by: str, _to: str, data: bytes) -> bytes:
        sent.add(type(decode(data)))
        return data

    def caught(name: str) -> Program[SecureVFLError]:
        run = program(lists, name, "bank", changes.get("all", {}) | changes.get(name, {}))

        async def until_its_error(channel: Channel, costs: Costs) -> SecureVFLError:
            with pytest.raises(SecureVFLError) as error:
                await run(channel, costs)
            return error.value

        return until_its_error

    done = simulate({name: caught(name) for name in lists}, PRESETS["lan"], tamper=note)
    return done.results, sent


def points_in(view: View, owner: str | None = None) -> set[bytes]:
    received = [
        each.message
        for each in view.entries
        if isinstance(each, Received) and isinstance(each.message, RaisedPoints)
    ]
    return {
        point.tobytes()
        for each in received
        if owner in (None, each.owner)
        for point in each.words.reshape(-1, 4)
    }


# What it finds


@settings(max_examples=25)
@given(st.data())
def test_it_finds_what_all_sets_share(data: st.DataObject) -> None:
    parties = data.draw(st.sampled_from([2, 2, 3, 5]))
    names = [f"p{place}" for place in range(parties)]
    numbers = st.lists(st.integers(1, 15), unique=True, max_size=9)
    has_test, by_id = data.draw(st.booleans()), data.draw(st.booleans())
    label = data.draw(st.sampled_from(names))

    def a_list() -> list[bytes]:
        # All have 0, so that something is in common, and none over 10 times as many as another.
        return ids(data.draw(st.permutations([0, *data.draw(numbers)])))

    lists: Lists = {name: (a_list(), a_list() if has_test else None) for name in names}
    results = aligned(lists, label, {"all": {"by_id": by_id}}).results
    for half in (0, 1) if has_test else (0,):
        own = {name: lists[name][half] or [] for name in names}
        shared = set.intersection(*map(set, own.values()))
        expected = sorted(shared) if by_id else [each for each in own[label] if each in shared]
        for name, common in results.items():
            places = common.test if half else common.train
            assert places.dtype == np.int64
            assert [own[name][place] for place in places] == expected
    if not has_test:
        assert not any(len(common.test) for common in results.values())


def test_lists_of_many_parts_arrive_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alignment, "PART_WORDS", 8)
    assert len(aligned(THREE).results["shop"].train) == 6


def test_progress_counts_the_points_of_all_sets() -> None:
    told: list[tuple[int, int]] = []
    aligned(TWO, changes={"shop": {"progress": lambda *counts: told.append(counts)}})
    assert told[-1] == (24, 24)
    assert told == sorted(told)


# Who learns what


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> dict[bytes, tuple[bytes, bytes]]:
    """By the first id of a list: its party's secret, and the key of the list's points."""
    known: dict[bytes, tuple[bytes, bytes]] = {}
    original = raised_ids

    def noting(secret: bytes, key: bytes, given: Sequence[bytes]) -> list[Task]:
        known[given[0]] = secret, key
        return original(secret, key, given)

    monkeypatch.setattr(alignment, "raised_ids", noting)
    return known


def found_by(
    seen: set[bytes], candidates: Sequence[bytes], key: bytes, raisings: Sequence[bytes]
) -> set[bytes]:
    """A dictionary attack: ids whose point, raised to some of these secrets, was seen."""
    found = set()
    for each in candidates:
        for count in range(len(raisings) + 1):
            for some in combinations(raisings, count):
                point = point_of(key, each)
                for secret in some:
                    point = raise_all(raised_points(secret, point), 1, lambda _: None)
                if point in seen:
                    found.add(each)
    return found


@pytest.mark.parametrize("lists", [TWO, THREE], ids=["two", "three"])
def test_who_tries_all_ids_finds_none_without_the_others_secrets(
    lists: Lists, secrets: dict[bytes, tuple[bytes, bytes]]
) -> None:
    views = aligned(lists).views
    by_party = {name: secrets[train[0]] for name, (train, _) in lists.items()}
    everything = ids(range(20))
    for name, (own, key) in by_party.items():
        seen = points_in(views[name])
        assert not found_by(seen, everything, key, [own])
        others = {each for peer in lists if peer != name for each in lists[peer][0]}
        # Control: with all secrets the same points are open.
        all_secrets = [secret for secret, _ in by_party.values()]
        assert found_by(seen, everything, key, all_secrets) >= others


def test_training_ids_cannot_be_compared_with_test_ids(
    secrets: dict[bytes, tuple[bytes, bytes]],
) -> None:
    aligned(THREE)
    keys = [[secrets[half[0]][1] for half in lists if half] for lists in THREE.values()]
    assert keys[0][0] != keys[0][1]
    assert all(each == keys[0] for each in keys)


def test_points_of_two_alignments_cannot_be_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    def seen() -> set[bytes]:
        return points_in(aligned(TWO).views["shop"])

    assert not seen() & seen()
    # Nor with the same secrets; control: nor fresh nonces.
    monkeypatch.setattr(alignment, "new_secret", lambda: b"\7" * 32)
    assert not seen() & seen()
    monkeypatch.setattr("os.urandom", bytes)
    assert seen() == seen()


def test_parties_on_the_way_can_compare_no_two_sets_and_the_label_party_can() -> None:
    same: Lists = {name: (ids(range(8)), None) for name in ("bank", "shop", "post", "club")}
    views = aligned(same).views

    def overlaps(name: str) -> list[int]:
        sets = [points_in(views[name], owner) for owner in same]
        return [len(some & others) for some, others in combinations(sets, 2)]

    for name in ("shop", "post", "club"):
        assert sum(map(len, (points_in(views[name], owner) for owner in same))) == 3 * 8
        assert overlaps(name) == [0] * 6
    # Control: of four sets that are raised to all secrets, it receives three.
    assert sorted(overlaps("bank")) == [0, 0, 0, 8, 8, 8]


def test_the_label_party_sees_how_many_ids_two_parties_share() -> None:
    view = aligned(THREE).views["bank"]
    seen = points_in(view, "bank") & points_in(view, "post")
    shared = [
        set(b or ()) & set(p or ()) for b, p in zip(THREE["bank"], THREE["post"], strict=True)
    ]
    assert len(seen) == sum(map(len, shared)) == 13


def test_a_set_travels_sorted_so_that_its_order_tells_nothing() -> None:
    for view in aligned(THREE).views.values():
        for each in view.entries:
            if isinstance(each, Received) and isinstance(each.message, RaisedPoints):
                points = [point.tobytes() for point in each.message.words.reshape(-1, 4)]
                first = len(THREE[each.message.owner][0])
                for half in (points[:first], points[first:]):
                    assert half == sorted(half)


def test_places_go_back_in_an_order_that_tells_nothing() -> None:
    many: Lists = {name: (ids(range(40)), None) for name in ("bank", "shop", "post")}
    places: list[tuple[int, ...]] = []
    for view in aligned(many).views.values():
        for each in view.entries:
            if isinstance(each, Received) and isinstance(each.message, Places):
                places.append(tuple(map(int, each.message.words)))
    assert all(sorted(each) == list(range(40)) for each in places)
    # Equal places of a set would be those of the sorted common points, the same at all owners.
    assert len(set(places)) == len(places)
    assert not any(list(each) == sorted(each) for each in places)


# What ends it


def test_limits_are_judged_before_a_point_travels() -> None:
    lists: Lists = {"bank": (ids(range(2)), None), "shop": (ids(range(12)), None)}
    errors, sent = ends(lists, {"bank": {"limits": Limits(most_ids_ratio=5)}})
    assert str(errors["bank"]) == "shop brings 12 ids, over 5 times this party's 2"
    assert str(errors["shop"]) == ("bank does not accept these numbers of ids (bank 2, shop 12)")
    errors, more = ends(lists, {"shop": {"limits": Limits(fewest_rows=3)}})
    assert str(errors["shop"]) == "bank has 2 training ids, fewer than 3"
    assert isinstance(errors["bank"], PeerViolation)
    assert RaisedPoints not in sent | more


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        (Limits(least_overlap=0.6), "6 of 12 training ids in common, less than the share 0.6"),
        (Limits(fewest_rows=7), "6 training ids in common, fewer than 7"),
    ],
)
def test_limits_of_what_is_common_are_judged_before_places_travel(limits: Limits, why: str) -> None:
    errors, sent = ends(TWO, {"shop": {"limits": limits}})
    assert str(errors["shop"]) == why
    told = "shop does not accept these numbers of ids (bank 12, shop 12; 6 in common)"
    assert str(errors["bank"]) == told
    assert Overlap in sent
    assert not sent & {Places, Order}
    aligned(TWO, changes={"shop": {"limits": Limits(least_overlap=0.5, fewest_rows=6)}})


def test_no_common_ids_are_a_line_at_every_party_with_ids_of_its_own() -> None:
    lists: Lists = {
        "bank": (ids(range(4)), None),
        "shop": ([each.lower() for each in ids(range(5))], None),
    }
    errors, sent = ends(lists, {})
    assert Places not in sent
    for name, own in (("bank", "C-"), ("shop", "c-")):
        assert isinstance(errors[name], DataError)
        assert str(errors[name]) == (
            "no common training ids (bank 4, shop 5); id_format may differ between the parties: "
            f"this party's ids are such as '{own}00', '{own}01', '{own}02'"
        )


def test_no_common_test_ids_are_told_likewise() -> None:
    lists: Lists = {"bank": (ids([1]), ids([2])), "shop": (ids([1]), ids([3]))}
    errors, _ = ends(lists, {})
    assert all("no common test ids (bank 1, shop 1)" in str(error) for error in errors.values())


def test_test_ids_are_at_all_parties_or_at_none() -> None:
    lists: Lists = {"bank": (ids([1]), ids([2])), "shop": (ids([1]), None)}
    errors, sent = ends(lists, {})
    assert all(isinstance(error, ConfigError) for error in errors.values())
    assert RaisedPoints not in sent


@pytest.mark.parametrize(
    ("given", "error", "told"),
    [
        ({"train": [b"a", b"b", b"a"]}, DataError, "an id occurs twice"),
        ({"train": []}, DataError, "no ids to align"),
        ({"context": bytes(31)}, ConfigError, "context of 31 bytes, expected 32"),
    ],
)
def test_own_mistakes(given: dict[str, Any], error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        aligned(TWO, changes={"shop": given})


def test_another_context_is_refused() -> None:
    with pytest.raises(PeerViolation, match="or another alignment's"):
        aligned(TWO, changes={"shop": {"context": bytes(32)}})


Change = Callable[[Any], Message | None]


def with_points(change: Callable[[list[bytes]], list[bytes]]) -> Change:
    def tampered(message: RaisedPoints) -> Message:
        points = change([point.tobytes() for point in message.words.reshape(-1, 4)])
        return RaisedPoints(message.owner, np.frombuffer(b"".join(points), "<u8"))

    return tampered


def instead(point: int) -> Change:
    return with_points(lambda points: sorted([*points[1:], point.to_bytes(32, "little")]))


def with_words(kind: type[Any], change: Callable[[list[int]], list[int]]) -> Change:
    return lambda message: kind(
        message.owner, np.array(change([int(word) for word in message.words]), np.uint64)
    )


@pytest.mark.parametrize(
    ("kind", "change", "told"),
    [
        (RaisedPoints, with_points(lambda p: [p[0], *p[:-1]]), "not sorted, or twice"),
        (RaisedPoints, with_points(lambda p: p[::-1]), "not sorted, or twice"),
        (RaisedPoints, with_points(lambda p: p[:-1]), r"of \(44,\) words, expected \(48,\)"),
        (RaisedPoints, with_points(lambda p: [*p, p[-1]]), r"of \(52,\) words, expected \(48,\)"),
        (RaisedPoints, lambda m: RaisedPoints("bank", m.words), r"expected \(48,\) of shop"),
        (RaisedPoints, instead(1), "shop sent a point of small order"),
        (RaisedPoints, instead(2), "shop sent a point that is not on the curve"),
        (RaisedPoints, instead(2**255 - 10), "shop sent a point whose u is not below"),
        (Sizes, lambda m: Sizes(m.train - 1, 0, False, m.nonce), "opens other counts"),
        (Sizes, lambda m: Sizes(m.train, 0, False, bytes(32)), "opens other counts"),
        (CountsAccepted, lambda _: CountsAccepted(False), "shop does not accept these numbers"),
    ],
)
def test_a_peer_that_cheats_the_label_party_is_named(
    kind: type[Message], change: Change, told: str
) -> None:
    with pytest.raises(PeerViolation, match=told):
        aligned(TWO, tamper=changed(kind, change, "shop"))


@pytest.mark.parametrize(
    ("kind", "change", "told"),
    [
        (Overlap, lambda _: Overlap(13, 0), "more common ids than the smallest set has"),
        (Overlap, lambda _: Overlap(6, 1), "more common ids than the smallest set has"),
        (Places, with_words(Places, lambda w: [w[0], *w[:-1]]), "places twice, or beyond"),
        (Places, with_words(Places, lambda w: [12, *w[1:]]), "places twice, or beyond"),
        (Order, with_words(Order, lambda w: [w[0], *w[:-1]]), "places twice, or beyond"),
        (Order, with_words(Order, lambda w: [6, *w[1:]]), "places twice, or beyond"),
    ],
)
def test_a_label_party_that_cheats_is_named(kind: type[Message], change: Change, told: str) -> None:
    with pytest.raises(PeerViolation, match=told):
        aligned(TWO, tamper=changed(kind, change, "bank"))


def test_places_of_training_rows_among_test_rows_are_refused() -> None:
    turned = with_words(Order, lambda words: words[::-1])
    with pytest.raises(PeerViolation, match="places of training rows among test rows"):
        aligned(THREE, tamper=changed(Order, turned, "bank", "shop"))

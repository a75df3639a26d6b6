"""Twins: for any other labels and any other columns there are pads that repeat a party's view.

docs/explanation/blind.md, "Simulators": world 1 is a recorded run; world 2 has other labels or
other columns at honest parties, whose pads are solved for. The adversaries receive, decrypt and
hold the same words, bit for bit, up to the last one, which follows from what they are given and
their own share.

Pads are solved for by differences, with the protocol itself for all arithmetic: words of round i
depend on what is drawn for it and before, and on nothing that is drawn for later ones. So round by
round the twin is run, its words are held against those that were seen, and what hides them is moved
by the difference. Nothing but uniform draws is touched, and each has a value for every view.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from securevfl.crypto import ring
from securevfl.data.tables import VerticalDataset, as_classes
from securevfl.job import Job
from securevfl.protocols.blind.fixed_point import REVEALED_BITS, PhaseFormat
from securevfl.protocols.blind.links import Corrections
from securevfl.protocols.blind.relays import MaskedResiduals, PredictionShares
from securevfl.protocols.blind.residuals import LogisticResiduals, MaskedPhases
from securevfl.protocols.blind.rounds import RevealedShare
from securevfl.protocols.blind.schedule import Scales, by_group, holders
from securevfl.runtime.views import Decrypted, Received, Share
from securevfl.wire.codec import encode
from tests.blind_pads import Tape, Words, World, run
from tests.made_data import blocks_of, dataset_of, made

Key = tuple[object, ...]
Seen = dict[Key, Words]


def seen_by(world: World, party: str) -> Seen:
    """All words of a party's view before the last one, and its shares, by what they are.

    Ciphertexts are not among them: that they tell nothing is not for pads to show.
    """
    found: Seen = {}
    for entry in world.result.views[party].entries:
        if isinstance(entry, Share):
            found["share", entry.owner, entry.what, entry.step] = entry.values
        elif isinstance(entry, Decrypted):
            found["decrypted", entry.sender, entry.step] = entry.values
        elif isinstance(entry, Received):
            found |= _words_of(entry)
    return found


def _words_of(entry: Received) -> Seen:
    message, kind = entry.message, type(entry.message)
    if isinstance(message, Corrections):
        rows = range(message.step, message.step + len(message.points))
        found: Seen = {
            (kind, entry.sender, i): r for i, r in zip(rows, message.points, strict=True)
        }
        return found | {(kind, "pulls", i): r for i, r in zip(rows, message.pulls, strict=True)}
    if isinstance(message, MaskedPhases):
        return {(kind, entry.sender, message.step): np.frombuffer(message.phases, np.uint16)}
    if isinstance(message, MaskedResiduals | PredictionShares):
        return {(kind, entry.sender, message.step): message.values}
    return {}


def same(one: Seen, other: Seen) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[k], other[k]) for k in one)


def turned_by(phases: Words, fmt: PhaseFormat) -> NDArray[np.uint64]:
    """What a share of H is moved by, so that its phase is moved by so much."""
    multiplier = fmt.series.multiplier
    even = multiplier & -multiplier
    odd = pow(multiplier // even, -1, 1 << ring.RING_BITS)
    places = fmt._dropped - (even.bit_length() - 1)
    return (phases.astype(np.uint64) << np.uint64(places)) * np.uint64(odd)


@dataclass(eq=False)
class Twin:
    """A job on other data in which adversaries see what they saw in the first world.

    Args:
        first: what they saw.
        job: of both worlds.
        dataset: of the other world; the adversaries' part is the same.
        adversaries: who pool what they see.
    """

    first: World
    job: Job
    dataset: VerticalDataset
    adversaries: Collection[str]

    def __post_init__(self) -> None:
        # Pairwise masks with an adversary are the adversary's, too: all stay but what is moved.
        fresh = {name: Tape({}, tape.zeros) for name, tape in self.first.tapes.items()}
        self.world = run(self.job, self.dataset, fresh | self._of_adversaries())
        self._moved = True
        part = next(iter(self.world.parts.values()))
        self.party, self.rounds = part.training.party, part.job.schedule.rounds
        self.links, self.groups = holders(self.party), by_group(self.rounds)
        self.honest = [name for name in self.party.names if name not in self.adversaries]
        self.tapes = {name: self.world.tapes[name].copy() for name in self.honest}

    def solve(self) -> World:
        self._masks()
        self._again()
        for each in self.rounds:
            index = each.index
            rows = sum(before.rows for before in self.rounds[:index])
            self._predictions(index)
            self._again()
            self._phases(index, slice(rows, rows + each.rows))
            self._again()
            self._tables(slice(rows, rows + each.rows))
            self._again()
            self._residuals(index)
            self._again()
            self._corrections(index)
            self._again()
        return self.world

    def _of_adversaries(self) -> dict[str, Tape]:
        return {name: self.first.tapes[name] for name in self.adversaries}

    def _again(self) -> None:
        if self._moved:
            self.world = run(self.job, self.dataset, {**self._of_adversaries(), **self.tapes})
        self._moved = False

    def _missing(self, party: str, *key: object) -> Words:
        """What the word that a party sees has to be moved by."""
        self._moved = True
        return seen_by(self.first, party)[key] - seen_by(self.world, party)[key]

    def _masks(self) -> None:
        """r and r′: what an honest owner's products come to at an adversary."""
        for owner, holder in self.links.items():
            if owner in self.honest and holder in self.adversaries:
                masks = self.tapes[owner].drawn["masks"]
                of_steps, of_shares = masks[: len(self.groups)], masks[len(self.groups) :]
                for place, rounds in enumerate(self.groups):
                    for column, each in enumerate(rounds):
                        steps, pulls, predictions = (
                            self._missing(holder, "share", owner, what, each.index)
                            for what in ("steps", "pulls", "predictions")
                        )
                        of_steps[place][:, column] += steps
                        both = np.concatenate([pulls, predictions])
                        of_shares[place][: len(both), column] += both

    def _predictions(self, index: int) -> None:
        """Shares of zero, or r′ where the receiver has those: what honest parties hand on."""
        label, partner = self._computing()
        side = self._logistic(label)
        kind = PredictionShares if side is None else MaskedPhases
        for name in (each for each in self.party.feature_parties[1:] if each in self.honest):
            receiver = label if label in self.adversaries else partner
            if receiver not in self.adversaries or (receiver, kind) == (partner, PredictionShares):
                continue
            missing = self._missing(receiver, kind, name, index)
            if side is not None:
                missing = turned_by(missing, side.phase_format)
            others = [each for each in self.honest if each not in (name, label)]
            if others:
                context = f"{kind.__name__} {index}"
                self._move_zero(name, context, missing)
                self._move_zero(others[0], context, -missing)
            else:
                assert label in self.honest, "all but one: what its share hides is known"
                self._move_mask(name, index, -missing)

    def _move_mask(self, owner: str, index: int, by: Words) -> None:
        """Adds so much to what masks the batch's rows of a product."""
        masks = self.tapes[owner].drawn["masks"]
        for place, rounds in enumerate(self.groups):
            for column, each in enumerate(rounds):
                if each.index == index:
                    mask = masks[len(self.groups) + place][:, column]
                    columns = len(mask) - max(r.rows for r in self.rounds)
                    mask[columns : columns + each.rows] += by

    def _move_zero(self, party: str, context: str, by: NDArray[np.uint64]) -> None:
        zeros = self.tapes[party].zeros
        zeros[context] = zeros[context] + by

    def _computing(self) -> tuple[str, str]:
        return self.party.label_party, self.party.feature_parties[0]

    def _phases(self, index: int, rows: slice) -> None:
        """ρ: what an honest one of the two opens to the other."""
        for one, other in (self._computing(), self._computing()[::-1]):
            if one in self.honest and other in self.adversaries and self._logistic(one):
                missing = self._missing(other, MaskedPhases, one, index)
                self.tapes[one].drawn["phases"][0][rows] += missing

    def _logistic(self, party: str) -> LogisticResiduals | None:
        side = self.world.parts[party].offline.residuals
        return side if isinstance(side, LogisticResiduals) else None

    def _tables(self, rows: slice) -> None:
        """What masks products in slots: the label party's, under its partner's key."""
        first, second = self._computing()
        side = self._logistic(first)
        if side is None or first not in self.honest or second not in self.adversaries:
            return
        terms, key = side.phase_format.terms, side._key
        places = slice(rows.start * terms, rows.stop * terms)
        missing = self._missing(second, "decrypted", first, 0)[:, places].view(np.int64)
        masks = self.tapes[first].drawn["slots"][0]
        assert key is not None
        prime = key._parameters.plain_modulus
        masks[:, places] = (masks[:, places].view(np.int64) - missing) % prime

    def _residuals(self, index: int) -> None:
        """ξ, and the shares of zero between the two that compute residuals."""
        label, partner = self._computing()
        for owner, holder in self.links.items():
            if owner not in self.adversaries:
                continue
            moved: Words = np.zeros(1, np.uint64)
            if owner not in (label, partner) and partner in self.honest:
                assert label in self.honest, "who has the pad knows what it hides"
                missing = self._missing(owner, MaskedResiduals, partner, index)
                context = f"{MaskedResiduals.__name__} {index} {owner}"
                self._move_zero(partner, context, missing)
                self._move_zero(label, context, -missing)
                moved = missing
            if holder in self.honest:
                missing = self._missing(owner, MaskedResiduals, holder, index)
                self._move_pad(owner, self._pad(owner, index), missing + moved)
                missing = self._missing(owner, Corrections, "pulls", index)
                self._move_pad(owner, self._pad(owner, index) + 1, missing)

    def _corrections(self, index: int) -> None:
        """ζ⟨o⟩ of the next exchange."""
        for owner, holder in self.links.items():
            if owner in self.adversaries and holder in self.honest:
                missing = self._missing(owner, Corrections, holder, index)
                owners, rounds = self._held_with(owner), len(self.rounds)
                place = 2 * rounds * len(owners) + rounds * owners.index(owner) + index
                self._move_pad(owner, place, missing)

    def _held_with(self, owner: str) -> list[str]:
        """The owners whose links the holder of this one's holds."""
        return [name for name, holder in self.links.items() if holder == self.links[owner]]

    def _pad(self, owner: str, index: int) -> int:
        """Where on its holder's tape the pad of a round is: group by group, link by link."""
        owners, before = self._held_with(owner), 0
        for rounds in self.groups:
            members = [each.index for each in rounds]
            if index in members:
                place = owners.index(owner) * len(members) + members.index(index)
                return before + 2 * place
            before += 2 * len(owners) * len(members)
        raise AssertionError(index)

    def _move_pad(self, owner: str, place: int, by: Words) -> None:
        """Takes so much off one of the holder's words."""
        pads = self.tapes[self.links[owner]].drawn["pads"]
        pads[place] = ring.reduced(pads[place] - by)


ROWS, COLUMNS, ROUNDS = 12, 2, 3
LABEL, PARTNER, THIRD, FOURTH = "party0", "party1", "party2", "party3"
LINEAR, LOGISTIC = {"loss": "taylor-logistic"}, {"loss": "logistic"}
MINIBATCHES = {**LINEAR, "batch_size": 6, "l2": 0.1}
SEVERAL_STEPS = {**LINEAR, "learning_rate": 0.2, "local_steps": 3, "l2": 0.1}


def job(**settings: Any) -> Job:  # noqa: ANN401
    steps = {"batch_size": "full", "rounds": ROUNDS, "eval_every": "never", **settings}
    steps["allow_label_leak"] = True  # of so few rows labels could be read
    return Job.of(job=steps, exchange={"scheme": "blind"})


def data(parties: int) -> VerticalDataset:
    return made(0, parties, rows=ROWS, columns=COLUMNS)


def other_data(
    settings: Job, first: World, adversaries: Collection[str], what: str
) -> VerticalDataset:
    """Other labels, or all columns drawn afresh but the adversaries', of the same public figures.

    How large steps are is one of these: an owner's word to its holder.
    """
    dataset = first_data = data(len(first.parts))
    labels = as_classes(dataset.train_labels)
    if what == "labels":
        return dataset_of([table.train for table in dataset.parties], 1 - labels)
    said = figures(first, adversaries)
    for seed in range(100, 160):
        drawn = blocks_of(
            np.random.default_rng(seed), len(dataset.parties), rows=ROWS, columns=COLUMNS
        )
        pairs = zip(first_data.parties, drawn, strict=True)
        blocks = [table.train if table.name in adversaries else new for table, new in pairs]
        dataset = dataset_of(blocks, labels)
        if figures(run(settings, dataset), adversaries) == said:
            return dataset
    raise AssertionError("no other columns with the same figures")


def figures(world: World, adversaries: Collection[str]) -> list[bytes]:
    views = [world.result.views[name] for name in adversaries]
    return [encode(each.message) for view in views for each in view.received(Scales)]


@pytest.mark.parametrize(
    ("parties", "adversaries", "what", "settings"),
    [
        (2, {PARTNER}, "labels", LINEAR),
        (2, {PARTNER}, "columns", LOGISTIC),
        (2, {PARTNER}, "labels", LOGISTIC),
        (2, {LABEL}, "columns", LINEAR),
        (2, {LABEL}, "columns", LOGISTIC),
        (2, {PARTNER}, "labels", MINIBATCHES),
        (2, {LABEL}, "columns", SEVERAL_STEPS),
        (3, {LABEL}, "columns", LOGISTIC),
        (3, {PARTNER}, "labels", LOGISTIC),
        (3, {PARTNER}, "columns", LINEAR),
        (3, {THIRD}, "labels", LOGISTIC),
        (3, {THIRD}, "columns", LINEAR),
        (3, {PARTNER, THIRD}, "labels", LOGISTIC),
        (3, {PARTNER, THIRD}, "columns", LINEAR),
        (4, {THIRD, FOURTH}, "columns", LOGISTIC),
        (4, {LABEL}, "columns", LINEAR),
    ],
)
def test_other_labels_and_columns_look_the_same(
    parties: int, adversaries: set[str], what: str, settings: dict[str, Any]
) -> None:
    first = run(job(**settings), data(parties))
    dataset = other_data(job(**settings), first, adversaries, what)
    twin = Twin(first, job(**settings), dataset, adversaries)
    # Fresh pads show other words: those compared are what pads hide.
    fresh = twin.world
    solved = twin.solve()
    for name in adversaries:
        before = seen_by(first, name)
        assert len(before) >= 8 * ROUNDS
        assert same(seen_by(solved, name), before)
        assert not same(seen_by(fresh, name), before)
        # The worlds differ in what an owner is given at the end, as they may.
        ends = [world.result.outcomes[name].model.weights for world in (first, solved)]
        assert not np.array_equal(ends[0], ends[1])


def test_a_view_of_a_pad_used_twice_has_no_twin_that_uses_it_twice() -> None:
    """The difference of two rounds' words is that of their residuals, and no pad changes it."""
    fresh = run(job(**LINEAR), data(2)).tapes[LABEL]
    fresh.drawn["pads"][2] = fresh.drawn["pads"][0]
    first = run(job(**LINEAR), data(2), {LABEL: fresh})
    dataset = other_data(job(**LINEAR), first, {PARTNER}, "labels")
    twin = Twin(first, job(**LINEAR), dataset, {PARTNER})
    twin.solve()
    pads = twin.tapes[LABEL].drawn["pads"]
    assert not np.array_equal(pads[0], pads[2])


@pytest.mark.parametrize(("parties", "settings"), [(2, MINIBATCHES), (3, LOGISTIC)])
def test_every_pad_is_gone_once_it_is_used(parties: int, settings: dict[str, Any]) -> None:
    """And an owner's point of every round is in its view, beside its share of residuals."""
    world = run(job(**settings), data(parties))
    for name, part in world.parts.items():
        pads = part.offline.pads
        by_round = list(vars(pads.own).values())
        for held in pads.held.values():
            by_round += [held.residuals, held.predictions, held.path]
        assert not any(by_round)
        entries = world.result.views[name].entries
        for what in ("point", "residuals"):
            shares = [each for each in entries if isinstance(each, Share) and each.owner == name]
            assert [s.step for s in shares if s.what == what] == list(range(ROUNDS))


def test_the_last_word_follows_from_the_end_and_ones_own_share() -> None:
    """Simulators need no more of it than the functionality gives."""
    world = run(job(**LINEAR), data(2))
    for name in (LABEL, PARTNER):
        own = world.parts[name].own
        (entry,) = world.result.views[name].received(RevealedShare)
        assert isinstance(entry.message, RevealedShare)
        dropped = np.uint64(own.widths.weight_bits - REVEALED_BITS)
        word = entry.message.values
        given = ring.reduced((word << dropped) + own.weights)
        # On the grid that the owner's own share shifts.
        np.testing.assert_array_equal(ring.reduced(given - own.weights) >> dropped, word)


def test_the_label_party_and_another_know_what_is_left_of_the_sum() -> None:
    """What no pad hides: at three parties that is one party's predictions, every round."""
    world = run(job(**LINEAR), data(3))
    label, third = (world.result.views[name] for name in (LABEL, THIRD))
    changed = other_data(job(**LINEAR), world, {LABEL, THIRD}, "columns")
    twin = Twin(world, job(**LINEAR), changed, {LABEL, THIRD})
    with pytest.raises(AssertionError, match="who has the pad"):
        twin.solve()
    bits = world.parts[LABEL].own.widths.shared_residual_bits
    partner = world.result.views[PARTNER]
    for index in range(ROUNDS):
        known = third.shares(THIRD, "residuals")[index] + label.shares(THIRD, "residuals")[index]
        residuals = ring.decode(ring.reduced(known), bits)
        hidden = partner.shares(PARTNER, "residuals")[index]
        hidden = hidden + label.shares(PARTNER, "residuals")[index]
        np.testing.assert_array_equal(ring.reduced(hidden), ring.reduced(known))
        if index == 0:  # from zero
            expected = 0.5 - as_classes(data(3).train_labels)
            np.testing.assert_array_equal(residuals, expected)

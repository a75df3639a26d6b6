"""Twins: for any other labels and any other columns there are pads that repeat a party's view.

docs/explanation/blind.md, "Simulators": world 1 is a recorded run; world 2 has other labels or
other columns at honest parties, whose pads are solved for. The adversaries receive, decrypt and
hold the same words, bit for bit, up to the last one, which follows from what they are given and
their own share.
"""

from collections.abc import Collection
from typing import Any

import numpy as np
import pytest

from securevfl.crypto import ring
from securevfl.data.tables import VerticalDataset, as_classes
from securevfl.job import Job
from securevfl.protocols.blind.fixed_point import REVEALED_BITS
from securevfl.protocols.blind.rounds import RevealedShare
from securevfl.protocols.blind.schedule import Scales
from securevfl.runtime.views import Share
from securevfl.wire.codec import encode
from tests.blind_pads import World, run
from tests.blind_twins import Twin, same, seen_by
from tests.made_data import blocks_of, dataset_of, made

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

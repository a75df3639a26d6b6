"""Twins: for any other labels and any other columns there are pads that repeat a party's view.

docs/blind.md, "Simulators". World 1 is a recorded run. World 2 has other labels, or other columns,
at the honest party. Its pads are solved from the adversary's view, round by round, and the real
protocol runs again with them: the adversary receives and decrypts the same words, bit for bit, up
to the last one, which follows from what it is given at the end and its own share.
"""

import asyncio
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from securevfl.arrays import RingArray
from securevfl.crypto import ring
from securevfl.data.tables import VerticalDataset, as_classes
from securevfl.job import Job
from securevfl.protocols.blind.pads import Corrections, Extrapolation, OwnerPads
from securevfl.protocols.blind.relays import MaskedResiduals
from securevfl.protocols.blind.rounds import RevealedShare
from securevfl.protocols.blind.schedule import Round, Scales
from securevfl.runtime.views import Received, Share, View
from securevfl.wire.codec import Message, encode
from tests.blind_pads import Told, World, run
from tests.made_data import blocks_of, dataset_of, labels_of

ROWS, COLUMNS, ROUNDS = 20, 3, 4
LABEL, FEATURE = "party0", "party1"


def job(**settings: object) -> Job:
    return Job.of(
        job={
            "batch_size": "full",
            "loss": "taylor-logistic",
            "rounds": ROUNDS,
            "eval_every": "never",
            "l2": 0.01,
            **settings,
        },
        exchange={"scheme": "blind"},
    )


def words_of(world: World, party: str) -> list[tuple[object, ...]]:
    """What a party receives and what it holds, in order, before the last word of a job.

    Ciphertexts are not among them: that they tell nothing is not for pads to show.
    """
    found: list[tuple[object, ...]] = []
    for entry in world.result.views[party].entries:
        if isinstance(entry, Share):
            found.append((entry.owner, entry.what, entry.step, entry.values.tobytes()))
        elif isinstance(entry, Received) and isinstance(
            entry.message, (Scales, Corrections, MaskedResiduals)
        ):
            found.append((entry.sender, encode(entry.message)))
    return found


def values_of(view: View, kind: type[Message]) -> list[RingArray]:
    """The words of every message of a kind, in order."""
    found = [getattr(entry.message, "values") for entry in view.received(kind)]  # noqa: B009
    return [np.asarray(each) for each in found]


def solve(first: World, other: World, honest: str, adversary: str) -> Told:
    """The pads of an honest party under which the adversary sees what it saw in the first world.

    Args:
        first: recorded.
        other: a run on the other data, whatever its pads: for matrices, labels and starts.
        honest: whose pads.
        adversary: whose view.
    """
    seen, had = first.result.views[adversary], first.insights[adversary]
    new, view = other.insights[honest], first.result.views[honest]
    # r and r′: what hides M·V, for V as the adversary encrypted it and M of the other columns.
    masks = [
        ring.reduced(before.decrypted - ring.Factor(after.matrix) @ before.values)
        for before, after in zip(first.insights[honest].products, new.products, strict=True)
    ]
    schedule, matrices = new.links._schedule.rounds, new.links._matrices
    own, residuals = new.own, new.residuals
    assert own is not None
    assert residuals is not None
    holding = other.insights[honest].links._holdings[adversary]
    widths, dropped = own.widths, holding._scales.step_bits - own.widths.weight_bits
    (corrections,), (own_corrections,) = values_of(seen, Corrections), values_of(view, Corrections)
    came, went = values_of(seen, MaskedResiduals), values_of(view, MaskedResiduals)
    extrapolation = Extrapolation(first=True)
    point = weights = np.zeros_like(corrections[0])
    pads: list[RingArray] = []
    members = new.links._schedule.members(schedule)
    for each in schedule:
        place, column = _place(members, each.index)
        mine = OwnerPads(
            {each.index: ring.reduced(-masks[2 * place + 1][: each.rows, column])},
            {each.index: ring.reduced(-masks[2 * place][:, column])},
            {each.index: own_corrections[each.index]},
        )
        theirs = had.links._matrices[each.group]
        hidden = (
            had.products[2 * place].mask[:, column],
            had.products[2 * place + 1].mask[:, column],
        )
        # ξ: whatever d is now, the same word went out.
        share = own.predictions(each, matrices[each.group], mine)
        share += theirs.of_features @ point + hidden[1][: each.rows]
        share = asyncio.run(residuals.of(each.index, ring.reduced(share), new.labels[each.index]))
        pad = ring.reduced(share - came[each.index])
        # ζ⟨o⟩ of the next exchange: whatever this party's share would be, the same correction.
        truncated = ring.truncated(
            pad, widths.shared_residual_bits - widths.residual_bits, first=True
        )
        moved = ring.Factor(theirs.steps) @ np.concatenate([point, truncated]) + hidden[0]
        after = ring.reduced(point + ring.truncated(moved, dropped, first=True))
        extrapolated = extrapolation.of(after, weights, each.beta)
        point, weights = ring.reduced(extrapolated - corrections[each.index]), after
        pads += [pad, point]
        own.move(each, matrices[each.group], mine, ring.reduced(share + went[each.index]))
    return Told({adversary: pads}, masks)


def _place(members: Mapping[int, Sequence[Round]], index: int) -> tuple[int, int]:
    """Which product a round belongs to, and which of its columns."""
    for place, rounds in enumerate(members.values()):
        for column, each in enumerate(rounds):
            if each.index == index:
                return place, column
    raise AssertionError(index)


def data(seed: int = 0) -> VerticalDataset:
    generator = np.random.default_rng(seed)
    blocks = blocks_of(generator, 2, rows=ROWS, columns=COLUMNS)
    return dataset_of(blocks, labels_of(generator, blocks))


def with_labels(dataset: VerticalDataset) -> VerticalDataset:
    blocks = [table.train for table in dataset.parties]
    return dataset_of(blocks, 1 - as_classes(dataset.train_labels))


def other_columns(settings: dict[str, object], first: World, honest: str) -> VerticalDataset:
    """Columns drawn afresh, of the same public figures: how large steps are is among them."""
    dataset, (adversary,) = data(), {LABEL, FEATURE} - {honest}
    said = [encode(each.message) for each in first.result.views[adversary].received(Scales)]
    for seed in range(100, 130):
        drawn = blocks_of(np.random.default_rng(seed), 2, rows=ROWS, columns=COLUMNS)
        blocks = [drawn[0] if table.name == honest else table.train for table in dataset.parties]
        changed = dataset_of(blocks, as_classes(dataset.train_labels))
        view = run(job(**settings), changed).result.views[adversary]
        if [encode(each.message) for each in view.received(Scales)] == said:
            return changed
    raise AssertionError("no other columns with the same figures")


@pytest.mark.parametrize(
    ("adversary", "what"), [(FEATURE, "labels"), (FEATURE, "columns"), (LABEL, "columns")]
)
@pytest.mark.parametrize(
    "settings", [{}, {"batch_size": 10}, {"learning_rate": 0.2, "local_steps": 3}], ids=str
)
def test_other_labels_and_columns_look_the_same(
    adversary: str, what: str, settings: dict[str, object]
) -> None:
    honest = LABEL if adversary == FEATURE else FEATURE
    dataset = data()
    first = run(job(**settings), dataset)
    changed = with_labels(dataset) if what == "labels" else other_columns(settings, first, honest)
    other = run(job(**settings), changed)
    had = first.insights[adversary]
    same = Told(had.pads, [each.mask for each in had.products])
    told = {adversary: same, honest: solve(first, other, honest, adversary)}
    twin = run(job(**settings), changed, told)
    expected = words_of(first, adversary)
    assert len(expected) > 6 * ROUNDS
    assert words_of(twin, adversary) == expected
    # Fresh pads do not: the words compared are those that pads hide.
    assert words_of(other, adversary) != expected
    # And the worlds do differ in what the owner is given at the end.
    ends = [w.result.outcomes[adversary].model.weights for w in (first, twin)]
    assert not np.array_equal(ends[0], ends[1])


def test_the_last_word_follows_from_the_end_and_ones_own_share() -> None:
    """Simulators need no more of it than the functionality gives."""
    world = run(job(), data())
    for name in (LABEL, FEATURE):
        rounds = world.insights[name].rounds
        assert rounds is not None
        own = rounds._own
        (word,) = values_of(world.result.views[name], RevealedShare)
        dropped = np.uint64(own.widths.weight_bits - 12)
        given = ring.reduced((word << dropped) + own.weights)
        # On the grid that the owner's own share shifts ...
        assert not ((given - own.weights) & np.uint64((1 << int(dropped)) - 1)).any()
        np.testing.assert_array_equal(ring.reduced(given - own.weights) >> dropped, word)
        # ... and within it of what is kept.
        kept = world.result.outcomes[name].model.weights[:, 0]
        np.testing.assert_allclose(ring.decode(given, own.widths.weight_bits), kept, atol=2.0**-11)

"""One whole round of a link with fixed randomness, beside numbers made in plain Python."""

import asyncio
import json
from pathlib import Path
from typing import Any, cast

import numpy as np

from securevfl.arrays import IntArray, RingArray
from securevfl.crypto import ring
from securevfl.models.losses import TaylorLogistic
from securevfl.protocols.blind.fixed_point import REVEALED_BITS, Widths
from securevfl.protocols.blind.links import OwnerPads, extrapolated
from securevfl.protocols.blind.residuals import AffineResiduals
from securevfl.protocols.blind.rounds import SharedWeights, top_of
from securevfl.protocols.blind.schedule import Matrices, PlannedRound, Scales

VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "vectors" / "blind_round.json").read_text("utf-8")
)
WIDTHS, SCALES = Widths(**VECTORS["widths"]), Scales(VECTORS["step_bits"], 20)
MATRICES = Matrices(np.array(VECTORS["steps"]), np.array(VECTORS["features"]))
ROUND = PlannedRound(0, len(VECTORS["labels"]), VECTORS["beta"], 0)


def words(name: str) -> RingArray:
    return np.array(VECTORS[name], np.uint64)


def test_the_script_makes_the_vectors() -> None:
    made: dict[str, Any] = {}
    exec(VECTORS["script"], made)  # noqa: S102  # our own, beside what it made
    assert all(made[name] == VECTORS[name] for name in VECTORS if name in made)


def test_what_a_holder_makes_offline() -> None:
    truncated = WIDTHS.truncated(words("pull_pads"), words("pads"), first=True)
    assert np.array_equal(truncated, words("u"))
    steps = MATRICES.of_residuals @ words("u") + words("mask_s")
    assert np.array_equal(ring.reduced(steps), words("y"))
    seen = MATRICES.of_features @ words("point_o") + words("mask_v")
    assert np.array_equal(ring.reduced(seen), words("h"))
    dropped = SCALES.step_bits - WIDTHS.weight_bits
    moved = ring.truncated(words("y"), dropped, first=True)
    after = ring.reduced(words("point_o") + moved)
    assert np.array_equal(after, words("after_o"))
    target = extrapolated(after, words("before_o"), ROUND.beta, first=True)
    assert np.array_equal(ring.reduced(target - words("upcoming")), words("correction"))


def test_what_an_owner_does_in_the_round_and_at_the_end() -> None:
    columns = len(words("point_k"))
    own = SharedWeights(np.zeros(columns), WIDTHS, SCALES)
    own.weights, own.point = words("before_k"), words("point_k")
    masks = ring.reduced(-words("mask_v"))
    pads = OwnerPads(
        predictions={0: masks[columns:]},
        pulls={0: ring.reduced(masks[:columns] + words("pulls_sent"))},
        steps={0: ring.reduced(-words("mask_s"))},
        corrections={0: words("correction")},
    )
    share = ring.reduced(own.predictions(ROUND, MATRICES, pads) + words("others_k"))
    assert np.array_equal(share, words("predictions_k"))
    labels = cast("IntArray", np.array(VECTORS["labels"]))
    residuals = AffineResiduals(TaylorLogistic(), WIDTHS.shared_residual_bits)
    found = asyncio.run(residuals.of(0, share, labels))
    assert np.array_equal(found, words("residuals_k"))
    masked = ring.reduced(found + words("sent"))
    assert np.array_equal(masked, words("masked"))
    own.move(ROUND, MATRICES, pads, masked)
    assert np.array_equal(own.weights, words("after_k"))
    assert np.array_equal(own.point, words("next_k"))
    assert np.array_equal(top_of(words("after_o"), WIDTHS).values, words("top"))
    opened = own.opened(words("top"))
    assert np.array_equal(opened, VECTORS["opened"])
    assert np.abs(opened - VECTORS["clear"]).max() < 2.0 ** (1 - REVEALED_BITS)

"""What a job's keys are made for: flooding covers all rounds and the widest party's columns."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from typing_extensions import override

from securevfl.crypto.scheme import Evaluator, KeyOwner, ProductFormat
from securevfl.data.sources import load
from securevfl.data.tables import VerticalDataset, some_rows
from securevfl.job import ExchangeSettings
from securevfl.training import Environment
from tests.jobs import SmallKeys, run_job

ROUNDS = 3
NARROW, MIDDLE, WIDE = 2, 5, 23


class FormatsSeen(SmallKeys):
    """Remembers what either end of every key was made for."""

    def __init__(self) -> None:
        self.of_owners: list[ProductFormat] = []
        self.of_evaluators: list[ProductFormat] = []

    @override
    def owner(self, settings: ExchangeSettings, product_format: ProductFormat) -> KeyOwner:
        self.of_owners.append(product_format)
        return super().owner(settings, product_format)

    @override
    def evaluator(
        self, settings: ExchangeSettings, material: bytes, product_format: ProductFormat
    ) -> Evaluator:
        self.of_evaluators.append(product_format)
        return super().evaluator(settings, material, product_format)


def with_widths(widths: tuple[int, ...], name: str = "breast_cancer") -> VerticalDataset:
    """Three parties of so many columns, the label party first."""
    dataset = some_rows(load(name), 70)
    train, test = (
        np.hstack([getattr(table, part) for table in dataset.parties]) for part in ("train", "test")
    )
    ends = np.cumsum(widths)
    parties = tuple(
        replace(
            dataset.parties[0],
            name=f"party{number}",
            columns=tuple(f"x{at}" for at in range(end - width, end)),
            train=train[:, end - width : end],
            test=test[:, end - width : end],
        )
        for number, (width, end) in enumerate(zip(widths, ends.tolist(), strict=True), 1)
    )
    return replace(dataset, parties=parties, label_party="party1")


CASES: dict[str, tuple[dict[str, object], dict[str, Any], dict[str, int]]] = {
    "two trips": ({"scheme": "bfv", "round_trips": 2}, {}, {}),
    "one trip": ({"scheme": "bfv", "round_trips": 1}, {}, {"summands": 2, "ahead": 1}),
    "in turns": ({"scheme": "bfv"}, {"algorithm": "fedbcd-s"}, {}),
    "masked predictions": ({"scheme": "bfv", "predictions": "masked"}, {}, {}),
    "hide both": ({"scheme": "bfv", "hide": "both"}, {"loss": "squared"}, {"summands": 2}),
    "paillier": ({"scheme": "paillier"}, {}, {}),
    "ckks, both": ({"scheme": "ckks", "hide": "both"}, {"loss": "squared"}, {"summands": 2}),
}


@pytest.mark.parametrize(
    "widths",
    [(NARROW, MIDDLE, WIDE), (NARROW, WIDE, MIDDLE), (WIDE, NARROW, MIDDLE)],
    ids=["third widest", "second widest", "label party widest"],
)
@pytest.mark.parametrize("case", CASES)
def test_both_ends_of_every_key_are_sized_for_the_whole_job(
    case: str, widths: tuple[int, ...]
) -> None:
    exchange, settings, expected = CASES[case]
    seen, dataset = FormatsSeen(), with_widths(widths)
    result = run_job(
        dataset,
        exchange,
        Environment(keys=seen),
        **{"rounds": ROUNDS, "batch_size": 16, "eval_every": 0, "intercept": False, **settings},
    )
    schedule = result.plan.schedule
    largest_batch = max(len(schedule.batch(index)) for index in range(100))
    assert largest_batch > 16  # 70 rows in about 4 batches
    both = exchange.get("hide") == "both"
    assert (len(seen.of_owners), len(seen.of_evaluators)) == ((3, 6) if both else (1, 2))
    for fmt in (*seen.of_owners, *seen.of_evaluators):
        assert fmt == seen.of_owners[0]
        assert fmt.rounds == ROUNDS
        assert fmt.columns == WIDE + expected.get("ahead", 0) * largest_batch
        assert fmt.summands == expected.get("summands", 1)
        assert fmt.rows == largest_batch
        assert fmt.vectors == 1


def test_the_constant_column_and_every_output_count() -> None:
    seen, dataset = FormatsSeen(), with_widths((WIDE, NARROW, MIDDLE), "digits")
    run_job(
        dataset,
        {"scheme": "bfv", "round_trips": 2},
        Environment(keys=seen),
        rounds=ROUNDS,
        batch_size="full",
        loss="multinomial",
        eval_every=0,
    )
    for fmt in (*seen.of_owners, *seen.of_evaluators):
        assert (fmt.columns, fmt.vectors, fmt.rows) == (WIDE + 1, dataset.classes, 70)


def test_a_networks_parameters_are_its_columns() -> None:
    seen, dataset = FormatsSeen(), with_widths((NARROW, MIDDLE, WIDE))
    run_job(
        dataset,
        {"scheme": "bfv"},
        Environment(keys=seen),
        rounds=ROUNDS,
        batch_size=16,
        eval_every=0,
        model="mlp",
        hidden=[3],
    )
    parameters = WIDE * 3 + 3 + 3 + 1
    for fmt in (*seen.of_owners, *seen.of_evaluators):
        assert (fmt.columns, fmt.rounds, fmt.summands) == (parameters, ROUNDS, 1)

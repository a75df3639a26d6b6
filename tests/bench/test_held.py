"""Rounds to a target that is held, and the paper's encrypted table from rounds and costs."""

from typing import Any

import pytest

from bench.held import BY_SEED, TYPICAL, held_from
from bench.transfer.__main__ import table_2
from securevfl.protocols.session.scoring import Score


@pytest.mark.parametrize(
    ("aucs", "expected"),
    [
        ((0.9, 0.9, 0.9), 2),
        ((0.9, 0.8, 0.9, 0.95, 0.9, 0.7), 6),
        ((0.9, 0.9, 0.8, 0.9, 0.9), None),
        ((0.8, 0.9, 0.9), None),
        ((0.9,), None),
    ],
)
def test_a_target_is_held_from_the_first_of_three_scorings_in_a_row(
    aucs: tuple[float, ...], expected: int | None
) -> None:
    scores = [Score(2 * place, class_auc=each) for place, each in enumerate(aucs, 1)]
    assert held_from(scores, 0.9, 3) == expected


def row(*rounds: int | None, **more: object) -> dict[str, Any]:
    runs = [{"reached": n is not None, "rounds": n or 20, "first_at_target": n} for n in rounds]
    return {"runs": runs, "target_auc": 0.7, **more}


@pytest.mark.parametrize(
    ("rounds", "typical", "by_seed"),
    [((3, None, 9), "9", "3, -, 9"), ((3, None, None), "-", "3, -, -"), ((4,), "4", "4")],
)
def test_the_median_counts_seeds_that_never_hold_it(
    rounds: tuple[int | None, ...], typical: str, by_seed: str
) -> None:
    assert (TYPICAL[1](row(*rounds)), BY_SEED[1](row(*rounds))) == (typical, by_seed)


def test_the_papers_table_is_rounds_in_clear_times_what_a_round_costs() -> None:
    def cell(exchange: str, q: int, steps: str, *rounds: int, **more: object) -> dict[str, Any]:
        return row(*rounds, exchange=exchange, local_steps=q, steps=steps, **more)

    rows = [
        cell("plain", 1, "exact", 12, 10, 14),
        cell("plain", 5, "exact", 4, 3, 5),
        cell("plain", 5, "linearized", 6, 6, 9),
        cell("paillier", 1, "exact", 2, rounds=2, compute_s=6.0),
        cell("paillier", 5, "exact", 2, rounds=2, compute_s=30.0),
        cell("paillier", 1, "linearized", 2, rounds=2, compute_s=6.0),
        cell("paillier", 5, "linearized", 2, rounds=2, compute_s=6.0),
    ]
    headings, *lines = table_2(rows)
    found = [dict(zip(headings[:7], line, strict=False)) for line in lines]
    assert [(each["products"], each["Q"], each["R"], each["compute"]) for each in found] == [
        ("every step", "1", "12", "36 s"),
        ("every step", "5", "4", "60 s"),
        ("once a round", "5", "6", "18 s"),
    ]
    assert [line[-3:] for line in lines][1] == ["4", "13.4 min", "1.18"]

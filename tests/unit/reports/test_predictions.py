"""What a reader of scores is told of them."""

from typing import Any

import pytest

from securevfl.reports.predictions import predict_notes

ROW: dict[str, Any] = {
    "parties": 3,
    "shown": "singly",
    "rows": 2000,
    "labelled": 0,
    "trained_on": 0,
    "unused_columns": {},
    "release": None,
    "ranking": None,
    "cutoffs": [],
    "same_job": True,
    "job_hash": "ab" * 32,
}
RELEASE = {
    "mechanism": "gaussian",
    "noise_multiplier": 1.5,
    "clip": 2.0,
    "delta": 1e-5,
    "epsilon": 3.25,
    "noise": "of a secure generator",
}
FLAGS_NONE: dict[str, Any] = {
    "rule": "rule",
    "cutoff": None,
    "rows": 9,
    "flagged": 0.0,
    "precision": None,
    "recall": 0.0,
    "cost": None,
}
IN_CLEAR = "with two parties, each score tells the label party the other party's part of it"


@pytest.mark.parametrize(
    ("changes", "names", "beginnings"),
    [
        ({}, (), ["the label party saw every other party's part of each score"]),
        ({"shown": "summed"}, (), ["the label party saw only the sum of the others' parts"]),
        ({"shown": "summed", "parties": 2}, (), [IN_CLEAR]),
        ({}, ("no", "yes"), ["probability: of class 'yes', not 'no'", "the label party saw every"]),
        ({"labelled": 1500}, (), ["the label party saw every", "metrics cover the 1,500 rows"]),
        ({"labelled": 2000}, (), ["the label party saw every"]),
        (
            {
                "ranking": {
                    "rows": 9,
                    "positives": 2,
                    "average_precision": 0.25,
                    "auc_interval": None,
                },
                "cutoffs": [{**FLAGS_NONE, "cost": 0.023}, {**FLAGS_NONE, "cutoff": 0.999953}],
            },
            (),
            [
                "the label party saw every",
                "average precision 0.2500",
                "positives: 2 of 9 rows; average precision by chance 0.2222",
                "no interval of the AUC",
                "cut-off - (rule): 0.0% of 9 rows flagged, precision -, recall 0, cost 0.023 a row",
                "cut-off 0.999953 (rule): 0.0% of 9 rows flagged, precision -, recall 0",
                "a row is flagged from its cut-off on",
            ],
        ),
        (
            {"release": RELEASE},
            (),
            [
                "the label party saw the others' parts of each score clipped, with noise",
                "one release per row: epsilon 3.25 at delta = 1e-05 (gaussian, z = 1.5, clip",
                "of a secure generator",
            ],
        ),
    ],
)
def test_notes_say_what_the_label_party_saw_and_what_figures_are_of(
    changes: dict[str, Any], names: tuple[str, ...], beginnings: list[str]
) -> None:
    notes = predict_notes({**ROW, **changes}, names)  # type: ignore[typeddict-item]
    assert [
        note[: len(begins)] for note, begins in zip(notes, beginnings, strict=True)
    ] == beginnings

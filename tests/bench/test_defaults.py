"""Nothing set, beside tuning by hand."""

from dataclasses import replace

import numpy as np
import pytest

from bench.defaults import __main__ as module
from bench.defaults.__main__ import DefaultsSettings, row_of, tuned_by_hand
from securevfl.benchmarks.progress import silent
from tests.made_data import blocks_of, dataset_of, labels_of


def test_a_row_has_all_that_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GRID", (0.1, 1.0))
    random = np.random.default_rng(3)
    blocks = blocks_of(random, 3, rows=150)
    dataset = dataset_of(blocks, labels_of(random, blocks))
    row = row_of(dataset, DefaultsSettings(repeats=2), silent)
    scores = [run["score"] for run in row["runs"]]
    assert (row["score"], row["worst_score"]) == (np.median(scores), min(scores))
    assert row["difference"] == row["score"] - row["tuned_score"]
    assert list(row["alone"]) == ["party0", "party1", "party2"]
    assert abs(row["difference"]) < 0.02
    assert (row["rows"], row["columns"], row["parties"]) == (150, 12, 3)


def test_folds_of_the_training_rows_choose_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """The difference of two columns tells the label: who shrinks them sees what they share."""
    monkeypatch.setattr(module, "GRID", (1e-4, 100.0))
    random = np.random.default_rng(4)
    common, own = random.standard_normal((2, 300, 1))
    blocks = [common + 0.1 * own, common]
    labels = (own[:, 0] > 0).astype(np.int64)
    made = dataset_of([block[:100] for block in blocks], labels[:100])
    tables = zip(made.parties, blocks, strict=True)
    parties = tuple(replace(table, test=block[100:]) for table, block in tables)
    chosen = tuned_by_hand(replace(made, parties=parties, test_labels=labels[100:]))
    assert chosen.best_c == 100.0
    assert chosen.score > chosen.usual
    assert chosen.score > 0.95

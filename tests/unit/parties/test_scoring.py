"""Scoring between organizations: the scores of one operator, whatever is interrupted."""

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from securevfl.arrays import FloatArray
from securevfl.attacks.scored_features import column_space, held_out_features
from securevfl.data.join import load_files
from securevfl.data.read import FileSource
from securevfl.errors import ConfigError, DataError, PeerViolation, SecureVFLError
from securevfl.models.storage import SavedModel, save_model
from securevfl.parties import scoring
from securevfl.parties.agreement import sign_agreement
from securevfl.parties.alignment import Limits
from securevfl.parties.meeting import JobEnded
from securevfl.parties.own_file import Policy
from securevfl.parties.quota import count_scores
from securevfl.parties.scoring import ScoredRows, ScoringSeat, own_part, score
from securevfl.protocols.catalogue import algorithm_of, exchange_of
from securevfl.protocols.guards import failed_checks
from securevfl.protocols.guards.people import CountedJob
from securevfl.protocols.predicting import ScoringPlan
from securevfl.scoring.running import score as score_together
from securevfl.scoring.running import scoring_plan
from securevfl.scoring.sources import RowsToScore, own_rows, read_new_rows
from securevfl.training import train
from tests.switchboard import Switchboard, here, in_virtual_time
from tests.unit.parties.test_life import (
    IDENTITIES,
    THREE,
    TWO,
    Names,
    Parties,
    agreement_of,
    parties,
    write_files,
)

NEW_ROWS = 30


@dataclass
class Scorers:
    """All parties of a trained job, each with new rows, in virtual time."""

    made: Parties
    models: dict[str, SavedModel]
    new: Path
    results: dict[str, ScoredRows] = field(default_factory=dict)
    counted: dict[str, list[int]] = field(default_factory=dict)

    @property
    def names(self) -> Names:
        return self.made.names

    def rows(self, name: str) -> RowsToScore:
        party = next(each for each in self.made.agreement.job.party if each.name == name)
        return own_rows(party, self.models[name], self.new / f"{name}.csv")

    def seat(self, name: str, **changes: object) -> ScoringSeat:
        agreement, job = self.made.agreement, self.made.agreement.job
        label = agreement.label_party
        seat = ScoringSeat(
            name=name,
            agreement=agreement,
            signature=sign_agreement(agreement, IDENTITIES[name]),
            records=self.made.folder / name / "records",
            limits=Limits(),
            runs=here,
            plan=ScoringPlan(job, algorithm_of(job), exchange_of(job), agreement.names, label),
            model=self.models[name],
            rows=self.rows(name),
            count=lambda marks: self.counted.setdefault(name, []).append(len(marks)),
        )
        return replace(seat, **changes)  # type: ignore[arg-type]

    async def one(self, name: str, **changes: object) -> ScoredRows:
        seat, network = self.seat(name, **changes), self.made.board.of(name)
        return await score(seat, network, partial(self.results.__setitem__, name))

    def ends(self, **changes: dict[str, object]) -> dict[str, str]:
        """How a scoring ends at each party."""

        async def one(name: str) -> str:
            try:
                await self.one(name, **changes.get(name, {}))
            except SecureVFLError as error:
                return f"{type(error).__name__}: {error}"
            return "scored"

        async def all_of_them() -> list[str]:
            return await asyncio.gather(*(one(name) for name in self.names))

        return dict(zip(self.names, in_virtual_time(all_of_them()), strict=True))

    def together(self) -> tuple[RowsToScore, FloatArray]:
        """The rows, and H of them, that one operator has of the same models and files."""
        sources = [
            FileSource(
                name, self.new / f"{name}.csv", "id", features=self.models[name].header.columns
            )
            for name in self.names
        ]
        rows = read_new_rows(sources, "bank")
        plan = scoring_plan(self.made.agreement.job, self.models)
        return rows, score_together(plan, self.models, rows.features, rows.ids).predictions


def scorers(
    folder: Path, names: Names = TWO, scheme: str = "plain", **settings: object
) -> Scorers:
    made = parties(folder, names, scheme, **settings)
    result = train(made.agreement.job, load_files([made.source(name) for name in names]))
    write_files(folder / "new", names, rows=NEW_ROWS, seed=7)
    models = {name: each.model for name, each in result.outcomes.items()}
    return Scorers(made, models, folder / "new")


def require_same(found: Scorers) -> None:
    rows, predictions = found.together()
    bank = found.results["bank"]
    assert (bank.rows.ids, bank.rows.written) == (rows.ids, rows.written)
    assert bank.predictions is not None
    np.testing.assert_array_equal(bank.rows.order, rows.order)
    np.testing.assert_allclose(bank.predictions, predictions, rtol=0, atol=1e-9)
    for name in found.names[1:]:
        assert found.results[name].predictions is None
        assert found.results[name].rows.ids == rows.ids


@pytest.mark.parametrize(
    ("names", "scheme", "settings"),
    [
        (TWO, "plain", {}),
        (THREE, "masked", {}),
        (THREE, "plain", {"algorithm": "fdml", "batch_size": 16, "learning_rate": 0.1}),
    ],
)
def test_scores_are_those_of_one_operator(
    tmp_path: Path, names: Names, scheme: str, settings: dict[str, object]
) -> None:
    found = scorers(tmp_path, names, scheme, **settings)
    assert set(found.ends().values()) == {"scored"}
    require_same(found)
    assert len(found.results["bank"].rows.ids) == NEW_ROWS
    assert found.counted == {name: [NEW_ROWS] for name in names[1:]}

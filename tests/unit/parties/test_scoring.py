"""Scoring between organizations: the scores of one operator, whatever is interrupted."""

import asyncio
import contextlib
import datetime
import random
import re
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Self

import numpy as np
import pytest
from typing_extensions import override

from securevfl.arrays import FloatArray
from securevfl.attacks.scored_features import column_space, held_out_features
from securevfl.data.join import load_files
from securevfl.data.read import FileSource
from securevfl.errors import (
    ConfigError,
    DataError,
    FeatureLeakRefused,
    PeerTimeout,
    SecureVFLError,
)
from securevfl.models.storage import SavedModel, save_model
from securevfl.parties import quota, scoring
from securevfl.parties.agreement import sign_agreement
from securevfl.parties.alignment import Limits
from securevfl.parties.quota import count_scores
from securevfl.parties.recovery import Told
from securevfl.parties.scoring import ScoredRows, ScoringSeat, own_part, score
from securevfl.protocols.catalogue import algorithm_of, exchange_of
from securevfl.protocols.guards import failed_checks
from securevfl.protocols.guards.people import CountedJob, Digests
from securevfl.protocols.guards.row_record import RowRecord
from securevfl.protocols.predicting import ScoringPlan
from securevfl.scoring.running import score as score_together
from securevfl.scoring.running import scoring_plan
from securevfl.scoring.sources import RowsToScore, own_rows, read_new_rows
from securevfl.training import Environment, train
from tests.jobs import SmallKeys
from tests.switchboard import Switchboard, here, in_virtual_time
from tests.unit.parties.test_life import (
    IDENTITIES,
    ROUNDS,
    THREE,
    TWO,
    Names,
    Parties,
    agreement_of,
    disturbed,
    parties,
    write_files,
)

NEW_ROWS = 30


@dataclass
class Scorers:
    """All parties of a trained job, each with new rows, in virtual time."""

    made: Parties
    board: Switchboard
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
            patience=1000.0,
            count=lambda marks: self.counted.setdefault(name, []).append(len(marks)),
        )
        return replace(seat, **changes)  # type: ignore[arg-type]

    async def one(self, name: str, **changes: object) -> ScoredRows:
        seat, network = self.seat(name, **changes), self.board.of(name)
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


def scorers(folder: Path, names: Names = TWO, scheme: str = "plain", **settings: object) -> Scorers:
    made = parties(folder, names, scheme, **settings)
    sources = [made.source(name) for name in names]
    result = train(made.agreement.job, load_files(sources), Environment(keys=SmallKeys()))
    write_files(folder / "new", names, rows=NEW_ROWS, seed=7)
    models = {name: each.model for name, each in result.outcomes.items()}
    return Scorers(made, made.board, models, folder / "new")


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
        (TWO, "bfv", {}),
        (TWO, "blind", {"loss": "taylor-logistic", "rounds": 2}),
        (THREE, "blind", {"loss": "taylor-logistic", "rounds": 2}),
        (THREE, "plain", {"algorithm": "fdml", "batch_size": 16, "learning_rate": 0.1}),
    ],
)
def test_scores_are_those_of_one_operator(
    tmp_path: Path, names: Names, scheme: str, settings: dict[str, object]
) -> None:
    found = scorers(tmp_path, names, scheme, **settings)
    assert set(found.ends().values()) == {"scored"}
    require_same(found)
    for name in names:
        save_model(tmp_path / f"{name}.safetensors", found.models[name])
        assert own_part(tmp_path, found.seat(name).plan, name).digest == found.models[name].digest
    assert len(found.results["bank"].rows.ids) == NEW_ROWS
    assert found.counted == {name: [NEW_ROWS] for name in names[1:]}


@pytest.mark.parametrize(("names", "scheme"), [(TWO, "plain"), (THREE, "masked")])
def test_whatever_is_interrupted_scores_are_the_same_and_count_once(
    tmp_path: Path, names: Names, scheme: str
) -> None:
    found, happened = scorers(tmp_path, names, scheme), 0
    for seed in range(8):
        chance = random.Random(seed)  # noqa: S311
        found.board = Switchboard(names, chance, 0.1 * chance.random())
        found.results.clear()
        with contextlib.suppress(PeerTimeout):  # killed when all others knew that all had finished
            happened += in_virtual_time(disturbed(found, chance))
        require_same(found)
    assert happened > 8
    for name in names[1:]:
        record = RowRecord.load(tmp_path / "state" / name / "records" / "rows.safetensors")
        assert set(record.scored.tolist()) == {1}


def test_a_day_has_so_many_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marks = np.arange(10, dtype=np.uint64)
    count_scores(tmp_path, 10, marks)
    count_scores(tmp_path, 10, marks[:5])
    with pytest.raises(FeatureLeakRefused, match=r"10 rows .* 1 more .* 10 a day"):
        count_scores(tmp_path, 10, marks[:1] + np.uint64(10))
    with pytest.raises(FeatureLeakRefused, match="0 rows"):
        count_scores(tmp_path / "other", 9, marks)
    count_scores(tmp_path / "other", 9, marks[:9])

    class Tomorrow(datetime.datetime):
        @classmethod
        @override
        def now(cls, tz: datetime.tzinfo | None = None) -> Self:
            return super().now(tz) + datetime.timedelta(days=1)

    monkeypatch.setattr(quota, "datetime", Tomorrow)
    count_scores(tmp_path, 10, marks + np.uint64(10))


def cut_at(found: Scorers, phase: str, times: int) -> Told:
    """Tells of a party that cut its link to the other whenever a phase begins, so many times."""
    left = [times]

    def begins(text: str) -> None:
        if text.startswith(phase) and left[0]:
            left[0] -= 1
            found.board.cut(*found.names)

    return Told(phase=begins)


def test_noise_is_released_once(tmp_path: Path) -> None:
    found = scorers(tmp_path, scheme="dp")
    told = found.ends(shop={"told": cut_at(found, "scoring", 1)})
    assert told["shop"].startswith("ConfigError: the scoring was interrupted, and noise is")
    assert told["bank"] == "JobEnded: shop ended the job (ConfigError); its own last line says why"
    assert found.counted == {"shop": [NEW_ROWS]}
    marks: list[Digests] = []
    for _ in range(2):
        assert found.ends(shop={"count": marks.append})["shop"] == "scored"
    assert len(np.unique(np.concatenate(marks))) == 2 * NEW_ROWS  # each release counts


def test_ids_are_not_compared_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "MOST_ALIGNED", 3)
    found = scorers(tmp_path)
    assert set(found.ends(shop={"told": cut_at(found, "aligning", 2)}).values()) == {"scored"}
    told = found.ends(shop={"told": cut_at(found, "aligning", 3)})
    assert any("interrupted 3 times" in each for each in told.values())


def test_a_policy_counts_each_time_that_ids_are_compared(tmp_path: Path) -> None:
    found, counted = scorers(tmp_path), list[str]()
    count = partial(counted.append, "once")
    told = found.ends(shop={"aligns": count, "told": cut_at(found, "aligning", 1)})
    assert set(told.values()) == {"scored"}
    assert len(counted) == 2

    def enough() -> None:
        raise ConfigError("enough")

    assert "enough" in found.ends(shop={"aligns": enough})["shop"]


def test_parts_of_other_models_score_nothing(tmp_path: Path) -> None:
    found = scorers(tmp_path)
    plan = found.seat("shop").plan
    with pytest.raises(DataError, match=r"no model file .*: securevfl party run makes it"):
        own_part(tmp_path, plan, "shop")
    for name in TWO:
        save_model(tmp_path / f"{name}.safetensors", found.models[name])
    assert own_part(tmp_path, plan, "shop").digest == found.models["shop"].digest
    (tmp_path / "shop.safetensors").replace(tmp_path / "post.safetensors")
    other = replace(plan, job=agreement_of(TWO, "plain", rounds=7).job)
    for name, asked in (("post", plan), ("bank", other)):
        with pytest.raises(DataError, match="of another job than the agreement"):
            own_part(tmp_path, asked, name)
    model = found.models["shop"]
    later = replace(model, header=replace(model.header, rounds=ROUNDS + 1))
    told = found.ends(shop={"model": later})
    assert re.search(f"bank has a part .* {ROUNDS} rounds, here .* {ROUNDS + 1}", told["shop"])
    assert found.counted == {}
    assert found.results == {}


def test_a_peer_that_failed_a_check_gets_no_score(tmp_path: Path) -> None:
    found = scorers(tmp_path)
    check = failed_checks.Check(
        peer="bank", job=CountedJob.of(found.made.agreement.job, bytes(32)), failed=True
    )
    records = tmp_path / "records"
    records.mkdir()
    (records / failed_checks.NAME).write_text(f"[{check.model_dump_json()}]", encoding="utf-8")
    told = found.ends(shop={"records": records})
    assert told["shop"].startswith("ConfigError: 'bank' failed a check of encrypted replies")
    assert found.results == {}


PEOPLE = [f"p{number:03}" for number in range(NEW_ROWS)]


def of(rows: RowsToScore, people: list[str]) -> RowsToScore:
    return rows.at(np.array([rows.ids.index(each) for each in people]))


def asked(found: Scorers, people: list[str], **shop: object) -> tuple[str, FloatArray]:
    """The label party asks for scores of its choice; what it computes the other's H as."""
    rows = of(found.rows("bank"), people)
    curious = {"rows": rows, "limits": Limits(most_ids_ratio=1e9)}
    found.results.clear()
    told = found.ends(bank=curious, shop=shop)["shop"]
    if "bank" not in found.results:
        return told, np.zeros((0, 1))
    result = found.results["bank"]
    assert result.predictions is not None
    own = found.models["bank"].predict(result.rows.features["bank"])
    return told, result.predictions - own


@pytest.mark.parametrize("most", [2, 3])
def test_known_rows_tell_theta_unless_the_quota_ends_first(tmp_path: Path, most: int) -> None:
    """Equality solving: P + 1 people of known features, one scoring each; θ and a constant."""
    found = scorers(tmp_path)
    count = partial(count_scores, tmp_path, most)
    answers = [asked(found, [each], count=count) for each in PEOPLE[:3]]
    features = of(found.rows("shop"), PEOPLE[:3]).features["shop"]
    known = np.column_stack([features, np.ones(3)])
    theta = found.models["shop"].weights / found.models["shop"].scale[:, None]
    if most < 3:
        assert "FeatureLeakRefused: 2 rows were scored today" in answers[2][0]
        assert len(answers[2][1]) == 0
    else:
        solved = np.linalg.solve(known, np.vstack([heard for _, heard in answers]))
        np.testing.assert_allclose(solved[:2], theta, rtol=1e-6)


@pytest.mark.parametrize("guarded", [True, False])
def test_scores_by_many_models_tell_rows_unless_the_guard_ends_it(
    tmp_path: Path, guarded: bool
) -> None:
    """As `held_out_features` of the audit: as many θ as columns, and as many known people."""
    found = scorers(tmp_path, allow_feature_leak=not guarded)
    model = found.models["shop"]
    generator, heard, told = np.random.default_rng(3), [], ""
    for _ in range(2):
        weights = generator.standard_normal(model.weights.shape)
        told, more = asked(found, PEOPLE, model=replace(model, weights=weights))
        heard += [more] if len(more) else []
    features = (of(found.rows("shop"), PEOPLE).features["shop"] - model.mean) / model.scale
    space, known = column_space(heard), np.arange(2)
    guess = held_out_features(space, features[:, :0], known, features[known], 2)
    error = np.linalg.norm(guess - features) / np.linalg.norm(features)
    if guarded:
        assert told.startswith("FeatureLeakRefused: feature guard: ")
        assert len(heard) == 1
        assert error > 0.5
    else:
        assert told == "scored"
        assert error < 1e-6

"""Jobs as tests train them: data, small keys, one way to run one, and what is read of a result."""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any

import numpy as np
from typing_extensions import override

from securevfl.arrays import FloatArray, IntArray
from securevfl.crypto.paillier import PaillierEvaluator, PaillierOwner
from securevfl.crypto.paillier_fast import (
    FastPaillierEvaluator,
    FastPaillierOwner,
    FullPaillierOwner,
)
from securevfl.crypto.scheme import Evaluator, KeyOwner, ProductFormat
from securevfl.crypto.schemes import default_engine
from securevfl.data.sources import load
from securevfl.data.tables import PartyTable, VerticalDataset
from securevfl.job import OWN_SECTIONS, ExchangeSettings, Job
from securevfl.models.local_model import LocalModel
from securevfl.protocols.session.checkpoints import SessionState
from securevfl.protocols.session.keys import KeyMaker
from securevfl.sparse import SameRows
from securevfl.training import Environment, TrainingResult, train
from securevfl.wire.codec import Message
from tests.small_keys import insecure

Settings = Mapping[str, Any]
Rows = slice | IntArray
SMALL_KEY_BITS = 384
OWNERS: dict[str, type[FastPaillierOwner | PaillierOwner]] = {
    "fast": FastPaillierOwner,
    "fast-full": FullPaillierOwner,
    "phe": PaillierOwner,
}


class Killed(BaseException):
    """As good as kill -9: nothing may catch it."""


class SmallKeys(KeyMaker):
    """Paillier keys that no job can ask for, on any engine: real arithmetic, quick enough."""

    @override
    def owner(
        self, settings: ExchangeSettings, product_format: ProductFormat, seed: bytes
    ) -> KeyOwner:
        if settings.scheme == "paillier":
            engine = OWNERS[settings.engine or default_engine("paillier")]
            return insecure(engine, product_format, SMALL_KEY_BITS)
        return super().owner(settings, product_format, seed)

    @override
    def evaluator(
        self, settings: ExchangeSettings, material: bytes, product_format: ProductFormat
    ) -> Evaluator:
        if settings.scheme == "paillier":
            if settings.engine == "phe":
                return insecure(PaillierEvaluator, material, product_format)
            return insecure(FastPaillierEvaluator, material, product_format)
        return super().evaluator(settings, material, product_format)


@cache
def breast_cancer(parties: int = 2) -> VerticalDataset:
    """456 rows to train on and 113 held out, of 30 columns; the same one for all tests."""
    return load("breast_cancer", parties=parties)


@cache
def digits(parties: int = 2) -> VerticalDataset:
    return load("digits", parties=parties)


def picked(
    dataset: VerticalDataset, train: Rows = slice(None), test: Rows = slice(None)
) -> VerticalDataset:
    """Some of the rows of a data set, or all in another order."""

    def of(table: PartyTable) -> PartyTable:
        people = table.people and (table.people[0][train], table.people[1][test])
        return replace(table, train=table.train[train], test=table.test[test], people=people)

    return replace(
        dataset,
        parties=tuple(map(of, dataset.parties)),
        train_labels=dataset.train_labels[train],
        test_labels=dataset.test_labels[test],
        row_digests=dataset.row_digests[train],
    )


def scaled_blocks(dataset: VerticalDataset) -> dict[str, FloatArray]:
    """Every party's columns as jobs scale them, the label party's with a constant one at the end.

    Written once more here: nothing of the package is in it.
    """
    blocks = {}
    for table in dataset.parties:
        block = table.train
        if dataset.standardize:
            scale = block.std(axis=0)
            block = (block - block.mean(axis=0)) / np.where(scale > 0, scale, 1)
        constant = np.ones((len(block), int(table.name == dataset.label_party)))
        blocks[table.name] = np.hstack([block, constant])
    return blocks


def job_of(exchange: str | Settings | None = None, /, **settings: object) -> Job:
    """A job under an exchange; what is the name of a section is that section."""
    names = (Job.model_fields.keys() | OWN_SECTIONS) - {"job", "exchange"}
    sections = {name: settings.pop(name) or {} for name in names & settings.keys()}
    scheme = {"scheme": exchange} if isinstance(exchange, str) else exchange or {}
    return Job.of(job=settings, exchange=scheme, **sections)


def fit(
    dataset: VerticalDataset[SameRows],
    exchange: str | Settings | None = None,
    environment: Environment | None = None,
    /,
    **settings: object,
) -> TrainingResult:
    """Train the job that `job_of` makes; with small keys and views unless it says other."""
    environment = environment or Environment(keys=SmallKeys(), record_views=True)
    return train(job_of(exchange, **settings), dataset, environment)


def run_job(
    dataset: VerticalDataset,
    exchange: str | Settings | None = None,
    environment: Environment | None = None,
    /,
    **settings: object,
) -> TrainingResult:
    """`fit` with a step size of 0.1."""
    return fit(dataset, exchange, environment, **{"learning_rate": 0.1, **settings})


def once(
    dataset: VerticalDataset, exchange: str | Settings | None = None, /, **settings: object
) -> TrainingResult:
    """`run_job`, trained once for all who ask for the same: not where something is patched."""
    return _trained(dataset, json.dumps(exchange), json.dumps(settings, sort_keys=True))


@lru_cache(maxsize=48)
def _trained(dataset: VerticalDataset, exchange: str, settings: str) -> TrainingResult:
    return run_job(dataset, json.loads(exchange), **json.loads(settings))


def all_weights(result: TrainingResult) -> FloatArray:
    return np.concatenate([o.model.weights.ravel() for o in result.outcomes.values()])


def relative_difference(a: TrainingResult, b: TrainingResult) -> float:
    """‖θ_a − θ_b‖ / ‖θ_b‖ over all parties."""
    reference = all_weights(b)
    return float(np.linalg.norm(all_weights(a) - reference) / np.linalg.norm(reference))


def received(
    result: TrainingResult, party: str, kind: type[Message], sender: str | None = None
) -> list[Any]:
    """The messages of a kind that a party received, from one sender or from all."""
    entries = result.views[party].received(kind)
    return [entry.message for entry in entries if sender in {None, entry.sender}]


class Kept(dict[int, dict[str, SessionState]]):
    """The states that a job keeps, by round and party."""

    def __call__(self, state: SessionState) -> None:
        self.setdefault(state.rounds, {})[state.party] = state


class Starts(dict[str, FloatArray]):
    """θ⁰ of every party: an environment's `wrap_model`."""

    def __call__(self, name: str, model: LocalModel) -> LocalModel:
        self[name] = model.weights.copy()
        return model

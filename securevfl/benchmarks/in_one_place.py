"""What to compare fdml with: training in one place, on all columns or on one party's.

Without channel, codec, server or ledger, over the same batches. Two things can be trained in one
place: the *sum* of the parties' local models, whose steps are those of fdml with τ = 0 from the
same θ⁰, so that it reaches the same model by construction; and *one model* over all columns, the
papers' centralized training. Linear ones are the same; networks are not, as units of one network
see all parties' columns. A benchmark may put the parties' columns side by side; no party does.
"""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from securevfl.benchmarks.tuning import GRID, validation_split
from securevfl.data.tables import PartyTable, VerticalDataset
from securevfl.errors import ConfigError
from securevfl.job import Job, PartySettings
from securevfl.models.scores import auc
from securevfl.protocols.exchange import PartyBatches
from securevfl.protocols.vertical.local_part import LocalPart
from securevfl.sparse import Matrix, SparseRows, dense, index_type
from securevfl.training import plan_for, train


@dataclass(frozen=True)
class InOnePlace:
    """A model trained without any protocol.

    Attributes:
        auc: of the held-out rows.
        loss: the mean over them.
        training_s: seconds of all steps on this machine's clock.
        cpu_s: those of this process.
    """

    auc: float
    loss: float
    training_s: float
    cpu_s: float


def one_table(dataset: VerticalDataset[Any]) -> PartyTable[Any]:
    """The columns of all parties side by side, under the label party's name."""
    return PartyTable(
        dataset.label_party,
        tuple(column for table in dataset.parties for column in table.columns),
        side_by_side([table.train for table in dataset.parties]),
        side_by_side([table.test for table in dataset.parties]),
    )


def side_by_side(tables: Sequence[Matrix]) -> Matrix:
    """The columns of several parties' rows, all arrays or all sparse rows, block by block."""
    rows = [table for table in tables if isinstance(table, SparseRows)]
    if not rows:
        return np.hstack([dense(table) for table in tables])
    if len(rows) < len(tables):
        raise ConfigError("sparse rows and arrays do not stand side by side")
    from scipy.sparse import hstack  # noqa: PLC0415  # slow to import

    if any(table.scaling is not None or table.constant for table in rows):
        raise ValueError("sparse rows stand side by side as they are stored")
    columns = sum(table.columns for table in rows)
    has_values = any(table.values is not None for table in rows)
    lengths, indices, values = [np.zeros(1, np.int64)], [], []
    for part, _ in rows[0].blocks():
        joined = hstack([table[part].stored for table in rows], format="csr")
        lengths.append(np.diff(joined.indptr).astype(np.int64))
        indices.append(joined.indices.astype(index_type(columns)))
        if has_values:
            values.append(joined.data)
    pointers = np.cumsum(np.concatenate(lengths))
    cells = np.concatenate(values) if has_values else None
    return SparseRows(pointers, np.concatenate(indices), cells, columns)


def tuned_in_one_place(job: Job, dataset: VerticalDataset) -> float:
    """The η0 of the grid with which one model is best on the validation rows."""
    held_out = validation_split(dataset)

    def score(rate: float) -> float:
        tried = job.with_settings(learning_rate=rate)
        return train_in_one_place(tried, held_out, one_model=True).auc

    return max(GRID, key=score)


def train_in_one_place(
    job: Job,
    dataset: VerticalDataset[Any],
    parties: Collection[str] | None = None,
    *,
    one_model: bool | PartyTable[Any] = False,
) -> InOnePlace:
    """Train by minibatch SGD.

    Args:
        job: rounds, batches, step sizes, local models and seed.
        dataset: the data.
        parties: whose columns; all by default. The constant column is the label party's, and of
            whoever trains alone.
        one_model: train one model over all columns, `one_table` if it is there already, in place of
            the sum of the parties' own; a network with as many hidden units a layer as theirs have
            together.
    """
    if one_model and job.job.model == "mlp":
        units = job.model_of(dataset.label_party).hidden
        job = job.with_settings(hidden=[len(dataset.parties) * each for each in units])
    settings, plan = job.job, plan_for(job, dataset)
    loss = plan.loss
    tables = dataset.parties
    if one_model:
        tables = (one_table(dataset) if one_model is True else one_model,)
    parts = [
        LocalPart(
            plan,
            table,
            np.random.default_rng([settings.seed, number]),
            with_intercept=table.name == dataset.label_party or parties == [table.name],
        )
        for number, table in enumerate(tables)
        if parties is None or table.name in parties
    ]
    started, cpu = time.perf_counter(), time.process_time()
    cut = [PartyBatches(plan, dataset.train_labels, part.inputs) for part in parts]
    for index in range(settings.rounds):
        batches = [each.stretch(index, 1) for each in cut]
        linearized = [
            part.model.linearize(batch.inputs) for part, batch in zip(parts, batches, strict=True)
        ]
        total = np.asarray(sum(predictions for predictions, _ in linearized))
        residuals = loss.residuals(total, batches[0].labels)
        for part, (_, pull_back) in zip(parts, linearized, strict=True):
            gradient = pull_back(residuals) / len(total) + part.model.penalty_gradient(plan.l2)
            part.model.weights = part.model.weights - plan.step_size.at(index) * gradient
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    held_out = np.sum([part.model.predict(part.held_out) for part in parts], axis=0)
    labels = dataset.test_labels
    return InOnePlace(auc(held_out, labels), loss.value(held_out, labels), seconds, cpu)


def trained_alone(job: Job, dataset: VerticalDataset, party: str) -> float:
    """Held-out AUC of a job's own training, in clear, on one party's columns and the labels.

    A job takes two parties: the other has one column, of zeros, and a linear model.
    """
    table = next(table for table in dataset.parties if table.name == party)
    nobody = f"beside-{party}"
    train_zeros, test_zeros = (np.zeros((len(rows), 1)) for rows in (table.train, table.test))
    beside = PartyTable(
        nobody, ("nothing",), train_zeros, test_zeros, rows_digest=table.rows_digest
    )
    alone = replace(
        dataset,
        parties=(table, beside),
        label_party=party,
        own_rows=None,
    )
    linear = PartySettings(name=nobody, role="feature", model="linear")
    own = [each for each in job.party if each.name == party]
    bounds = {column: each for column, each in job.job.bounds.items() if column in table.columns}
    job = job.with_settings(bounds=bounds).model_copy(update={"party": (*own, linear)})
    return train(job.without_protection, alone).clear_auc

from typing import Any

import numpy as np
import pytest

from securevfl.blocks import BlockedRows
from securevfl.data.tables import PartyTable, overlapping
from securevfl.errors import ConfigError
from securevfl.protocols import exchange
from securevfl.protocols.exchange import PartyBatches
from securevfl.protocols.guards.feature_guard import rank_of
from securevfl.protocols.session.workplace import PartyData
from securevfl.protocols.vertical import local_part
from securevfl.protocols.vertical.local_part import LocalPart
from securevfl.sparse import Matrix, SparseRows, dense
from tests.plans import plan_of
from tests.sparse_data import few_ones, sparse, sparse_rows

STEPS = {"local_steps": 2, "learning_rate": 0.1}
ONES = np.where(np.random.default_rng(0).random((64, 12)) < 0.3, 1.0, 0.0)


def table_of(party: str = "shop", columns: int = 12) -> PartyTable[Matrix]:
    rows = sparse_rows(ONES)
    wide = SparseRows(rows.pointers, rows.indices, rows.values, columns)
    return PartyTable(party, tuple(map(str, range(columns))), wide, wide[:8])


def refused(message: str, party: str = "shop", columns: int = 12, **sections: Any) -> None:  # noqa: ANN401
    plan = plan_of(**sections)
    with pytest.raises(ConfigError, match=message):
        LocalPart(plan, table_of(party, columns), np.random.default_rng(0))


def test_steps_that_need_a_gram_matrix_are_for_few_columns() -> None:
    plan = plan_of(job={"local_steps": "exact"})
    LocalPart(plan, table_of(columns=2048), np.random.default_rng(0))
    refused("'exact' needs a matrix of P x P", columns=2049, job={"local_steps": "exact"})
    bfv: dict[str, Any] = {"scheme": "bfv", "round_trips": 1}
    refused(
        "round_trips = 1 needs .* round_trips = 2",
        columns=2049,
        job={**STEPS, "batch_size": 16},
        exchange=bfv,
    )
    blind = {"scheme": "blind"}
    refused("exchange 'blind' needs", columns=2049, job=STEPS, exchange=blind)
    names, zeros = tuple(map(str, range(8193))), np.zeros((2, 8193))
    message = "holds dense rows of 8193 columns: .* for at most 8192 columns; give local_steps"
    with pytest.raises(ConfigError, match=message):
        LocalPart(plan, PartyTable("shop", names, zeros, zeros), np.random.default_rng(0))


@pytest.mark.parametrize("scheme", ["bfv", "ckks", "paillier", "blind"])
def test_batches_under_encryption_are_arrays_or_refused(
    monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    monkeypatch.setattr(local_part, "DENSE_BYTES", 8 * 12 * 20)
    sections: dict[str, Any] = {"exchange": {"scheme": scheme}}
    message = "64 rows of .* 20 rows pass, and linear models in exchange 'plain'"
    refused(message, job=STEPS, **sections)
    fits = plan_of(job={**STEPS, "batch_size": 16}, **sections)
    if scheme == "blind":
        refused("takes all rows as arrays", job={**STEPS, "batch_size": 16}, **sections)
    else:
        LocalPart(fits, table_of(), np.random.default_rng(0))
    LocalPart(plan_of(job=STEPS), table_of(), np.random.default_rng(0))


def test_what_goes_through_columns_takes_dense_ones() -> None:
    refused("'dbcd' takes dense ones", job={"algorithm": "dbcd", "l1": 0.1})
    refused("'ftl' takes dense ones", job={"algorithm": "ftl"})
    message = "party 'party0': algorithm 'ftl' needs dense columns, and these are sparse"
    with pytest.raises(ConfigError, match=message):
        overlapping(sparse(few_ones()), 0.5, seed=0)
    head = {**STEPS, "head": "logistic", "model": "mlp"}
    refused("a head at the label party takes dense ones", party="bank", job=head)


def test_other_networks_take_batches_as_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_part, "DENSE_BYTES", 8 * 12 * 20)
    cnn = {**STEPS, "model": "cnn", "image_width": 4, "channels": [2]}
    refused("this network takes batches as arrays", job=cnn)
    LocalPart(plan_of(job={**cnn, "batch_size": 16}), table_of(), np.random.default_rng(0))
    refused("not precision = 'single'", job={**STEPS, "model": "mlp", "precision": "single"})


@pytest.mark.parametrize("scheme", ["plain", "bfv"])
def test_batches_are_kept_while_they_are_little(
    monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    plan = plan_of(job={**STEPS, "batch_size": 16}, exchange={"scheme": scheme})
    table = table_of()
    data = PartyData(table, None, None)
    assert isinstance(table.train, SparseRows)
    kept = 8 * 64 * 12 if scheme == "bfv" else 6 * table.train.nnz
    for room, keeps in ((kept, True), (kept - 1, False)):
        monkeypatch.setattr(exchange, "KEPT_BYTES", room)
        cut = PartyBatches(plan, data.train_labels, table.train)
        key = plan.schedule.batch_key(0)
        later = next(i for i in range(1, 20) if plan.schedule.batch_key(i) == key)
        first, again = cut.at(0), cut.at(later)
        assert (first is again) == keeps
        # What an exchange makes of a batch is larger than the batch.
        assert first.repeats == keeps
        np.testing.assert_array_equal(first.tangent, again.tangent)


@pytest.mark.parametrize("room", [0, exchange.REORDERED_BYTES])
def test_batches_of_a_shuffle_are_the_rows_of_their_rounds(
    monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    monkeypatch.setattr(exchange, "REORDERED_BYTES", room)
    plan = plan_of(job={**STEPS, "batch_size": 9, "sampling": "shuffle"})
    rows, labels = table_of().train, np.arange(plan.facts.rows)
    batches, epoch = PartyBatches(plan, labels, rows), plan.schedule.batches
    # Within an epoch, over its end, whole epochs later, and back.
    for first, length in ((0, 1), (2, 3), (epoch - 1, 2), (5 * epoch, 1), (1, 1)):
        cut = batches.stretch(first, length)
        for index, part in enumerate(cut.parts, first):
            inputs, own = cut.of(part)
            chosen = plan.schedule.batch(index)
            assert np.array_equal(own, chosen)
            assert np.array_equal(dense(inputs), dense(rows[chosen]))


@pytest.mark.parametrize("sampling", ["shuffle", "partition"])
def test_no_stretch_has_rows_once_the_next_is_cut_out(sampling: str) -> None:
    """Rows of a shuffle are overwritten an epoch later."""
    plan = plan_of(job={**STEPS, "batch_size": 9, "sampling": sampling})
    batches = PartyBatches(plan, np.arange(plan.facts.rows), table_of().train)
    first = batches.stretch(0, 2)
    again = batches.stretch(2, 1)
    assert len(again.of(again.parts[0])[0]) == plan.schedule.size(2)
    with pytest.raises(AttributeError):
        first.of(first.parts[0])


def test_batches_of_a_long_table_are_cut_out_each_time() -> None:
    plan = plan_of(job={**STEPS, "batch_size": 16}, exchange={"scheme": "bfv"})
    rows = BlockedRows.of(dense(table_of().train))
    batches = PartyBatches(plan, None, rows)
    key = plan.schedule.batch_key(0)
    later = next(i for i in range(1, 20) if plan.schedule.batch_key(i) == key)
    assert batches.at(0) is not batches.at(later)
    assert not batches.at(0).repeats


def test_the_rank_of_many_rows_is_taken_low(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = sparse_rows(ONES)
    assert rank_of(rows) == rank_of(ONES) == 12
    monkeypatch.setattr("securevfl.protocols.guards.feature_guard.RANKED_VALUES", 12 * 5)
    assert rank_of(rows) <= 5
    assert rank_of(ONES) <= 5

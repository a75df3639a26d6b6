"""Row shards: batches parted, gradients summed, and jobs for which that is not the same."""

import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from securevfl.actors.links import Links
from securevfl.actors.row_shards import (
    RowSharded,
    ShardSchedule,
    ShardSums,
    actor_name,
    data_of_shard,
    plan_of_shard,
    require_shardable,
)
from securevfl.data.partition import BatchSchedule
from securevfl.data.tables import row_digests
from securevfl.errors import ConfigError, SecureVFLError, UnexpectedMessage
from securevfl.job import Job
from securevfl.models.linear import LinearModel
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.workplace import PartyData
from securevfl.runtime.costs import Costs, Stopwatch
from securevfl.training import plan_for
from tests.made_data import blocks_of, dataset_of, labels_of

ROWS, SHARDS = 203, 3
SHARDABLE: dict[str, object] = {
    "algorithm": "fedbcd-p",
    "rounds": 3,
    "batch_size": 40,
    "start": "zero",
    "standardize": False,
    "learning_rate": 0.1,
}


@pytest.mark.parametrize("sampling", ["partition", "shuffle"])
def test_every_row_of_a_batch_is_at_one_shard(sampling: str) -> None:
    digests = row_digests(range(ROWS))
    whole = BatchSchedule(digests, 40, 5, sampling)  # type: ignore[arg-type]
    parts = [
        ShardSchedule(digests, 40, 5, sampling, shard=shard, shards=SHARDS)  # type: ignore[arg-type]
        for shard in range(SHARDS)
    ]
    for index in range(9):
        rows = [part.batch(index) * SHARDS + part.shard for part in parts]
        assert np.array_equal(np.sort(np.concatenate(rows)), whole.batch(index))


def test_a_shard_without_a_row_of_a_batch_is_refused() -> None:
    schedule = ShardSchedule(row_digests(range(20)), 2, 0, "shuffle", shard=1, shards=10)
    whole = BatchSchedule(row_digests(range(20)), 2, 0, "shuffle")
    without = next(n for n in range(10) if not (whole.batch(n) % 10 == 1).any())
    with pytest.raises(ConfigError, match=r"--row-shards 10: shard 1 has none of the 2 rows"):
        schedule.batch(without)


def made_plan(**settings: object) -> Plan:
    exchange = {"scheme": str(settings.pop("scheme", "plain"))}
    job = Job.of(job={**SHARDABLE, **settings}, exchange=exchange)
    generator = np.random.default_rng(1)
    blocks = blocks_of(generator, 2, rows=ROWS)
    return plan_for(job, dataset_of(blocks, labels_of(generator, blocks)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"algorithm": "fedbcd-s"}, "algorithm 'fedbcd-s'"),
        ({"scheme": "bfv", "allow_label_leak": True}, "exchange 'bfv'"),
        ({"start": "random"}, "start = 'random'"),
        ({"learning_rate": "auto"}, "learning_rate = 'auto'"),
        ({"standardize": True}, "standardized columns"),
        ({"target_auc": 0.9}, "target_auc"),
        ({"model": "mlp", "start": "random"}, "networks"),
        ({"acceleration": "nesterov"}, "exact or accelerated"),
    ],
)
def test_jobs_that_would_come_to_something_else_are_refused(
    settings: dict[str, object], message: str
) -> None:
    require_shardable(made_plan())
    with pytest.raises(ConfigError, match=f"^--row-shards: {message}"):
        require_shardable(made_plan(**settings))


def test_shards_part_all_rows_and_the_first_has_those_held_out() -> None:
    plan, generator = made_plan(), np.random.default_rng(1)
    blocks = blocks_of(generator, 2, rows=ROWS)
    dataset = dataset_of(blocks, labels_of(generator, blocks))
    table = dataset.parties[0]
    data = PartyData(table, dataset.train_labels, dataset.test_labels)
    parts = [data_of_shard(data, shard, SHARDS) for shard in range(SHARDS)]
    plans = [plan_of_shard(plan, shard, SHARDS) for shard in range(SHARDS)]
    together = np.empty_like(table.train)
    for shard, (part, lane) in enumerate(zip(parts, plans, strict=True)):
        together[shard::SHARDS] = part.table.train
        assert lane.facts.rows == len(part.table.train)
        assert lane.facts.test_rows == len(part.table.test)
        assert part.train_labels is not None
        assert np.array_equal(part.train_labels, dataset.train_labels[shard::SHARDS])
        assert lane.hash == plan.hash
    assert np.array_equal(together, table.train)
    assert [len(part.table.test) for part in parts] == [len(table.test), 0, 0]


def at_all(
    work: Callable[[int, ShardSums], object], folder: Path, ledgers: list[Costs]
) -> list[BaseException]:
    """Do something at every shard, each on its own thread and connected; what went wrong."""
    found: list[BaseException] = []
    names = [actor_name("bank", shard) for shard in range(SHARDS)]
    with ExitStack() as stack:
        links = [Links(name, f"unix:{folder / name}") for name in names]
        for each in links:
            stack.callback(each.close)

        def tried(shard: int) -> None:
            own = links[shard]
            others = {n: each.peer for n, each in zip(names, links, strict=True) if each is not own}
            try:
                own.connect(others)
                work(shard, ShardSums(names[shard], names, own, ledgers[shard]))
            except SecureVFLError as error:
                found.append(error)

        threads = [threading.Thread(target=tried, args=(shard,)) for shard in range(SHARDS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return found


def test_gradients_of_all_shards_are_those_of_all_rows(tmp_path: Path) -> None:
    generator = np.random.default_rng(2)
    inputs, residuals = generator.normal(size=(31, 4)), generator.normal(size=(31, 1))
    weights = generator.normal(size=(4, 1))
    gradients: dict[int, np.ndarray] = {}
    ledgers = [Costs(Stopwatch()) for _ in range(SHARDS)]

    def step(shard: int, sums: ShardSums) -> None:
        model = RowSharded(LinearModel(weights), sums)
        rows = slice(shard, None, SHARDS)
        for _ in range(2):
            predictions, pull_back = model.linearize(inputs[rows])
            assert np.array_equal(predictions, inputs[rows] @ weights)
            gradients[shard] = pull_back(residuals[rows]) / len(inputs[rows])

    assert not at_all(step, tmp_path, ledgers)
    for gradient in gradients.values():
        np.testing.assert_allclose(gradient, inputs.T @ residuals / 31, rtol=1e-12)
    assert all(ledger.messages["ShardGradient"] == 2 * (SHARDS - 1) for ledger in ledgers)


def test_a_gradient_of_another_shape_is_refused(tmp_path: Path) -> None:
    """Added up it could pass for one number that stands for all."""

    def step(shard: int, sums: ShardSums) -> None:
        sums.mean_part(np.ones((4 if shard else 1, 1)), 5)

    found = at_all(step, tmp_path, [Costs(Stopwatch()) for _ in range(SHARDS)])
    assert "bank sent an array of" in " ".join(map(str, found))
    assert all(isinstance(each, UnexpectedMessage) for each in found)

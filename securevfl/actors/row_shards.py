"""Row shards: several actors of one party, each with a part of the party's rows.

Shard j of every party holds the same rows. These shards are a *lane*: they run the job among
themselves on their rows of each batch. Only gradients cross lanes, within a party: each of its
steps uses their sum over its shards. All shards of a party therefore have the same model at all
times, up to rounding: that of one actor with all rows.

Learns:
    shards of one party: each other's sums of gradients; they are the same party.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from securevfl.actors.links import Links
from securevfl.arrays import FloatArray
from securevfl.data.partition import BatchSchedule
from securevfl.errors import ConfigError
from securevfl.job import Job
from securevfl.models.linear import LinearModel
from securevfl.models.local_model import LocalModel, PullBack
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.workplace import PartyData
from securevfl.runtime.channel import expect, expect_shape
from securevfl.runtime.costs import Costs
from securevfl.sparse import Matrix
from securevfl.wire.codec import MAX_MESSAGE_BYTES, StepMessage, encode, message_kind

SHARDABLE = ("fdml", "fedsgd", "fedbcd-p")


@message_kind(100, stage="round", carries="values", shows="gradients")
class ShardGradient(StepMessage):
    """From one row shard to another of its party: Σ_s (∂H_s/∂θ)ᵀd_s over its `rows` of a batch."""

    rows: int
    values: FloatArray


def actor_name(party: str, shard: int) -> str:
    """The actor's name of a party's shard; no party's name contains `#`."""
    return party if shard == 0 else f"{party}#{shard}"


def require_shardable(plan: Plan) -> None:
    """Check that rows in shards do not change a job's result; a ConfigError says what to set."""
    job, name = plan.job.job, plan.algorithm.name
    standardize = plan.facts.standardize if job.standardize is None else job.standardize
    refused = {
        f"algorithm {name!r}, expected one of {', '.join(SHARDABLE)}": name not in SHARDABLE,
        f"exchange {plan.exchange.name!r}, expected 'plain'": plan.exchange.name != "plain",
        "networks, expected linear models that are summed": plan.networks or job.head != "sum",
        "start = 'random', which depends on all rows, expected 'zero'": job.start != "zero",
        "learning_rate = 'auto', which depends on all rows, expected a number": plan.derives_steps,
        "exact or accelerated steps, expected gradient steps": plan.rule.exact
        or plan.rule.accelerated,
        "standardized columns, which depend on all rows, expected standardize = false": standardize,
        "target_auc, which only one shard would know": job.target_auc is not None,
    }
    for what, there in refused.items():
        if there:
            raise ConfigError(f"--row-shards: {what}")


def without_states(job: Job) -> Job:
    """The job without checkpoints: if one shard dies, all start from the beginning."""
    output = job.output.model_copy(update={"checkpoint_every": 0})
    return job.model_copy(update={"output": output})


@dataclass(eq=False)
class ShardSchedule(BatchSchedule):
    """A shard's rows of each batch, by its own row numbers."""

    shard: int = 0  # j; it holds the rows j, j + J, j + 2J, ...
    shards: int = 1  # J

    @override
    def batch(self, round_number: int) -> NDArray[np.int64]:
        rows = super().batch(round_number)
        own: NDArray[np.int64] = rows[rows % self.shards == self.shard] // self.shards
        if not len(own):
            raise ConfigError(
                f"--row-shards {self.shards}: shard {self.shard} has none of the {len(rows)} rows "
                "of a batch; take fewer shards, or a larger batch_size"
            )
        return own


def plan_of_shard(plan: Plan, shard: int, shards: int) -> Plan:
    """The job in one lane: its training rows and, in the first lane, all held-out rows."""
    facts = plan.facts
    digests = facts.row_digests[shard::shards]
    lane = replace(
        facts,
        rows=len(digests),
        test_rows=facts.test_rows if shard == 0 else 0,
        row_digests=digests,
    )
    whole = plan.schedule
    schedule = ShardSchedule(
        whole.row_digests, whole.batch_size, whole.seed, whole.sampling, shard=shard, shards=shards
    )
    return replace(plan, facts=lane, schedule=schedule)


def data_of_shard(data: PartyData, shard: int, shards: int) -> PartyData:
    """A shard's part of its party's data."""
    rows = np.arange(shard, len(data.table.train), shards)
    test = np.arange(len(data.table.test) if shard == 0 else 0)
    labels, held_out, table = data.train_labels, data.test_labels, data.table
    people = table.people and (table.people[0][rows], table.people[1][test])
    return replace(
        data,
        table=replace(table, train=table.train[rows], test=table.test[test], people=people),
        train_labels=None if labels is None else labels[rows],
        test_labels=None if held_out is None else held_out[test],
    )


class ShardSums:
    """One shard's part in the sums over a party's shards.

    Args:
        name: of this shard's actor.
        shards: the actors of all of the party's shards, in order.
        links: its connections.
        costs: its ledger, which counts these messages, too.
    """

    def __init__(self, name: str, shards: Sequence[str], links: Links, costs: Costs) -> None:
        self._name, self._shards, self._links, self._costs = name, shards, links, costs
        self._step = 0

    def mean_part(self, values: FloatArray, rows: int) -> FloatArray:
        """Scale the sum over all shards so that dividing by own rows gives the mean over all rows.

        Args:
            values: this shard's sum over its rows.
            rows: how many rows it has.

        Returns:
            Σ values · rows / Σ rows.

        Raises:
            PeerError: another shard died, or sent something else.
        """
        own = ShardGradient(self._step, rows, values)
        data = encode(own)
        parts: Mapping[str, ShardGradient] = {self._name: own}
        for name in self._others():
            self._costs.sent(own, len(data))
            self._links.carry(name, data)
        for name in self._others():
            received = self._links.next_from(name)
            part = expect(received, name, ShardGradient, self._step, MAX_MESSAGE_BYTES)
            expect_shape(name, part.values, values.shape)
            parts = {**parts, name: part}
        self._step += 1
        total: FloatArray = np.sum([parts[name].values for name in self._shards], axis=0)
        return total * rows / sum(part.rows for part in parts.values())

    def _others(self) -> list[str]:
        return [name for name in self._shards if name != self._name]


class RowSharded(LinearModel):
    """A linear model whose gradients are over all shards' rows.

    Args:
        model: of the shard.
        sums: over the shards.
    """

    def __init__(self, model: LocalModel, sums: ShardSums) -> None:
        super().__init__(model.weights, model.intercept)
        self._sums = sums

    @override
    def linearize(self, inputs: Matrix) -> tuple[FloatArray, PullBack]:
        predictions, own = super().linearize(inputs)
        return predictions, lambda residuals: self._sums.mean_part(own(residuals), len(inputs))

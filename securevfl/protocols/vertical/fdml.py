"""FDML (Hu et al., KDD 2019): asynchronous parties around a server of local predictions.

The prediction of a sample is σ(Σ_k α_k(x_k)). The server keeps the newest α_k of every sample and
party. At its iteration t a party *pushes* its predictions of batch I(t) and *pulls* the sum of the
others' for the same batch; the server refuses the pull, and answers as soon as it may, while the
party is more than τ iterations ahead of the slowest (stale-synchronous parallel). τ = 0 is bulk
synchronous: every sum is fresh, and the steps are those of one trainer with all columns.

Learns:
    server: every party's predictions per sample, clipped and noisy under `dp`; no label.
    every party: all labels, given to it in advance, and Σ_{j≠k} of the others' predictions per
        sample of each batch: with two parties the other's prediction itself.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from securevfl.arrays import FloatArray, IntArray
from securevfl.errors import ConfigError, PeerViolation, TrainingDiverged, UnexpectedMessage
from securevfl.job import Job
from securevfl.models.local_model import LocalModel
from securevfl.models.scores import accuracy, auc
from securevfl.protocols.session.agreement import Hello
from securevfl.protocols.session.gathering import HeldOutPredictions
from securevfl.protocols.session.party import Party
from securevfl.protocols.session.privacy_account import Noise
from securevfl.protocols.session.scoring import Score
from securevfl.protocols.vertical.fedbcd import Batches, StepSize
from securevfl.runtime.channel import Channel, collect, expect_shape
from securevfl.runtime.costs import SCORING, SETUP, Costs
from securevfl.wire.codec import StepMessage, message_kind

Staleness = int | Literal["unbounded"]
SERVER = "server"


@message_kind(12, stage="round", carries="values")
class PushedPredictions(StepMessage):
    """FDML, a party to the server: its predictions of a batch, shape (S, C)."""

    values: FloatArray


@message_kind(13, stage="round", carries="values")
class PulledSums(StepMessage):
    """FDML, the server to a party: the newest of the others for the same batch, summed."""

    values: FloatArray


@dataclass(frozen=True)
class Served:
    """What the server saw of the parties' speed.

    Attributes:
        refused: by party, pulls that had to wait.
        leads: by party and iteration, how many iterations it was ahead of the slowest when it was
            answered.
    """

    refused: dict[str, int]
    leads: dict[str, list[int]] = field(repr=False)


def check_fdml(job: Job, names: Collection[str]) -> None:
    """Check that a job asks nothing of fdml that it does not have, and of others nothing of its.

    Raises:
        ConfigError: it does.
    """
    settings = job.job
    if settings.algorithm != "fdml":
        if settings.staleness != 0:
            raise ConfigError(f"staleness is for algorithm 'fdml', not {settings.algorithm!r}")
        return
    if job.exchange.scheme not in {"plain", "dp"}:
        raise ConfigError(
            f"algorithm = 'fdml' takes exchange plain or dp, not {job.exchange.scheme!r}"
        )
    if SERVER in names:
        raise ConfigError(f"party {SERVER!r}: the name of fdml's server")
    if job.privacy.label_noise_multiplier:
        raise ConfigError("label_noise_multiplier: under fdml all parties hold the labels")
    if settings.target_auc is not None:
        raise ConfigError("target_auc: fdml's parties run to the last round without scoring")
    if settings.proximal:
        raise ConfigError("proximal: fdml takes no local steps that it could pull back")


async def serve(
    channel: Channel,
    costs: Costs,
    *,
    workers: tuple[str, ...],
    job_hash: bytes,
    rounds: int,
    staleness: Staleness,
    batch: Callable[[int], IntArray],
    shape: tuple[int, int],
    test_rows: int,
) -> Served:
    """The server's program.

    Args:
        channel: to the parties.
        costs: its ledger.
        workers: the parties.
        job_hash: of the job.
        rounds: T, iterations of each party.
        staleness: τ.
        batch: the rows of I(t).
        shape: N and C.
        test_rows: of the held-out rows; 0 for none.

    Raises:
        PeerViolation: a party runs another job, over other rows, or breaks the order.
    """
    hellos = await collect(channel, workers, Hello)
    async with costs.compute(SETUP):
        newest = {name: np.zeros(shape) for name in workers}
    for name, hello in hellos.items():
        if (hello.job_hash, hello.rows, hello.test_rows) != (job_hash, shape[0], test_rows):
            raise PeerViolation(f"{name} runs another job, or over other rows, than the server")
    pushed = dict.fromkeys(workers, 0)
    waiting: list[str] = []
    served = Served(dict.fromkeys(workers, 0), {name: [] for name in workers})
    slowest = 0
    while slowest < rounds:
        running = [name for name in workers if pushed[name] < rounds and name not in waiting]
        sender, message = await channel.receive(running, PushedPredictions)
        if message.step != pushed[sender]:
            raise UnexpectedMessage(
                f"{sender} pushed iteration {message.step} where {pushed[sender]} is due"
            )
        async with costs.compute("local"):
            rows = batch(message.step)
            expect_shape(sender, message.values, (len(rows), shape[1]))
            newest[sender][rows] = message.values
        pushed[sender] += 1
        waiting.append(sender)
        ends_round = min(pushed.values()) > slowest
        slowest += ends_round
        for name in waiting.copy():
            if staleness != "unbounded" and pushed[name] - slowest > staleness:
                served.refused[name] += name == sender
                continue
            waiting.remove(name)
            served.leads[name].append(pushed[name] - slowest)
            async with costs.compute("local"):
                step = pushed[name] - 1
                others = _sum_of_others(newest, name, batch(step))
            await channel.send(name, PulledSums(step, others))
        if ends_round:
            costs.end_round()
    await _sum_held_out(channel, costs, workers, rounds, (test_rows, shape[1]))
    return served


def _sum_of_others(newest: dict[str, FloatArray], name: str, rows: IntArray) -> FloatArray:
    others = [values for other, values in newest.items() if other != name]
    total = others[0][rows]
    for values in others[1:]:
        total += values[rows]
    return total


async def _sum_held_out(
    channel: Channel,
    costs: Costs,
    workers: tuple[str, ...],
    rounds: int,
    shape: tuple[int, int],
) -> None:
    if not shape[0]:
        return
    received = await collect(channel, workers, HeldOutPredictions, rounds)
    async with costs.compute(SCORING):
        for name, message in received.items():
            expect_shape(name, message.values, shape)
        total: FloatArray = np.sum([message.values for message in received.values()], axis=0)
    for name, message in received.items():
        await channel.send(name, HeldOutPredictions(rounds, total - message.values))


async def work(
    party: Party,
    model: LocalModel,
    *,
    rounds: int,
    step_size: StepSize,
    l2: float,
    batches: Batches,
    noise: Noise | None,
    after_round: Callable[[int], None],
) -> None:
    """Train one party's part of the model, in place, at its own speed.

    Args:
        party: who it is; `party.names` are the parties without the server.
        model: θ⁰ of this party.
        rounds: T.
        step_size: η, η0/√t as a rule.
        l2: λ.
        batches: this party's rows, with labels.
        noise: what it adds to its predictions; None adds nothing.
        after_round: called with the number of iterations done.

    Raises:
        PeerError: the server failed.
        TrainingDiverged: the new weights are not finite.
    """
    costs = party.costs
    for index in range(rounds):
        batch = batches.at(index)
        assert batch.labels is not None  # noqa: S101
        async with costs.compute("local"):
            predictions, pull_back = model.linearize(batch.inputs)
        shared = await _released(costs, predictions, noise, "encrypt")
        await party.channel.send(SERVER, PushedPredictions(index, shared))
        sender, pulled = await party.channel.receive([SERVER], PulledSums, index)
        expect_shape(sender, pulled.values, predictions.shape)
        async with costs.compute("local"):
            residuals = party.loss.residuals(pulled.values + predictions, batch.labels)
            gradient = pull_back(residuals) / len(batch.inputs) + model.penalty_gradient(l2)
            model.weights = model.weights - step_size.at(index) * gradient
            if not np.isfinite(model.weights).all():
                raise TrainingDiverged(
                    f"training diverged at learning rate {step_size.at(index):g}: use a smaller one"
                )
        costs.end_round()
        after_round(index + 1)


async def score(
    party: Party,
    predictions: FloatArray,
    labels: IntArray,
    rounds: int,
    noise: Noise | None,
) -> Score:
    """Held-out scores, as every party sees them: one more release of each held-out row."""
    shared = await _released(party.costs, predictions, noise, SCORING)
    await party.channel.send(SERVER, HeldOutPredictions(rounds, shared))
    sender, others = await party.channel.receive([SERVER], HeldOutPredictions, rounds)
    expect_shape(sender, others.values, predictions.shape)
    # All parties score the same numbers: each its own as it was shared.
    total = shared + others.values
    return Score(rounds, auc(total, labels), accuracy(total, labels))


async def _released(
    costs: Costs, predictions: FloatArray, noise: Noise | None, phase: str
) -> FloatArray:
    if noise is None:
        return predictions
    async with costs.compute(phase):
        return noise.predictions.release(predictions, noise.generator)

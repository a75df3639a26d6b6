"""FDML (Hu et al., KDD 2019): asynchronous parties around a server of local predictions.

The prediction of a sample is σ(Σ_k h_k(x_k)). The server keeps the newest H_k of every sample and
party. At iteration i a party *pushes* its predictions of that batch and *pulls* the sum of the
others' for the same batch; the server refuses the pull, and answers as soon as it may, while the
party is more than τ iterations ahead of the slowest (stale-synchronous parallel). τ = 0 is bulk
synchronous: every sum is fresh, and at a given rate the steps are those of one trainer with all
columns.

Departures from the paper's Algorithm 1 (docs/decisions/0024-departures-from-fdml.md):

- Noise: there a party steps on the row sum with its own noisy push in it, here on the others'
  noisy sum and its own exact prediction; `own_prediction = "noisy"` is the paper's.
- Refusal: there from a lead of τ on, here beyond it; our τ is the paper's τ + 1.
- Step: there the sum of a batch's gradients, here their mean; our η0 is S times the paper's. There
  η0/√t, here by default what a party's columns and the noise of batches allow (decision 48).
- Messages: there one batch's predictions, here several batches', or in float32, on request
  (decision 40).

Learns:
    server: every party's predictions per sample, clipped and noisy under `dp`; no label.
    every party: all labels, given to it in advance, and Σ_{j≠k} of the others' predictions per
        sample of each batch: with two parties the other's prediction itself.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from typing_extensions import override

from securevfl.arrays import FloatArray, Labels
from securevfl.errors import ConfigError
from securevfl.job import FdmlSettings, Job
from securevfl.models.local_model import PullBack
from securevfl.protocols.algorithm import Algorithm
from securevfl.protocols.exchange import Exchange, GivesSingly, Release, Shown
from securevfl.protocols.local_steps import LocalSteps
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.agreement import agree
from securevfl.protocols.session.gathering import HeldOutPredictions
from securevfl.protocols.session.keeping import Keeper
from securevfl.protocols.session.label_guard import LeakageCount
from securevfl.protocols.session.party import Party
from securevfl.protocols.session.privacy_account import Visits
from securevfl.protocols.session.scoring import Score
from securevfl.protocols.session.workplace import Workplace
from securevfl.protocols.vertical.batches import PartyBatches
from securevfl.protocols.vertical.fdml_server import (
    SERVER,
    PulledSums,
    PushedPredictions,
    as_it_travels,
    expect_predictions,
    serve,
)
from securevfl.protocols.vertical.keeping import keeper_of
from securevfl.protocols.vertical.memory import require_no_session
from securevfl.protocols.vertical.program import Trained, Training, run_party
from securevfl.runtime.channel import expect_shape
from securevfl.runtime.costs import SCORING, Costs
from securevfl.runtime.simulation import Program


class Fdml(Algorithm):
    """Asynchronous parties around a server."""

    name = "fdml"
    needs = (GivesSingly,)
    settings = FdmlSettings
    one_step = True
    labels_everywhere = True
    keeps_state = False
    scores_between = False
    default_schedule = "inverse-sqrt"
    roles = (
        ("server", "every party's predictions of every sample, noisy under `dp`", "labels"),
        (
            "every party",
            "all labels, given to it; the sum of the others' predictions of every sample",
            "others' features; at K ≥ 3 single predictions",
        ),
    )

    @override
    def check(self, plan: Plan) -> None:
        """Refuse what it does not have."""
        settings = plan.job.job
        _check_messages(plan.job.section(FdmlSettings, self.name))
        if plan.exchange.encrypts or plan.learns.predictions != "singly":
            raise ConfigError(
                "algorithm = 'fdml' gives single predictions to its server, clear or noisy: "
                f"not with exchange {plan.exchange.name!r} as it is set"
            )
        if SERVER in plan.facts.names:
            raise ConfigError(f"party {SERVER!r}: the name of fdml's server")
        if plan.job.privacy.label_noise_multiplier:
            raise ConfigError("label_noise_multiplier: under fdml all parties hold the labels")
        if settings.target_auc is not None:
            raise ConfigError("target_auc: fdml's parties run to the last round without scoring")
        if settings.acceleration == "nesterov":
            raise ConfigError("acceleration: fdml's parties have no rounds in common")
        if settings.l1:
            raise ConfigError("l1: fdml has no proximal step; use fedbcd-p or dbcd")
        if settings.proximal:
            raise ConfigError("proximal: fdml takes no local steps that it could pull back")

    @override
    def new_rows(self, job: Job, exchange: Exchange, parties: int) -> Shown:
        """Without noise only sums where there is one: a label party is no server."""
        if exchange.adds_noise or parties == 2:  # noqa: PLR2004
            return "singly"
        return "summed"

    @override
    def visits(self, plan: Plan) -> Visits:
        """One release and one step a visit."""
        return Visits(1, 1, 1)

    @override
    def programs(self, plan: Plan, places: Mapping[str, Workplace]) -> dict[str, Program[Any]]:
        """Those of the parties, and the server's."""
        settings = plan.job.section(FdmlSettings, self.name)
        parties = {
            name: partial(run_party, plan=plan, workplace=place, train=take_part)
            for name, place in places.items()
        }
        return {**parties, SERVER: partial(serve, plan=plan, settings=settings)}


def _check_messages(settings: FdmlSettings) -> None:
    several, limit = settings.batches_a_message, settings.staleness
    if limit != "unbounded" and several > limit + 1:
        raise ConfigError(
            f"batches_a_message = {several}: the last of them steps with predictions that are "
            f"{several - 1} iterations old, and staleness allows {limit}"
        )


async def take_part(training: Training) -> Trained:
    """One party's part: agree, train beside the server, score.

    Raises:
        PeerError: a peer or the server broke the protocol or is gone.
    """
    party, plan, part = training.party, training.plan, training.part
    require_no_session(training)
    agreement = await agree(
        party,
        plan.hash,
        part.inputs,
        len(part.held_out),
        parameters=part.parameters,
        encrypted=False,
        observers=[SERVER],
    )
    data = training.workplace.data
    batches = PartyBatches(plan, data, part.inputs)
    columns = sum((agreement.own_columns, *agreement.columns.values()))
    steps = plan.steps(training.model, part.inputs, columns)
    keeper = keeper_of(training, agreement)
    await work(training, batches, steps, keeper)
    kept = await keeper.end(plan.rounds)
    hindsight, learned = keeper.hindsight, True
    # Noise on predictions drowns the training loss.
    if hindsight is not None and not plan.exchange.adds_noise:
        learned = hindsight.learned(kept)
    scores = []
    if plan.timetable.test_rows and data.test_labels is not None:
        own = training.model.predict(part.held_out)
        assert isinstance(plan.exchange, GivesSingly)  # noqa: S101
        release = plan.exchange.release(training.noise, "held-out predictions")
        scores = [await score(party, own, data.test_labels, plan.rounds, release)]
        scores = [replace(scores[0], rounds=kept.rounds)]
    leakage = LeakageCount(plan.facts.rows, plan.loss.outputs, agreement.columns)
    return Trained(kept, scores, leakage, learned=learned)


async def work(
    training: Training, batches: PartyBatches, steps: LocalSteps, keeper: Keeper
) -> None:
    """Train one party's part of the model, in place, at its own speed.

    Raises:
        PeerError: the server failed.
    """
    party, model, plan = training.party, training.model, training.plan
    costs, settings = party.costs, plan.job.section(FdmlSettings, Fdml.name)
    assert isinstance(plan.exchange, GivesSingly)  # noqa: S101
    release = plan.exchange.release(training.noise)
    loss, precision = party.loss, settings.precision
    several = settings.batches_a_message
    pull_back: PullBack | None = None
    for first in range(0, plan.rounds, several):
        async with costs.compute("local"):
            stretch = batches.stretch(first, min(several, plan.rounds - first))
            if several == 1:
                predictions, pull_back = model.linearize(stretch.inputs)
            else:
                predictions = model.predict(stretch.inputs)
        released = await _released(costs, predictions, release, "encrypt")
        shared = as_it_travels(released, precision)
        await party.channel.send(SERVER, PushedPredictions(first, shared))
        sender, pulled = await party.channel.receive([SERVER], PulledSums, first)
        expect_predictions(sender, pulled.values, predictions.shape, precision)
        async with costs.compute("local"):
            for index, part in enumerate(stretch.parts, first):
                inputs, labels = stretch.of(part)
                if several > 1 or pull_back is None:
                    # At the weights now, as a party's own predictions need not be old.
                    predictions, pull_back = model.linearize(inputs)
                own = shared[part] if settings.own_prediction == "noisy" else predictions
                total = np.add(pulled.values[part], own, dtype=np.float64)
                steps.begin(index, len(labels))
                residuals = loss.residuals(total, labels)
                gradient = pull_back(residuals) / len(labels) + model.penalty_gradient(plan.l2)
                if keeper.lost is None:
                    with keeper.watches(index), np.errstate(over="ignore", invalid="ignore"):
                        model.weights = model.weights - steps.step_size(inputs) * gradient
                seen = loss.value(total, labels) if keeper.hindsight is not None else None
                keeper.after(index + 1, (), loss=seen)
        costs.end_round(len(stretch.parts))
        for index in range(len(stretch.parts)):
            training.after_round(first + index + 1)


async def score(
    party: Party,
    predictions: FloatArray,
    labels: Labels,
    rounds: int,
    release: Release | None,
) -> Score:
    """Held-out scores, as every party sees them: one more release of each held-out row."""
    shared = await _released(party.costs, predictions, release, SCORING)
    await party.channel.send(SERVER, HeldOutPredictions(rounds, shared))
    sender, others = await party.channel.receive([SERVER], HeldOutPredictions, rounds)
    expect_shape(sender, others.values, predictions.shape)
    # All parties score the same numbers: each its own as it was shared.
    total = shared + others.values
    return Score.of(rounds, total, labels, party.loss.middle)


async def _released(
    costs: Costs, predictions: FloatArray, release: Release | None, phase: str
) -> FloatArray:
    if release is None:
        return predictions
    async with costs.compute(phase):
        return release.units(predictions)


DESCRIPTIONS = (Fdml(),)

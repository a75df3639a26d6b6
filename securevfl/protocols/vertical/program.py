"""One party's program: agree with the others, train, score, keep the model.

The same coroutine runs in simulation and over a real network. It is given its own columns, and
the labels only where the algorithm says so.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from securevfl.crypto.scheme import KeyOwner
from securevfl.data.labels import TargetScaling
from securevfl.models.local_model import LocalModel
from securevfl.models.storage import save_model
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.keeping import Kept
from securevfl.protocols.session.label_guard import LeakageCount
from securevfl.protocols.session.outcome import Ending, PartyOutcome, PathPoint
from securevfl.protocols.session.party import Party
from securevfl.protocols.session.privacy_account import Noise
from securevfl.protocols.session.scoring import Score
from securevfl.protocols.session.workplace import Workplace
from securevfl.protocols.vertical.held_out_guarding import note_last_scoring
from securevfl.protocols.vertical.local_part import LocalPart
from securevfl.protocols.vertical.private_gradients import PrivateGradients
from securevfl.runtime.channel import Channel
from securevfl.runtime.costs import Costs


@dataclass(frozen=True, eq=False)
class Training:
    """What a party's part of an algorithm starts from.

    Attributes:
        party: who it is.
        plan: of the job.
        workplace: its data, and what it may use.
        part: what it trains.
        model: its model, with private gradients where the job has them.
        noise: what it adds, where the exchange adds noise.
        after_round: to be called with rounds done.
    """

    party: Party
    plan: Plan
    workplace: Workplace
    part: LocalPart
    model: LocalModel
    noise: Noise | None
    after_round: Callable[[int], None]


@dataclass(frozen=True, eq=False)
class Trained:
    """What is left of an algorithm beside the model; see `PartyOutcome`."""

    kept: Kept
    scores: list[Score]
    leakage: LeakageCount
    key: KeyOwner | None = None
    ended: Ending = "rounds"
    learned: bool = True
    path: tuple[PathPoint, ...] = ()
    losses: tuple[float, ...] = ()
    failure: float = 0.0


@dataclass(frozen=True)
class MadeAhead:
    """What a party made and wrote ahead of the rounds.

    Attributes:
        path: where.
        size: in bytes.
        rounds: for how many.
    """

    path: Path
    size: int
    rounds: int


Train = Callable[[Training], Awaitable[Trained]]
MakeAhead = Callable[[Training], Awaitable[MadeAhead]]


async def run_party(
    channel: Channel, costs: Costs, *, plan: Plan, workplace: Workplace, train: Train
) -> PartyOutcome:
    """Take one party through a job.

    Args:
        channel: to the others.
        costs: its ledger.
        plan: of the job.
        workplace: its data, and what it may use.
        train: its part of the algorithm.

    Raises:
        PeerError: a peer broke the protocol or is gone.
        RangeExceeded: products could overflow, or values leave the agreed range.
        LabelLeakRefused: this party owns a key and its gradients would tell too much.
        HeldOutLeakRefused: scoring would show too much of this party's held-out rows.
        BudgetExhausted: the job would spend more than its privacy budget.
    """
    training, unit = _begun(channel, costs, plan, workplace)
    party, part, workplace = training.party, training.part, training.workplace
    trained = await train(training)
    saved = part.saved(trained.kept.rounds)
    note_last_scoring(party, plan, workplace, saved)
    return PartyOutcome(
        model=saved,
        rounds=trained.kept.done,
        scores=[score.in_units(unit) for score in trained.scores],
        key_fingerprint=trained.key.fingerprint if trained.key is not None else None,
        key_bits=trained.key.key_bits if trained.key is not None else None,
        leakage=trained.leakage,
        held_out=part.model.predict(part.held_out),
        ended=trained.ended,
        learned=trained.learned,
        # Of all rounds, also where training ended before: when it does follows from the data.
        privacy=None if plan.account is None else plan.account.after(plan.rounds),
        path=trained.path,
        losses=tuple(unit**2 * loss for loss in trained.losses),
        kept=trained.kept,
        failure=trained.failure,
    )


async def run_ahead(
    channel: Channel, costs: Costs, *, plan: Plan, workplace: Workplace, make: MakeAhead
) -> MadeAhead:
    """Take one party through what a job can do before its rounds.

    Args:
        channel: to the others.
        costs: its ledger.
        plan: of the job.
        workplace: its data, and where it keeps what it makes.
        make: its part of that.

    Raises:
        PeerError: a peer broke the protocol or is gone.
        DataError: what is made cannot be kept.
    """
    return await make(_begun(channel, costs, plan, workplace)[0])


def _begun(
    channel: Channel, costs: Costs, plan: Plan, workplace: Workplace
) -> tuple[Training, float]:
    """What a party starts from, and the unit of its targets."""
    facts, job = plan.facts, plan.job
    party = Party(channel, costs, facts.names, facts.label_party, plan.loss)
    part = LocalPart(
        plan,
        workplace.data.whole_table,
        workplace.start,
        workplace.make_module,
        class_names=workplace.data.class_names,
    )
    if workplace.wrap_model is not None:
        part.model = workplace.wrap_model(part.model)
    workplace, unit = _with_scaled_targets(plan, workplace, part)
    noise = None
    if plan.account is not None:
        plan.account.require_budget()
        noise = plan.account.noise_at(facts.names.index(party.name))
    model = part.model
    with_exact_steps = party.holds_labels and not plan.algorithm.labels_everywhere
    if noise is not None and noise.gradients is not None and not with_exact_steps:
        model = PrivateGradients(part.model, noise.gradients, noise.key.stream("gradients"))

    def after_round(rounds: int) -> None:
        every = job.output.checkpoint_every
        if workplace.checkpoints is not None and every and rounds % every == 0:
            path = workplace.checkpoints / f"{party.name}.safetensors"
            save_model(path, part.saved(rounds))
        if workplace.progress is not None:
            workplace.progress(rounds)

    return Training(party, plan, workplace, part, model, noise, after_round), unit


def _with_scaled_targets(
    plan: Plan, workplace: Workplace, part: LocalPart
) -> tuple[Workplace, float]:
    """The workplace with real targets, where it has some, as the job takes them; and their unit."""
    data, facts = workplace.data, plan.facts
    if not facts.real_targets or data.train_labels is None or data.test_labels is None:
        return workplace, 1.0
    train = data.train_labels.astype(np.float64)
    targets = TargetScaling.fit(train, centered=plan.job.job.intercept)
    if data.table.name == facts.label_party:
        part.targets = targets
    labels, held_out = targets.apply(train), targets.apply(data.test_labels)
    data = replace(data, train_labels=labels, test_labels=held_out)
    return replace(workplace, data=data), targets.scale

"""One party's part in transfer learning: agree, set up the exchange, train, score."""

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from securevfl.arrays import FloatArray
from securevfl.models.layers import DenseLayer
from securevfl.protocols.exchange import Batch
from securevfl.protocols.session.agreement import agree
from securevfl.protocols.session.course import LONGEST_WINDOW
from securevfl.protocols.session.keeping import Keeper, Kept
from securevfl.protocols.session.label_guard import LeakageCount
from securevfl.protocols.session.outcome import Ending
from securevfl.protocols.session.scoring import FeatureScoring, LabelScoring
from securevfl.protocols.transfer.establishing import in_clear, under_encryption
from securevfl.protocols.transfer.objective import (
    FeatureObjective,
    LabelObjective,
    Objective,
    mean_units,
    signs_of,
)
from securevfl.protocols.transfer.settings import settings_of, steps_of
from securevfl.protocols.transfer.steps import Side, take_steps
from securevfl.protocols.vertical.batches import PartyBatches
from securevfl.protocols.vertical.guarding import require_guard
from securevfl.protocols.vertical.held_out_guarding import require_held_out_guard
from securevfl.protocols.vertical.keeping import keeper_of
from securevfl.protocols.vertical.memory import go_on, keep_state
from securevfl.protocols.vertical.program import Trained, Training
from securevfl.sparse import require_dense

FTL = "algorithm 'ftl'"


async def take_part(training: Training) -> Trained:
    """One party's part: agree, set up the exchange, train.

    Raises:
        PeerError: the peer broke the protocol or is gone.
        RangeExceeded: products could overflow, or values leave the agreed range.
        LabelLeakRefused: gradients under this party's key would tell too much.
        HeldOutLeakRefused: scoring would show too much of this party's held-out rows.
    """
    party, plan, part = training.party, training.plan, training.part
    place, model = training.workplace, training.model
    assert isinstance(model, DenseLayer)  # noqa: S101
    write_down_scorings = require_held_out_guard(training)
    common = part.inputs[: plan.facts.rows]
    agreement = await agree(
        party,
        plan.hash,
        common,
        len(part.held_out),
        parameters=part.parameters,
        encrypted=plan.exchange.encrypts,
    )
    labels = place.data.train_labels
    if party.name in plan.exchange.key_owners(plan.job.exchange, party):
        resumes = place.resume is not None
        require_guard(party, plan, agreement, labels, place.guard_directory, resumes=resumes)
    leakage = LeakageCount(
        plan.facts.rows, 1, agreement.columns, nonlinear=frozenset(plan.networks)
    )
    own_side = OwnSide(training, model, keeper_of(training, agreement))
    part.phi = None if own_side.signs is None else own_side.phi
    if plan.exchange.encrypts:
        ready = await under_encryption(
            party, plan, own_side.phi, agreement, leakage=leakage, keys=place.keys
        )
    else:
        ready = in_clear(party, plan, own_side.phi, training.noise)
    write_down_scorings()
    scoring: FeatureScoring | LabelScoring
    if place.data.test_labels is None:
        scoring = FeatureScoring(party, ready.gives_held_out, plan.timetable, part.held_out)
    else:
        scoring = LabelScoring(
            party,
            ready.scores_held_out,
            plan.timetable,
            inputs=part.held_out,
            labels=place.data.test_labels,
            target_auc=plan.job.job.target_auc,
        )
    batches = PartyBatches(plan, place.data, common)
    first_round = 0
    if place.resume is None:
        keep_state(training, leakage, own_side, 0)
    else:
        first_round = go_on(place.resume, training, leakage, own_side)
    kept, ended = await own_side.train(
        ready.side,
        batches,
        scoring,
        goes_on=partial(keep_state, training, leakage, own_side),
        first_round=first_round,
    )
    learned = own_side.learned(kept)
    return Trained(
        kept,
        scoring.scores,
        leakage,
        ready.key,
        ended=ended,
        learned=learned,
        losses=tuple(scoring.losses),
    )


class OwnSide:
    """What a party trains, and with what of its own."""

    def __init__(self, training: Training, model: DenseLayer, keeper: Keeper) -> None:
        self._training, self._model, self._keeper = training, model, keeper
        data = training.workplace.data
        self.signs: FloatArray | None = None
        if data.train_labels is not None:
            own = data.own_rows
            labels = [data.train_labels, *([] if own is None else [own.labels])]
            self.signs = signs_of(np.concatenate(labels))
        self._losses: list[float] = []

    def phi(self) -> FloatArray:
        """Φ at the weights now, at the label party."""
        assert self.signs is not None  # noqa: S101
        return mean_units(self._model, require_dense(self._training.part.inputs, FTL), self.signs)

    def objective(self, batch: Batch) -> Objective:
        """This party's side of the objective on a batch, at whatever weights there are then."""
        gamma = settings_of(self._training.plan).alignment
        if self.signs is None:
            return FeatureObjective(self._model, require_dense(batch.inputs, FTL), gamma)
        inputs = require_dense(self._training.part.inputs, FTL)
        return LabelObjective(self._model, inputs, self.signs, batch.rows, gamma)

    def arrays(self) -> dict[str, FloatArray]:
        """What it takes to go on."""
        return {"own losses": np.array(self._losses), **self._keeper.arrays()}

    def restore(self, arrays: Mapping[str, FloatArray]) -> None:
        """Go on from there."""
        self._losses = arrays["own losses"].tolist()
        self._keeper.restore(arrays)

    async def train(
        self,
        side: Side,
        batches: PartyBatches,
        scoring: FeatureScoring | LabelScoring,
        *,
        goes_on: Callable[[int], None],
        first_round: int = 0,
    ) -> tuple[Kept, Ending]:
        """Train in place; the state that is kept, and what ended training.

        Args:
            side: of the exchange.
            batches: this party's rows.
            scoring: its side of scoring.
            goes_on: called with rounds done once scoring has not ended the job.
            first_round: rounds that have been done before.

        Raises:
            PeerError: the peer failed; the model is as after the last whole round or turn.
        """
        training, plan = self._training, self._training.plan
        costs = training.party.costs
        for index in range(first_round, plan.rounds):
            batch, loss = batches.at(index), None
            for step in steps_of(plan, index):
                signal = await side.signal(step, batch, self.objective(batch))
                if signal is None:
                    continue
                async with costs.compute("local"):
                    if side.scores is not None and batch.labels is not None:
                        loss = plan.loss.value(side.scores, batch.labels)
                        self._losses.append(loss)
                    if self._keeper.lost is None:
                        with self._keeper.watches(index):
                            take_steps(plan, self._model, index, signal)
            costs.end_round()
            done = index + 1
            training.after_round(done)
            reached = await scoring.stops(done, self._model, loss=loss)
            self._keeper.after(done, scoring.scores, loss=loss)
            if reached:
                return Kept(done, done, lost=self._keeper.lost), "target"
            goes_on(done)
        kept = await self._keeper.end(plan.rounds)
        reached = await scoring.ends(kept.rounds, self._model, first_round=first_round)
        return kept, "target" if reached else "rounds"

    def learned(self, kept: Kept) -> bool:
        """Whether the loss has fallen below that of φ = 0, where this party sees it.

        The first is of the start, and tells nothing. Noise would drown the others.
        """
        plan, seen = self._training.plan, self._losses[1 : kept.rounds + 1]
        if plan.exchange.adds_noise or not seen:
            return True
        window = max(1, min(plan.schedule.batches, LONGEST_WINDOW, len(seen) // 2))
        return bool(np.mean(seen[-window:]) < np.log(2))

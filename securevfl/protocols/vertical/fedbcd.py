"""FedSGD, FedBCD-p and FedBCD-s (Liu et al. 2019, Algorithm 1), one program for each role.

In a round of FedBCD-p all parties exchange once and then take Q local steps at the same time. In
FedBCD-s they take turns on the same batch, the label party first; each turn's signal uses all
parties' newest predictions. FedSGD is FedBCD-p with Q = 1. The paper's turns end with the label
party. Ours are the same cycle begun one turn earlier, which saves a message
(docs/decisions/0023-departures-from-fedbcd.md).

Both roles run the same program. They differ in their side of the exchange, and the label party
scores.

Learns: what the exchange says (`Exchange.learns`), and decisions of `session.early_stopping`.
"""

from collections.abc import Mapping
from math import ceil, isfinite, log2

import numpy as np
from typing_extensions import override

from securevfl.arrays import FloatArray
from securevfl.errors import ConfigError
from securevfl.models.losses import Weighted
from securevfl.protocols.exchange import (
    Batch,
    Lookahead,
    PartyBatches,
    SendsSignals,
    TrainsOnShares,
)
from securevfl.protocols.local_steps import LocalSteps
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.agreement import Agreement
from securevfl.protocols.session.early_stopping import (
    CheckpointSelection,
    Decision,
    EarlyStopping,
    SelectedState,
    shared_decision,
)
from securevfl.protocols.session.privacy_account import LeakageCount, Visits
from securevfl.protocols.session.scoring import ByRow, Scoring
from securevfl.protocols.vertical.runner import (
    Part,
    Seen,
    VerticalAlgorithm,
    baseline_of,
    checkpoint_selection,
    scoring_of,
    steps_of,
    window_of,
)
from securevfl.runtime.costs import SETUP


class FedBcdPart(Part):
    """One party's part: predictions and a signal every round, and local steps from it."""

    selection: CheckpointSelection

    @override
    async def establish(self, agreement: Agreement, leakage: LeakageCount) -> Scoring:
        party, plan, data = self.party, self.plan, self.place.data
        self._batches = PartyBatches(plan, data.train_labels, self.inputs)
        columns = sum((agreement.own_columns, *agreement.columns.values()))
        async with party.costs.compute(SETUP):
            labels, self._stopping = data.train_labels, None
            self._steps: LocalSteps = plan.steps(self.model, self.inputs, columns, labels)
        if labels is not None and party.holds_labels:
            baseline, tolerance = baseline_of(plan, labels), plan.job.job.tolerance
            self._stopping = EarlyStopping(baseline, tolerance, window_of(plan))
            if isinstance(plan.loss, Weighted) and isfinite(enough := self._steps.pace.most):
                self._stopping.most_backtracks += ceil(log2(enough))
        lookahead = Lookahead(self._steps, plan.rounds, self._batches.at)
        session = self.session(agreement, leakage, lookahead)
        assert isinstance(plan.exchange, SendsSignals)  # noqa: S101
        self._exchange = ready = await plan.exchange.establish(session)
        self.key = ready.key
        self.selection = checkpoint_selection(self.training, agreement)
        return scoring_of(self.training, ready.sums or ByRow(party, ready.gathering))

    @property
    @override
    def exact(self) -> bool:
        return not self._exchange.opens

    @override
    async def round(self, index: int) -> Seen:
        """Predict, decide on early stopping, take a signal and step."""
        party, plan, model = self.party, self.plan, self.model
        steps, selection = self._steps, self.selection
        side, batch = self._exchange.side, self._batches.at(index)
        async with party.costs.compute("local"):
            steps.begin(index, len(batch.rows), moves=selection.lost is None)
        decision, loss = Decision(index), None
        for turn, step in enumerate(steps_of(plan, index, alternating=plan.algorithm.alternating)):
            async with party.costs.compute("local"):
                predictions = model.predict(batch.inputs)
                seen = batch.seen_by(model)
            others = await side.gather(step, predictions)
            if turn == 0:
                loss = await self._loss(batch, predictions, others)
                decision = await shared_decision(
                    party,
                    self._stopping,
                    index,
                    # Where nobody sees the sum of predictions: the gain that its own steps promise.
                    -steps.gained if loss is None else loss,
                    announced=plan.stops_early,
                    majorizes=steps.majorizes,
                )
                if decision.backtrack or decision.stop:
                    break
                if decision.best:
                    steps.mark_best()
            signal = await side.signal(step, seen, *self._offset(batch, predictions, others))
            if signal is not None and selection.lost is None:
                async with party.costs.compute("local"):
                    with selection.undoing_divergence(index):
                        steps.apply(
                            seen.inputs,
                            predictions=predictions,
                            signal=signal,
                            tangent=seen.jacobian,
                        )
        async with party.costs.compute("local"):
            steps.follow(decision)
        return Seen(
            loss=None if plan.exchange.adds_noise else loss,
            selection_loss=None if plan.stops_early else loss,
            ended=("no way down" if decision.backtrack else "settled") if decision.stop else None,
        )

    async def _loss(
        self, batch: Batch, predictions: FloatArray, others: FloatArray | None
    ) -> float | None:
        """The training loss, at a label party that sees the sum of predictions."""
        if batch.labels is None or others is None:
            return None
        async with self.party.costs.compute("local"):
            return self.plan.loss.value(others + predictions, batch.labels)

    def _offset(
        self, batch: Batch, predictions: FloatArray, others: FloatArray | None
    ) -> tuple[FloatArray, FloatArray | None]:
        """Predictions for the signal: row offsets go onto the others' sum, or its own if hidden."""
        offsets = self.local.row_offsets
        if offsets is None:
            return predictions, others
        if others is None:
            return predictions + offsets[batch.rows], None
        return predictions, others + offsets[batch.rows]

    @override
    def arrays(self) -> dict[str, FloatArray]:
        parts = {
            "exchange": self._exchange.in_flight,
            "steps": self._steps.arrays(),
            "kept": self.selection.arrays(),
        }
        if self._stopping is not None:
            parts["watch"] = self._stopping.arrays()
        if self.local.row_offsets is not None:
            parts["row"] = {"offsets": self.local.row_offsets}
        return {f"{part} {name}": a for part, held in parts.items() for name, a in held.items()}

    @override
    def restore(self, arrays: Mapping[str, FloatArray]) -> None:

        def of(part: str) -> dict[str, FloatArray]:
            start = f"{part} "
            return {n.removeprefix(start): a for n, a in arrays.items() if n.startswith(start)}

        self._exchange.in_flight.update(of("exchange"))
        self._steps.restore(of("steps"))
        self.selection.restore(of("kept"))
        if self._stopping is not None:
            self._stopping.restore(of("watch"))
        if self.local.row_offsets is not None:
            # New offsets would reveal X times the difference.
            np.copyto(self.local.row_offsets, of("row")["offsets"])

    @override
    def learned(self, selected: SelectedState) -> bool:
        """By the rule of early stopping, or by the history where an earlier state is selected."""
        if self.plan.exchange.adds_noise:
            return True  # noise on predictions drowns the training loss
        if self.selection.history is not None and selected.rounds < selected.done:
            return self.selection.history.learned(selected)
        return self._stopping is None or self._stopping.learned


class FedBcd(VerticalAlgorithm):
    """FedBCD with all parties at once or in turns, or FedSGD (Q = 1 whatever the job says)."""

    part = FedBcdPart
    takes_head = True
    repeats_products = True

    def __init__(self, name: str, *, alternating: bool = False, one_step: bool = False) -> None:
        self.name = name
        self.alternating, self.one_step = alternating, one_step
        # Rounds in shares are the exchange's, and know nothing of what a subclass changes.
        in_shares = type(self) is FedBcd and not alternating
        self.needs = (SendsSignals, TrainsOnShares) if in_shares else (SendsSignals,)

    @override
    def check(self, plan: Plan) -> None:
        """Refuse L1 where no soft threshold would follow gradient steps."""
        if not plan.job.job.l1:
            return
        if plan.networks:
            raise ConfigError("l1 takes linear models: a soft threshold follows every step")
        if plan.exchange.encrypts:
            raise ConfigError(f"l1 takes exchanges in clear, not {plan.exchange.name!r}")
        if plan.rule.exact or plan.rule.accelerated:
            raise ConfigError(
                "l1 needs a number of local_steps and no acceleration: exact steps and "
                "extrapolation have no soft threshold; or use algorithm = 'dbcd'"
            )

    @override
    def visits(self, plan: Plan) -> Visits:
        """One release per visit; a party in turns releases once more after its steps."""
        steps = plan.rule.local_steps
        if not self.alternating:
            return Visits(1, 1, steps)
        parties = len(plan.facts.names)
        # The last party's step is followed by no turn.
        return Visits(2 if parties > 2 else 1, parties, steps)  # noqa: PLR2004


DESCRIPTIONS = (
    FedBcd("fedsgd", one_step=True),
    FedBcd("fedbcd-p"),
    FedBcd("fedbcd-s", alternating=True),
)

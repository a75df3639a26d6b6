"""The result of a finished job: how training went, what it cost, and the models."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from typing_extensions import override

from securevfl.arrays import FloatArray, Labels
from securevfl.data.tables import VerticalDataset, as_classes
from securevfl.job import Job
from securevfl.models.losses import has_probabilities, probabilities
from securevfl.models.ranking import Ranking
from securevfl.models.scores import Calibration, calibration
from securevfl.models.storage import SavedModel, save_model
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.privacy_account import Promise
from securevfl.protocols.session.scoring import Score
from securevfl.protocols.session.workplace import Ending, PartyOutcome
from securevfl.runtime.costs import Costs, JobCosts, job_costs
from securevfl.runtime.line import LinkCosts
from securevfl.runtime.views import View
from securevfl.shown import Shown
from securevfl.sparse import Matrix
from securevfl.verdict import Alone, alone, has_learned, ranked, warned
from securevfl.warned import Warned, status_of


@dataclass(frozen=True, repr=False)
class TrainingResult(Shown):
    """A finished job.

    Attributes:
        plan: the resolved job.
        outcomes: by party.
        ledgers: each party's costs.
        wall_s: seconds on this machine's clock.
        data: the rows that took part.
        rounds_before: rounds of an earlier run that this one resumed.
        views: each party's view, if recorded.
        others: results of programs without data, by name.
        links: what links cost in the simulated network, if that was counted.
    """

    plan: Plan
    outcomes: dict[str, PartyOutcome]
    ledgers: dict[str, Costs]
    wall_s: float
    data: VerticalDataset[Matrix]
    rounds_before: int = 0
    views: dict[str, View] = field(default_factory=dict)
    others: dict[str, Any] = field(default_factory=dict)
    links: LinkCosts | None = None

    @override
    def shown(self) -> dict[str, object]:
        """How training went, and what it cost."""
        facts, costs = self.plan.facts, self.costs()
        figures: dict[str, float | None] = {}
        for score in self.scores[-1:]:
            figures = {"AUC": score.class_auc, "accuracy": score.class_accuracy}
            if score.binormal:
                figures = {"estimated AUC": round(score.auc, 2)}
            figures |= {"R²": score.r2, "RMSE": score.rmse}
        guard = self.label_guard_ratio
        return {
            "job": f"{self.plan.algorithm.name} under {self.plan.exchange.name}, {facts.rows} rows",
            "parties": ", ".join(facts.names),
            "rounds": f"{self.rounds}, ended: {self.ended}",
            **{name: f"{each:.4g}" for name, each in figures.items() if each is not None},
            "learned": "yes" if self.learned else "nothing distinguishable from chance",
            "total": f"{costs.total_s:.3g} s ({costs.compute_s:.3g} s of it computation)",
            **(
                {"made offline": f"{costs.offline_s:.3g} s of the total"} if costs.offline_s else {}
            ),
            "sent": f"{costs.bytes_sent:,} bytes in {costs.messages} messages",
            **({} if guard is None else {"label guard ratio": f"{guard:.3f}"}),
        }

    @property
    def job(self) -> Job:
        """The resolved job."""
        return self.plan.job

    @property
    def label(self) -> PartyOutcome:
        """The label party's outcome."""
        return self.outcomes[self.plan.facts.label_party]

    @property
    def scores(self) -> list[Score]:
        """The label party's held-out scores."""
        return self.label.scores

    @property
    def rounds(self) -> int:
        """Rounds done, including those of an earlier run."""
        return self.label.rounds

    @property
    def label_guard_ratio(self) -> float | None:
        """The highest ratio at any key owner; None if gradients stay hidden."""
        ratios = (each.leakage.ratio for each in self.outcomes.values())
        return max(ratios) if self.plan.learns.gradients else None

    @property
    def test_labels(self) -> Labels:
        """Labels of the held-out rows."""
        return self.data.test_labels

    @property
    def dropped(self) -> Mapping[str, int]:
        """By party, the number of rows of its file that took no part."""
        return self.data.dropped

    def costs(self, rounds: int | None = None) -> JobCosts:
        """Costs up to a round, by default the last, without those of an earlier run."""
        return job_costs(self.ledgers, (rounds or self.rounds) - self.rounds_before)

    @property
    def privacy(self) -> Promise | None:
        """The privacy guarantee of the job's noise; None without noise."""
        return next(iter(self.outcomes.values())).privacy

    @property
    def clear_auc(self) -> float:
        """Held-out AUC of the trained models' exact predictions.

        No party can compute it under noise, where parties score noisy predictions.

        Raises:
            ConfigError: targets are real.
        """
        return self.exact_score.auc

    @property
    def exact_score(self) -> Score:
        """Score of the trained models' exact predictions, which no party has under noise."""
        return Score.of(self.rounds, self.predictions, self.test_labels, self.plan.loss.middle)

    @property
    def clear_loss(self) -> float:
        """The mean held-out loss of exact predictions, which no party has under noise."""
        return self.plan.loss.value(self.predictions, self.test_labels)

    @property
    def calibration(self) -> Calibration | None:
        """Calibration of held-out probabilities, as the label party can compute it.

        None if it does not see exact predictions of rows, or if they are not probabilities.
        """
        sees_rows = bool(self.scores) and not self.scores[-1].binormal
        loss, real = self.plan.loss.name, self.plan.facts.real_targets
        if self.privacy or not sees_rows or real or not has_probabilities(loss):
            return None
        return calibration(probabilities(loss, self.predictions), as_classes(self.test_labels))

    @property
    def ended(self) -> Ending:
        """Why training ended."""
        return self.label.ended

    @property
    def learned(self) -> bool:
        """Whether the model is useful, as far as the label party can tell: see `has_learned`."""
        return has_learned(self.label, self.test_labels)

    @property
    def kept_rounds(self) -> int:
        """The round of the selected model: the last, unless training went wrong."""
        return self.label.selected.rounds

    @cached_property
    def alone(self) -> Mapping[str, Alone]:
        """What each party's columns achieve by themselves, scored like the joint model.

        Computed on first use. The label party can compute its own; the others are lent the labels,
        which no real party is (`Alone.labels_lent`).
        """
        binormal = bool(self.scores) and self.scores[-1].binormal
        return alone(self.plan, self.data, binormal=binormal)

    @cached_property
    def ranking(self) -> Ranking | None:
        """How held-out scores rank two classes, as the label party sees them; computes `alone`."""
        return ranked(self.plan, self.label, self.alone, self.test_labels)

    @cached_property
    def warnings(self) -> tuple[Warned, ...]:
        """Warnings for the user, the most serious first; computes `alone`."""
        noisy = bool(self.scores) and self.plan.exchange.adds_noise
        return tuple(
            warned(
                self.plan,
                {name: each.selected for name, each in self.outcomes.items()},
                learned=self.learned,
                own=lambda: self.alone,
                joint=self.scores[-1] if noisy else self.predictions,
                labels=self.test_labels,
            )
        )

    @property
    def status(self) -> int:
        """The exit status: 0 without warnings, see `warned.STATUSES`."""
        return status_of(self.warnings)

    @cached_property
    def predictions(self) -> FloatArray:
        """H of the held-out rows by all parties' models, shape (test rows, C), in target units."""
        return self.plan.algorithm.together(self.plan, self.outcomes)

    @property
    def key_fingerprints(self) -> dict[str, str]:
        """Fingerprints of the homomorphic keys, by owner."""
        prints = {name: outcome.key_fingerprint for name, outcome in self.outcomes.items()}
        return {name: each for name, each in prints.items() if each is not None}

    @property
    def key_bits(self) -> int | None:
        """Key size in use, if the scheme has a choice."""
        sizes = [outcome.key_bits for outcome in self.outcomes.values()]
        return next((size for size in sizes if size is not None), None)


def model_files(name: str, outcome: PartyOutcome, directory: Path) -> dict[Path, SavedModel]:
    """A party's model, `<party>.safetensors`, and those of an L1 path, `<party>-l1-<λ₁>…`."""
    models = {directory / f"{name}.safetensors": outcome.model}
    for point in outcome.path if len(outcome.path) > 1 else ():
        models[directory / f"{name}-l1-{point.l1}.safetensors"] = point.model
    return models


def save_models(result: TrainingResult, directory: Path) -> list[Path]:
    """Write every party's models, see `model_files`; a DataError if that fails."""
    models: dict[Path, SavedModel] = {}
    for name in result.outcomes:
        models |= model_files(name, result.outcomes[name], directory)
    for path, model in models.items():
        save_model(path, model)
    return list(models)

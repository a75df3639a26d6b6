"""Which settings would take a leak away: tried on the audited job, never quoted.

A change is advised only if the changed job can run on these data, the guards of all parties permit
it without being overruled, and one of three holds. It leaves the attack nothing to read
(`Attack.immune`); or a guard counts what the attack reads, which none did in the audited job, or
one refused; or crafted replies are checked.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from securevfl.auditing.measuring import Attack
from securevfl.auditing.subject import PROBE_ROWS, Subject
from securevfl.data.tables import VerticalDataset, some_rows
from securevfl.errors import ConfigError, FeatureLeakRefused, LabelLeakRefused, SecureVFLError
from securevfl.job import ExchangeSettings, Job, PrivacySettings
from securevfl.protocols.catalogue import EXCHANGES
from securevfl.protocols.exchange import TrainsOnShares
from securevfl.protocols.plan import Plan
from securevfl.protocols.vertical.runner import Part, Training, VerticalAlgorithm, run_party
from securevfl.runtime.simulation import simulate
from securevfl.training import Environment, resolved, workplaces

Settings = Mapping[str, Mapping[str, Any]]
"""By section, the keys of `[job]` that change; of other sections all that are set."""

MOST = 2
BFV: Settings = {"exchange": {"scheme": "bfv"}}
BOTH: Settings = {"exchange": {"scheme": "bfv", "hide": "both"}}
BLIND: Settings = {"exchange": {"scheme": "blind"}}
AFFINE, FULL, RANDOM = {"loss": "taylor-logistic"}, {"batch_size": "full"}, {"start": "random"}
AT_THE_END, UNSCORED = {"eval_every": 0}, {"eval_every": "never"}
HIDDEN = (BLIND, BOTH)
FULL_BATCHES = ({"job": FULL}, {**BFV, "job": FULL}, BLIND)
CHANGES: Mapping[str, tuple[Settings, ...]] = {
    **dict.fromkeys(("rotation_twin", "gram", "anchors", "components", "binary_columns"), HIDDEN),
    **dict.fromkeys(("features_across_jobs", "binary_columns_across_jobs"), HIDDEN),
    **dict.fromkeys(("labels_of_groups", "labels_by_difference"), (BLIND,)),
    "repeated_start": ({"job": RANDOM},),
    "held_out_features": ({"job": AT_THE_END}, *HIDDEN, {"job": UNSCORED}),
    **dict.fromkeys(("labels_from_residuals", "changed_labels"), (BFV, BLIND)),
    **dict.fromkeys(("labels_from_gradients", "labels_across_jobs"), FULL_BATCHES),
    "integer_decoding": ({"job": RANDOM}, {**BFV, "job": RANDOM}),
    **dict.fromkeys(("labels_from_components", "features_from_units"), (BOTH,)),
    **dict.fromkeys(("jacobi_symbol", "ckks_key"), (BFV,)),
    **dict.fromkeys(("labels_from_unit_gradients", "labels_from_parameters"), ()),
    **dict.fromkeys(("words_of_rounds", "ciphertext_ratio", "ciphertext_noise"), ()),
    **dict.fromkeys(("crafted_inputs", "selection_matrix", "equality_solving", "epsilon"), ()),
    "crafted_query": (BLIND,),
}
"""What is tried, by attack, the best first; nothing where no setting can help."""
REPAIRS: tuple[Mapping[str, object], ...] = (
    *({}, AFFINE, FULL, AT_THE_END, RANDOM, AFFINE | FULL, FULL | AT_THE_END, FULL | RANDOM),
    *(AFFINE | FULL | AT_THE_END, AFFINE | UNSCORED),
)
"""What `[job]` may need beside a change that would be refused without, the least first."""
Guard = tuple[type[ConfigError] | None, Callable[[Plan], bool]]
LABELS: Guard = LabelLeakRefused, lambda plan: plan.learns.residuals == "hidden"
SCORINGS: Guard = FeatureLeakRefused, lambda plan: plan.exchange.counts_held_out(plan.job)
NONE: Guard = None, lambda _: False
GUARDS: Mapping[str, Guard] = {
    **dict.fromkeys(("labels_from_gradients", "labels_across_jobs", "integer_decoding"), LABELS),
    "changed_labels": LABELS,
    "held_out_features": SCORINGS,
}
"""By attack, how the guard of what it reads refuses a job, and whether it counts a job at all."""


class _Permitted(Exception):
    """The guards of all parties have permitted a job."""


@dataclass(eq=False)
class Advisor:
    """Tries changes of jobs on one data set, each changed job once."""

    dataset: VerticalDataset
    _tried: dict[str, Plan | type[SecureVFLError]] = field(default_factory=dict)

    def advice(self, attack: Attack, job: Job) -> list[dict[str, Any]]:
        """At most two `settings`, the best first, with `why`, see `findings.WHY`."""
        found: list[dict[str, Any]] = []
        for change in CHANGES[attack.name]:
            for repair in REPAIRS:
                settings = _settings_for(job, change, repair)
                if why := self._why(attack, job, changed(job, settings)):
                    if not any(_within(each["settings"], settings) for each in found):
                        found.append({"settings": settings, "why": why})
                    break
        return found[:MOST]

    def _why(self, attack: Attack, job: Job, other: Job) -> str:
        """Why a changed job resists an attack; empty if nothing says so."""
        plan, before = self._asked(other), self._asked(job)
        if isinstance(plan, type):
            return ""
        # Whether rounds show anything does not depend on how many rows they take.
        few = some_rows(self.dataset, PROBE_ROWS)
        if attack.immune(Subject(other.with_settings(batch_size="full"), few, seed=0)):
            return "immune"
        if attack.name == "crafted_query" and plan.exchange.shares_parameters:
            return "checked"
        refusal, counts = GUARDS.get(attack.name, NONE)
        uncounted = before is refusal if isinstance(before, type) else not counts(before)
        return "permitted by the guard" if counts(plan) and uncounted else ""

    def _asked(self, job: Job) -> Plan | type[SecureVFLError]:
        """The plan of a job that the guards permit; or the error of one that is no such job."""
        key = job.model_dump_json()
        if key not in self._tried:
            try:
                self._tried[key] = _permitted(job, self.dataset)
            except SecureVFLError as error:
                self._tried[key] = type(error)
        return self._tried[key]


def changed(job: Job, settings: Settings) -> Job:
    """The job with other settings."""
    kinds = {"exchange": ExchangeSettings, "privacy": PrivacySettings}
    sections = {name: kinds[name](**settings[name]) for name in settings if name in kinds}
    return job.model_copy(update=sections).with_settings(**settings.get("job", {}))


def _settings_for(job: Job, change: Settings, repair: Mapping[str, object]) -> Settings:
    """A change with its repair, and without a `[privacy]` that the scheme would refuse."""
    settings = dict(change)
    if own := {**repair, **change.get("job", {})}:
        settings["job"] = own
    scheme = change.get("exchange", {}).get("scheme")
    if scheme and job.privacy != PrivacySettings() and not EXCHANGES[scheme].adds_noise:
        settings["privacy"] = {}
    return settings


def _within(one: Settings, other: Settings) -> bool:
    return all(keys.items() <= other.get(name, {}).items() for name, keys in one.items())


def _permitted(job: Job, dataset: VerticalDataset) -> Plan:
    """The plan of a job that the guards of all parties permit, without its overrides.

    Raises what a job raises that is refused or cannot run.
    """
    guarded = job.with_settings(allow_label_leak=False, allow_feature_leak=False)
    plan, data = resolved(guarded, dataset, ())
    algorithm, exchange, asked = plan.algorithm, plan.exchange, set[str]()
    if not isinstance(algorithm, VerticalAlgorithm):
        raise ConfigError(f"algorithm {algorithm.name!r} does not ask guards as others do")
    make = exchange.part if isinstance(exchange, TrainsOnShares) else type(algorithm).part

    def made(training: Training) -> Part:
        async def establish(*_: object) -> None:  # what follows the guards
            asked.add(training.party.name)
            if len(asked) == len(data.parties):
                raise _Permitted
            await asyncio.Event().wait()

        part = make(training)
        vars(part)["establish"] = establish
        return part

    with TemporaryDirectory() as folder, suppress(_Permitted):
        environment = Environment(guard_directory=Path(folder))
        places = workplaces(plan, data, environment)
        programs = algorithm.programs(plan, places)  # with those of servers
        for name, place in places.items():
            programs[name] = partial(run_party, plan=plan, workplace=place, made=made)
        simulate(programs, plan.line, job_hash=plan.hash)
    return plan

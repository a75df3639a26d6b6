"""Which settings would take a leak away: tried on the audited job, never quoted.

A change is advised only if the changed job can run on these data, the guards of all parties permit
it without being overruled, and one of two holds. Either it leaves the attack nothing to read
(`Attack.immune`), or a guard counts what the attack reads, which none did in the audited job, or
one refused.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from securevfl.auditing.measuring import CANNOT_RUN, Attack
from securevfl.auditing.subject import Subject
from securevfl.data.tables import VerticalDataset
from securevfl.errors import ConfigError, HeldOutLeakRefused, LabelLeakRefused
from securevfl.job import ExchangeSettings, Job, PrivacySettings
from securevfl.protocols.catalogue import EXCHANGES
from securevfl.protocols.exchange import TrainsOnShares
from securevfl.protocols.plan import Plan
from securevfl.protocols.vertical.runner import Part, Training, VerticalAlgorithm, run_party
from securevfl.runtime.simulation import simulate
from securevfl.training import Environment, resolved, workplace_of

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
    "features_across_jobs": HIDDEN,
    "held_out_features": ({"job": AT_THE_END}, *HIDDEN, {"job": UNSCORED}),
    "labels_from_residuals": (BFV, BLIND),
    **dict.fromkeys(("labels_from_gradients", "labels_across_jobs"), FULL_BATCHES),
    "integer_decoding": ({"job": RANDOM}, {**BFV, "job": RANDOM}),
    **dict.fromkeys(("labels_from_components", "features_from_units"), (BOTH,)),
    **dict.fromkeys(("jacobi_symbol", "ckks_key"), (BFV,)),
    **dict.fromkeys(("labels_from_unit_gradients", "changed_labels", "labels_from_parameters"), ()),
    **dict.fromkeys(("words_of_rounds", "ciphertext_ratio", "ciphertext_noise"), ()),
    **dict.fromkeys(("crafted_query", "selection_matrix", "equality_solving", "epsilon"), ()),
}
"""What is tried, by attack, the best first; nothing where no setting can help."""
REPAIRS: tuple[Mapping[str, object], ...] = (
    *({}, AFFINE, FULL, AT_THE_END, RANDOM, AFFINE | FULL, FULL | AT_THE_END, FULL | RANDOM),
    *(AFFINE | FULL | AT_THE_END, AFFINE | UNSCORED),
)
"""What `[job]` may need beside a change that would be refused without, the least first."""


def _gradients(plan: Plan) -> bool:
    return plan.learns.gradients


GUARDS: Mapping[str, tuple[type[ConfigError], Callable[[Plan], bool]]] = {
    "labels_from_gradients": (LabelLeakRefused, _gradients),
    "labels_across_jobs": (LabelLeakRefused, _gradients),
    "integer_decoding": (LabelLeakRefused, _gradients),
    "held_out_features": (
        HeldOutLeakRefused,
        lambda plan: plan.exchange.counts_held_out(plan.job),
    ),
}
"""By attack, how the guard of what it reads refuses a job, and whether it counts a job at all."""


class _Permitted(Exception):
    """The guards of all parties have permitted a job."""


class Advisor:
    """Tries changes of jobs on one data set, each changed job once."""

    def __init__(self, dataset: VerticalDataset) -> None:
        self._dataset = dataset
        self._tried: dict[str, tuple[Subject, Plan] | Exception] = {}

    def advice(self, attack: Attack, job: Job) -> list[dict[str, Any]]:
        """At most two changes, the best first, each as `settings` and `why`.

        `why` is `immune` or `permitted by the guard`.
        """
        return list(islice(self._helping(attack, job), MOST))

    def _helping(self, attack: Attack, job: Job) -> Iterator[dict[str, Any]]:
        found: list[set[tuple[str, str, Any]]] = []
        for change in CHANGES[attack.name]:
            for repair in REPAIRS:
                settings = _settings_for(job, change, repair)
                keys = {(name, *item) for name, each in settings.items() for item in each.items()}
                why = self._why(attack, job, changed(job, settings))
                if why and not any(each <= keys for each in found):
                    yield {"settings": settings, "why": why}
                if why:
                    found.append(keys)
                    break

    def _why(self, attack: Attack, job: Job, other: Job) -> str:
        """Why a changed job resists an attack; empty if nothing says so."""
        found, before = self._asked(other), self._asked(job)
        if isinstance(found, Exception):
            return ""
        if attack.immune(found[0]):
            return "immune"
        refusal, counts = GUARDS.get(attack.name, (None, None))
        if counts is None or refusal is None or not counts(found[1]):
            return ""
        refused = isinstance(before, refusal)
        uncounted = not isinstance(before, Exception) and not counts(before[1])
        return "permitted by the guard" if refused or uncounted else ""

    def _asked(self, job: Job) -> tuple[Subject, Plan] | Exception:
        """The job as an audit attacks it, and its plan; or why it cannot run or is refused."""
        key = job.model_dump_json()
        if key not in self._tried:
            try:
                plan = _permitted(job, self._dataset)
                self._tried[key] = Subject(job, self._dataset, job.job.seed), plan
            except CANNOT_RUN as error:
                self._tried[key] = error
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
        places = {each.name: workplace_of(plan, data, each, environment) for each in data.parties}
        programs = algorithm.programs(plan, places)  # with those of servers
        for name, place in places.items():
            programs[name] = partial(run_party, plan=plan, workplace=place, made=made)
        simulate(programs, plan.line, job_hash=plan.hash)
    return plan

"""What a run may use besides its job and data, and what of it each party gets."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from securevfl.data.tables import PartyTable, VerticalDataset
from securevfl.models.local_model import LocalModel, MakeModule
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.checkpoints import SessionState
from securevfl.protocols.session.keys import KeyMaker, SchemeKeys
from securevfl.protocols.session.pad_store import PadPlaces
from securevfl.protocols.session.workplace import PartyData, Workplace
from securevfl.runtime.costs import Pace, Stopwatch
from securevfl.runtime.simulation import Tamper
from securevfl.sparse import Matrix


@dataclass(frozen=True)
class Environment:
    """What a run may use besides its job and data; tests and benchmarks change it.

    Attributes:
        keys: makes homomorphic keys.
        stopwatch: how computation is timed.
        record_views: keep every party's view.
        tamper: fault injection into the network.
        guard_directory: where earlier jobs' leakage is remembered and this one's refused or
            noted; None only reports the ratio, as benchmarks do.
        checkpoints: where parties write their models as training goes on, and what it takes to go
            on from there (`session.checkpoints`); None writes none.
        progress: called with rounds done.
        modules: by party what makes its network, where its model is custom: a function of the
            numbers of features and outputs.
        wrap_model: gives what a party trains in place of its local model at θ⁰, from its name
            and that model; None trains the model itself.
        paces: by party, how much longer than measured it computes.
        keep_state: called after every round of every party with what it takes to go on.
        resume: by party, where to go on from; all from the same round.
        pads: where pads are that were made ahead (`make_ahead`): used once if they are there. None
            keeps none.
    """

    keys: KeyMaker = field(default_factory=SchemeKeys)
    stopwatch: Stopwatch | None = None
    record_views: bool = False
    tamper: Tamper | None = None
    guard_directory: Path | None = None
    checkpoints: Path | None = None
    progress: Callable[[int], None] | None = None
    modules: Mapping[str, MakeModule] = field(default_factory=dict)
    wrap_model: Callable[[str, LocalModel], LocalModel] | None = None
    paces: Mapping[str, Pace] = field(default_factory=dict)
    keep_state: Callable[[SessionState], None] | None = None
    resume: Mapping[str, SessionState] = field(default_factory=dict)
    pads: PadPlaces | None = None


def workplace_of(
    plan: Plan,
    dataset: VerticalDataset[Matrix],
    table: PartyTable[Matrix],
    environment: Environment,
) -> Workplace:
    """What a party's program is given of an environment, and of the data its own alone."""
    name, facts, wrap = table.name, plan.facts, environment.wrap_model
    return Workplace(
        data=data_of(plan, dataset, table),
        keys=environment.keys,
        start=np.random.default_rng([plan.job.job.seed, facts.names.index(name)]),
        guard_directory=environment.guard_directory,
        checkpoints=environment.checkpoints,
        progress=environment.progress if name == facts.label_party else None,
        make_module=environment.modules.get(name),
        wrap_model=None if wrap is None else partial(wrap, name),
        keep_state=environment.keep_state,
        resume=environment.resume.get(name),
        pads=None if environment.pads is None else environment.pads.of(name),
    )


def data_of(plan: Plan, dataset: VerticalDataset[Matrix], table: PartyTable[Matrix]) -> PartyData:
    """A party's own part of a data set: its columns, and labels where it may have them."""
    is_label_party = table.name == plan.facts.label_party
    with_labels = plan.algorithm.labels_everywhere or is_label_party
    return PartyData(
        table,
        dataset.train_labels if with_labels else None,
        dataset.test_labels if with_labels else None,
        dataset.own_rows if is_label_party else None,
        dataset.class_names if is_label_party else (),
    )

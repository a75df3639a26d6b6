"""What every algorithm's party asks and writes down before it shows anything, fresh or resumed."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from securevfl.data.tables import VerticalDataset
from securevfl.errors import ConfigError
from securevfl.job import Job
from securevfl.protocols.guards import label_guard
from securevfl.protocols.guards.feature_guard import FeatureGuard
from securevfl.protocols.session.agreement import Hello
from securevfl.protocols.session.checkpoints import SessionState
from securevfl.protocols.session.joint_seed import SeedOpening
from securevfl.protocols.vertical import runner
from securevfl.training import Environment, train
from securevfl.wire.codec import Message, decode
from tests import transfer_data
from tests.jobs import job_of
from tests.made_data import made

ASKED, WRITTEN, COUNTED = "feature guard asked", "feature guard wrote", "label guard asked"
Event = str | Message
Events = dict[str, list[Event]]

FULL: dict[str, Any] = {"rounds": 2, "batch_size": "full", "eval_every": 0}
JOBS: dict[str, Callable[[], tuple[Job, VerticalDataset]]] = {
    "fedbcd": lambda: (Job.of(job=FULL, exchange={"scheme": "bfv"}), made(1, rows=400)),
    "turns": lambda: (Job.of(job={**FULL, "algorithm": "fedbcd-s"}), made(1)),
    "dbcd": lambda: (Job.of(job={**FULL, "algorithm": "dbcd", "l1": 0.01}), made(1)),
    "fdml": lambda: (Job.of(job={**FULL, "algorithm": "fdml"}), made(1)),
    "ftl": lambda: (
        job_of({"scheme": "bfv", "hide": "both"}, **transfer_data.FTL, allow_label_leak=True),
        transfer_data.made(),
    ),
    "blind": lambda: (
        Job.of(job={**FULL, "loss": "taylor-logistic"}, exchange={"scheme": "blind"}),
        made(1, rows=400),
    ),
}
GO_ON = ("fedbcd", "turns", "ftl", "blind")


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> Events:
    """By party what its guards do, in order; `watching` adds what it sends."""
    found: Events = defaultdict(list)
    labels = label_guard.require_guard

    class Watched(FeatureGuard):
        @override
        def require(self) -> None:
            found[self._party.name].append(ASKED)
            super().require()

        @override
        def write_down(self) -> None:
            found[self._party.name].append(WRITTEN)
            super().write_down()

    def count(party: Any, *arguments: Any, resumes: bool) -> None:  # noqa: ANN401
        found[party.name].append(f"{COUNTED}{', goes on' if resumes else ''}")
        labels(party, *arguments, resumes=resumes)

    monkeypatch.setattr(runner, "FeatureGuard", Watched)
    monkeypatch.setattr(runner, "require_guard", count)
    return found


def watching(events: Events, folder: Path, **others: Any) -> Environment:  # noqa: ANN401
    def noted(sender: str, receiver: str, data: bytes) -> bytes:
        del receiver
        events[sender].append(decode(data))
        return data

    return Environment(tamper=noted, guard_directory=folder, **others)


def first(events: list[Event], shows: bool) -> int:
    """Where the first message stands that is of a round or a scoring, or else is no greeting."""
    for place, each in enumerate(events):
        of_rounds = isinstance(each, Message) and each.stage in ("round", "evaluation")
        beyond_greeting = isinstance(each, Message) and not isinstance(each, Hello | SeedOpening)
        if of_rounds if shows else beyond_greeting:
            return place
    return len(events)


def require_order(events: Events, job: Job, parties: tuple[str, ...], *, goes_on: bool) -> None:
    for party in parties:
        seen = events[party]
        assert seen[0] == ASKED
        assert seen.count(WRITTEN) == 1
        setup = [isinstance(each, Message) and each.stage == "setup" for each in seen]
        assert any(setup)
        assert not any(setup[seen.index(WRITTEN) :])  # until then another party may refuse
        assert seen.index(WRITTEN) < first(seen, shows=True)
        counted = [each for each in seen if isinstance(each, str) and each.startswith(COUNTED)]
        owners = parties if job.exchange.hide == "both" else parties[:1]
        due = job.exchange.scheme in ("bfv", "blind") and party in owners
        assert counted == [f"{COUNTED}{', goes on' if goes_on else ''}"] * due
        if due:
            assert seen.index(counted[0]) < first(seen, shows=False)


@pytest.mark.parametrize("name", JOBS)
def test_guards_are_asked_before_and_written_down_before_anything_is_shown(
    name: str, events: Events, tmp_path: Path
) -> None:
    job, dataset = JOBS[name]()
    names = tuple(table.name for table in dataset.parties)
    states: dict[str, SessionState] = {}

    def keep(state: SessionState) -> None:
        if state.rounds == 1:
            states[state.party] = state

    train(job, dataset, watching(events, tmp_path, keep_state=keep))
    require_order(events, job, names, goes_on=False)
    assert set(states) == (set(names) if name in GO_ON else set())
    if not states:
        return
    events.clear()
    train(job, dataset, watching(events, tmp_path, resume=states))
    require_order(events, job, names, goes_on=True)
    events.clear()
    others = {party: replace(state, job_hash="0" * 64) for party, state in states.items()}
    with pytest.raises(ConfigError, match="expected one of"):
        train(job, dataset, watching(events, tmp_path, resume=others))
    for party in names:
        assert first(events[party], shows=True) == len(events[party])
        # What is agreed on under `blind` depends on the state.
        assert name != "blind" or not any(isinstance(each, Message) for each in events[party])

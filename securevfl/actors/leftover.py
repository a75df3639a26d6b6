"""What an actor leaves of its part of a job: its model in the output folder, the rest beside it.

The rest is what a result is made of: scores, the ledger, the label guard's count, and its own
predictions of the held-out rows.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from safetensors.numpy import save

from securevfl.actors.task import ActorTask
from securevfl.errors import DataError
from securevfl.files import read_arrays, reading, replace_file
from securevfl.models.storage import load_model, save_model
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.early_stopping import SelectedState
from securevfl.protocols.session.privacy_account import LeakageCount
from securevfl.protocols.session.scoring import Score
from securevfl.protocols.session.workplace import Ending, PartyOutcome, PathPoint
from securevfl.runtime.costs import Costs, Snapshot, Stopwatch
from securevfl.training import model_files

REST, HELD_OUT = "rest", "held out"


@dataclass(frozen=True)
class _Ledger:
    seconds: dict[str, float]
    path: dict[str, float]
    operations: dict[str, int]
    messages: dict[str, int]
    bytes_sent: dict[str, int]
    hops: int
    hidden_s: float
    snapshots: list[Snapshot]


@dataclass(frozen=True)
class _Point:
    l1: float
    rounds: int
    settled: bool
    objective: float | None
    gap: float | None


@dataclass(frozen=True)
class _Rest:
    rounds: int
    scores: list[Score]
    key_fingerprint: str | None
    key_bits: int | None
    leakage: LeakageCount
    ended: Ending
    learned: bool
    kept: SelectedState
    path: list[_Point]
    losses: tuple[float, ...]
    failure: float


_LEDGER, _REST = TypeAdapter(_Ledger), TypeAdapter(_Rest)


def leave_ledger(path: Path, costs: Costs) -> None:
    """Write a ledger.

    Raises:
        DataError: it cannot be written.
    """
    names = ("seconds", "path", "operations", "messages", "bytes_sent", "hops", "hidden_s")
    told: dict[str, Any] = {name: getattr(costs, name) for name in names}
    told["snapshots"] = [asdict(each) for each in costs.snapshots]
    replace_file(path, json.dumps(told).encode(), "ledger")


def ledger_at(path: Path) -> Costs:
    """What `leave_ledger` wrote.

    Raises:
        DataError: it cannot be read, or is damaged.
    """
    try:
        told = _LEDGER.validate_json(path.read_bytes())
    except OSError as error:
        raise DataError(f"ledger {path} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise DataError(f"ledger {path} is damaged") from error
    costs = Costs(Stopwatch())
    for name, value in vars(told).items():
        held = getattr(costs, name)
        if isinstance(held, dict):
            held.update(value)
        else:
            setattr(costs, name, value)
    return costs


def leave_outcome(task: ActorTask, outcome: PartyOutcome) -> None:
    """Write an actor's models, and what else is left of it.

    Raises:
        DataError: a file cannot be written.
    """
    for path, model in model_files(task.party, outcome, Path(task.output)).items():
        save_model(path, model)
    rest = _Rest(
        outcome.rounds,
        outcome.scores,
        outcome.key_fingerprint,
        outcome.key_bits,
        outcome.leakage,
        outcome.ended,
        outcome.learned,
        outcome.selected,
        [_Point(p.l1, p.rounds, p.settled, p.objective, p.gap) for p in outcome.path],
        outcome.losses,
        outcome.failure,
    )
    told = json.dumps(_REST.dump_python(rest, mode="json"))
    content = save({HELD_OUT: outcome.held_out.copy()}, {REST: told})
    replace_file(Path(task.work) / f"{task.name}.rest", content, "what is left")


def outcome_at(work: Path, output: Path, name: str, plan: Plan) -> PartyOutcome:
    """What `leave_outcome` wrote.

    Raises:
        DataError: a file cannot be read, or is damaged.
    """
    path = work / f"{name}.rest"
    with reading(f"what is left, {path},"):
        texts, arrays = read_arrays(path)
        rest, held_out = _REST.validate_json(texts[REST]), arrays[HELD_OUT]
    model = load_model(output / f"{name}.safetensors")

    def model_of(point: _Point) -> PathPoint:
        own = model
        if len(rest.path) > 1:
            own = load_model(output / f"{name}-l1-{point.l1}.safetensors")
        return PathPoint(point.l1, point.rounds, point.settled, own, point.objective, point.gap)

    return PartyOutcome(
        model=model,
        rounds=rest.rounds,
        scores=rest.scores,
        key_fingerprint=rest.key_fingerprint,
        key_bits=rest.key_bits,
        leakage=rest.leakage,
        held_out=held_out,
        ended=rest.ended,
        learned=rest.learned,
        privacy=None if plan.account is None else plan.account.after(plan.rounds),
        selected=rest.kept,
        path=tuple(map(model_of, rest.path)),
        losses=rest.losses,
        failure=rest.failure,
    )

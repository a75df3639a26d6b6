"""The files that a party of a local job leaves, and how its operator reads them.

Models go to the output folder. The rest of a result (scores, ledger, the label guard's count, and
the party's own predictions of held-out rows) goes to the work folder.
"""

import json
from dataclasses import fields
from pathlib import Path
from types import GenericAlias
from typing import Any, get_type_hints

from pydantic import BaseModel, create_model
from safetensors.numpy import save

from securevfl.files import read_arrays, reading, replace_file
from securevfl.models.storage import load_model, save_model
from securevfl.parties.task import Task
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.workplace import PartyOutcome, PathPoint
from securevfl.runtime.costs import Costs, Stopwatch
from securevfl.training import model_files

REST, HELD_OUT, JOINT = "rest", "held out", "joint"


def _fields_of(kind: type, without: set[str], **more: Any) -> type[BaseModel]:  # noqa: ANN401
    """A model of a dataclass without some of its fields, to be written as JSON."""
    hints = get_type_hints(kind)
    rest: dict[str, Any] = {
        each.name: (hints[each.name], ...) for each in fields(kind) if each.name not in without
    }
    return create_model(f"_{kind.__name__}", **rest, **more)


# What a result needs of it.
_Ledger = _fields_of(
    Costs, {"stopwatch", "pace", "now", "idle_work", "_traffic", "_traffic_offline"}
)
_Point = _fields_of(PathPoint, {"model"})
# What is in files of its own, or follows from the plan.
_Rest = _fields_of(
    PartyOutcome,
    {"model", "held_out", "joint", "privacy", "path"},
    path=(GenericAlias(list, _Point), ...),
)


def leave_ledger(path: Path, costs: Costs) -> None:
    """Write a ledger; a DataError if it cannot be written."""
    replace_file(path, _Ledger(**vars(costs)).model_dump_json().encode(), "ledger", durable=False)


def ledger_at(path: Path) -> Costs:
    """Read a ledger; a DataError if it cannot be read, or is damaged."""
    with reading(f"ledger {path}"):
        return Costs(Stopwatch(), **vars(_Ledger.model_validate_json(path.read_bytes())))


def leave_outcome(task: Task, outcome: PartyOutcome) -> None:
    """Write a party's models and the rest of its outcome; a DataError if that fails."""
    for path, model in model_files(task.name, outcome, Path(task.output)).items():
        save_model(path, model)
    values = {**vars(outcome), "path": [vars(point) for point in outcome.path]}
    rest = json.dumps(_Rest(**values).model_dump(mode="json"))
    arrays = {HELD_OUT: outcome.held_out.copy()}
    if outcome.joint is not None:
        arrays[JOINT] = outcome.joint.copy()
    content = save(arrays, {REST: rest})
    replace_file(Path(task.work) / f"{task.name}.rest", content, "what is left", durable=False)


def outcome_at(work: Path, output: Path, name: str, plan: Plan) -> PartyOutcome:
    """Read a party's outcome; a DataError if a file cannot be read, or is damaged."""
    path = work / f"{name}.rest"
    with reading(f"what is left, {path},"):
        texts, arrays = read_arrays(path)
        rest, held_out = vars(_Rest.model_validate_json(texts[REST])), arrays[HELD_OUT]
    model = load_model(output / f"{name}.safetensors")
    points = [vars(point) for point in rest.pop("path")]
    models = [model]
    if len(points) > 1:
        models = [load_model(output / f"{name}-l1-{each['l1']}.safetensors") for each in points]
    return PartyOutcome(
        model=model,
        held_out=held_out,
        joint=arrays.get(JOINT),
        privacy=None if plan.account is None else plan.account.after(plan.rounds),
        path=tuple(
            PathPoint(model=own, **point) for point, own in zip(points, models, strict=False)
        ),
        **rest,
    )

"""Twin runs: the whole protocol on X and on XU, and how far others can tell the two apart.

If U is orthogonal and Uᵀθ⁰ = θ⁰, everybody who sees predictions sees the same for X and for XU,
because all gradients rotate along (Theorem 1 of Liu et al. 2019). Such a U is the identity on the
span of the columns that it fixes, and any orthogonal matrix on the complement. With `free` the
dimension of the complement, these U are a group of dimension free·(free − 1)/2. A column that
others know (a constant, for example) has to stay as well and takes away one more dimension.

The numbers that others see in clear are compared, message by message over all rounds. Ciphertexts
and masked numbers are uniform in both runs.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import null_space
from scipy.stats import ortho_group

from securevfl.arrays import FloatArray, IntArray
from securevfl.auditing.subject import local_part, scaled, table_of, with_table
from securevfl.auditing.views import clear_values
from securevfl.data.tables import VerticalDataset
from securevfl.errors import ConfigError
from securevfl.job import Job
from securevfl.models.linear import Rule, ruled
from securevfl.models.local_model import LocalModel, MakeModule
from securevfl.protocols.session.keys import KeyMaker
from securevfl.runtime.views import Received, View
from securevfl.training import Environment, TrainingResult, plan_for, train

ChangeTwin = Callable[[FloatArray], FloatArray]
MakeRotation = Callable[[FloatArray, np.random.Generator], FloatArray]


@dataclass(frozen=True, eq=False)
class Twin:
    """How a run on XU compares with the run on X, as seen by all other parties."""

    deviation: float  # largest ‖m − m'‖∞/‖m‖∞ of all numbers in clear
    absolute_deviation: float  # largest |m − m'|
    steps: IntArray  # shape (steps,), the steps of the job
    deviations: FloatArray  # shape (steps,), the largest relative deviation in each step
    relative_distance: float  # ‖X − XU‖/‖X‖ over the training rows
    orthogonality_error: float  # largest entry of |UᵀU − I|
    free_dimensions: int  # of the complement on which U acts
    group_dimension: int  # of the group of such U
    # Which numbers of the set-up in clear differ: a bound, a number of fraction bits, or the choice
    # of messages that follows from these
    set_up_differs: tuple[str, ...]
    seen: int  # how many arrays were compared
    wall_s: float  # of both runs


def free_directions(fixed: FloatArray) -> FloatArray:
    """An orthonormal basis, shape (P, free), of the complement of the fixed columns."""
    return np.asarray(null_space(fixed.T) if fixed.shape[1] else np.eye(len(fixed)))


def freedom(fixed: FloatArray) -> tuple[int, int]:
    """`free`, and the dimension of the group of rotations that fix these columns.

    With free = 0 no other data look the same, with 1 exactly one X (a reflection), with more
    infinitely many.
    """
    free = free_directions(fixed).shape[1]
    return free, free * (free - 1) // 2


def stabilizer_rotation(fixed: FloatArray, generator: np.random.Generator) -> FloatArray:
    """A Haar draw from the orthogonal matrices U ≠ I with U·f = f for every fixed column f.

    Fixed are the columns of θ⁰, one per output, and columns that others know; shape (P, fixed).
    """
    basis = free_directions(fixed)
    free = basis.shape[1]
    if free == 0:
        raise ConfigError(
            f"only the identity fixes {len(fixed)} independent columns: these data have no twin"
        )
    inner = ortho_group.rvs(free, random_state=generator) if free > 1 else -np.eye(1)
    return np.asarray(np.eye(len(fixed)) + basis @ (inner - np.eye(free)) @ basis.T)


@dataclass(frozen=True)
class TwinSetting:
    """Which party's data are rotated, and how."""

    party: str
    rotation: MakeRotation = stabilizer_rotation  # draws U from θ⁰, shape (P, fixed)
    change: ChangeTwin | None = None  # applied to XU, for negative controls
    rule: Callable[[], Rule] | None = None  # makes each party's optimizer, if not plain gradients
    modules: dict[str, MakeModule] | None = None  # custom networks by party
    keys: KeyMaker | None = None


def compare_twins(
    job: Job, dataset: VerticalDataset, setting: TwinSetting, generator: np.random.Generator
) -> Twin:
    """Train on X and on XU from the same θ⁰, and compare what all other parties see."""
    job, dataset = scaled(job, dataset)
    features = table_of(dataset, setting.party).train
    model = local_part(
        plan_for(job, dataset, setting.modules or {}), dataset, setting.party, setting.modules
    ).model
    fixed = fixed_columns(model, features.shape[1])
    rotation = setting.rotation(fixed, generator)
    turned = _turned(dataset, setting, rotation)
    first = _run(job, dataset, setting, model)
    second = _run(job, turned, setting, model)
    places, largest, relative = _deviations(first.views, second.views, setting.party)
    if not len(places):
        raise ConfigError("no other party saw a number in clear: there is nothing to compare")
    steps = np.unique(places)
    free, group = freedom(fixed)
    twin_features = table_of(turned, setting.party).train
    return Twin(
        deviation=float(relative.max()),
        absolute_deviation=float(largest.max()),
        steps=steps,
        deviations=np.array([relative[places == step].max() for step in steps]),
        relative_distance=float(
            np.linalg.norm(features - twin_features) / np.linalg.norm(features)
        ),
        orthogonality_error=float(np.abs(rotation.T @ rotation - np.eye(len(rotation))).max()),
        free_dimensions=free,
        group_dimension=group,
        set_up_differs=_set_up(first.views, second.views, setting.party),
        seen=len(places),
        wall_s=first.wall_s + second.wall_s,
    )


def fixed_columns(model: LocalModel, features: int) -> FloatArray:
    """The parameters that are multiplied by X, shape (P, fixed): θ⁰, or the first layer's W⁰ᵀ.

    Later layers see only X·W⁰ᵀ. A U with UᵀW⁰ᵀ = W⁰ᵀ is therefore hidden as in the linear case,
    because the gradient of W rotates along.

    Raises:
        ConfigError: a network that does not begin with a linear layer.
    """
    state = model.state()
    if state is None:
        return model.weights[:features]
    first = next(iter(state.values()))
    if first.ndim != 2 or first.shape[1] != features:  # noqa: PLR2004
        raise ConfigError("the network does not begin with a linear layer: rotation twins need one")
    return first.T.astype(np.float64)


def _turned(
    dataset: VerticalDataset, setting: TwinSetting, rotation: FloatArray
) -> VerticalDataset:
    table = table_of(dataset, setting.party)
    train_rows, test_rows = table.train @ rotation, table.test @ rotation
    if setting.change is not None:
        both = setting.change(np.vstack([train_rows, test_rows]))
        train_rows, test_rows = both[: len(train_rows)], both[len(train_rows) :]
    return with_table(dataset, replace(table, train=train_rows, test=test_rows))


def _run(
    job: Job, dataset: VerticalDataset, setting: TwinSetting, start: LocalModel
) -> TrainingResult:
    def wrap(name: str, model: LocalModel) -> LocalModel:
        if name == setting.party:
            model.weights = start.weights
        return model if setting.rule is None else ruled(model, setting.rule())

    environment = Environment(
        keys=setting.keys or KeyMaker(),
        record_views=True,
        modules=setting.modules or {},
        wrap_model=wrap,
    )
    return train(job, dataset, environment)


def _deviations(
    first: dict[str, View], second: dict[str, View], party: str
) -> tuple[IntArray, FloatArray, FloatArray]:
    """The step of each array that another party sees, its largest deviation, and the relative."""
    seen = clear_values(view for name, view in first.items() if name != party)
    again = clear_values(view for name, view in second.items() if name != party)
    steps, largest, relative = [], [], []
    for place, values in seen.items():
        if place not in again:  # the parties chose other messages, which `_set_up` reports
            continue
        difference = float(np.abs(values - again[place]).max())
        size = float(np.abs(values).max())
        steps.append(place.step)
        largest.append(difference)
        relative.append(difference / size if size > 0 else difference)
    return np.array(steps), np.array(largest), np.array(relative)


def _set_up(first: dict[str, View], second: dict[str, View], party: str) -> tuple[str, ...]:
    """The integers of a party's set-up that differ."""

    def received(views: dict[str, View]) -> list[Received]:
        return [each for name, view in views.items() if name != party for each in view.received()]

    def numbers(views: dict[str, View]) -> Iterator[tuple[str, int]]:
        for each in received(views):
            if (each.sender, each.message.stage) == (party, "setup"):
                fields = vars(each.message).items()
                yield from ((name, value) for name, value in fields if isinstance(value, int))

    pairs = zip(numbers(first), numbers(second), strict=True)
    differ = dict.fromkeys(name for (name, one), (_, other) in pairs if one != other)
    kinds = [[type(each.message) for each in received(views)] for views in (first, second)]
    return (*differ, *(["messages"] if kinds[0] != kinds[1] else []))

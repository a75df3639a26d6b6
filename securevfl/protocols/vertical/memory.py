"""What a party keeps to go on after a round."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from securevfl.arrays import FloatArray
from securevfl.errors import ConfigError, DataError
from securevfl.protocols.exchange import Established
from securevfl.protocols.local_steps import LocalSteps
from securevfl.protocols.session.checkpoints import Checkpoints
from securevfl.protocols.session.course import LabelWatch, Watch
from securevfl.protocols.session.keeping import Keeper
from securevfl.protocols.session.label_guard import LeakageCount
from securevfl.protocols.session.state import SessionState
from securevfl.protocols.vertical.program import Training


class Remembers(Protocol):
    """Whoever keeps something from round to round beside the model and the guard's count."""

    def arrays(self) -> Mapping[str, NDArray[Any]]:
        """All of it, by name."""

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Put all of it back."""


@dataclass(frozen=True)
class Memory:
    """What a party of FedBCD keeps."""

    exchange: Established
    steps: LocalSteps
    watch: Watch
    keeper: Keeper
    row_offsets: FloatArray | None = None

    def arrays(self) -> dict[str, FloatArray]:
        """All of it, by name."""
        parts = {
            "exchange": self.exchange.in_flight,
            "steps": self.steps.state(),
            "kept": self.keeper.arrays(),
        }
        if isinstance(self.watch, LabelWatch):
            parts["watch"] = self.watch.judge.state()
        if self.row_offsets is not None:
            parts["row"] = {"offsets": self.row_offsets}
        return {f"{part} {name}": a for part, held in parts.items() for name, a in held.items()}

    def restore(self, arrays: Mapping[str, FloatArray]) -> None:
        """Put all of it back."""

        def of(part: str) -> dict[str, FloatArray]:
            start = f"{part} "
            return {n.removeprefix(start): a for n, a in arrays.items() if n.startswith(start)}

        self.exchange.in_flight.update(of("exchange"))
        self.steps.resume(of("steps"))
        self.keeper.restore(of("kept"))
        if isinstance(self.watch, LabelWatch):
            self.watch.judge.resume(of("watch"))
        if self.row_offsets is not None:
            # Those drawn anew would show X times the difference.
            np.copyto(self.row_offsets, of("row")["offsets"])


def keep_state(training: Training, leakage: LeakageCount, memory: Remembers, rounds: int) -> None:
    """Hand on what it takes to go on, where somebody keeps it, and write it where that is due.

    Before the first round it is written too: what the guards wrote down then need not be again.
    """
    place, plan, name = training.workplace, training.plan, training.party.name
    every = plan.job.output.checkpoint_every
    folder = place.checkpoints if plan.never_resumes is None else None
    due = folder is not None and every > 0 and rounds % every == 0 and rounds < plan.rounds
    hands_on = place.keep_state is not None and rounds > 0
    if not (due or hands_on):
        return
    state = SessionState(
        job_hash=plan.hash.hex(),
        party=name,
        rounds=rounds,
        weights=training.model.weights,
        revealed={peer: dict(batches) for peer, batches in leakage.revealed.items()},
        in_flight=memory.arrays(),
        data=place.data.fingerprint,
    )
    if place.keep_state is not None and hands_on:
        place.keep_state(state)
    if folder is not None and due:
        Checkpoints(folder, name).keep(state)


def require_no_session(training: Training) -> None:
    """Check that a job that keeps no state is not asked to go on from one.

    Raises:
        ConfigError: it is.
    """
    if training.workplace.resume is not None and training.plan.never_resumes is not None:
        raise ConfigError(training.plan.never_resumes)


def go_on(state: SessionState, training: Training, leakage: LeakageCount, memory: Remembers) -> int:
    """Put a party back to where it was, and say how many rounds that is.

    Raises:
        ConfigError: the state of another job, party or model, one after the last round, or a job
            whose noise is counted.
        DataError: data that are not those of before.
    """
    require_no_session(training)
    ours = (training.plan.hash.hex(), training.party.name, training.model.weights.shape)
    if (state.job_hash, state.party, state.weights.shape) != ours:
        raise ConfigError(
            f"state of party {state.party!r} in job {state.job_hash[:16]}: not one of "
            f"{training.party.name!r} in {ours[0][:16]}"
        )
    if state.data != training.workplace.data.fingerprint:
        raise DataError(
            f"party {state.party!r}: its data are not those of the session after {state.rounds} "
            "rounds that is to go on"
        )
    if state.rounds >= training.plan.rounds:
        raise ConfigError(f"state after {state.rounds} rounds: none of the job's are left")
    training.model.weights = state.weights
    leakage.revealed.update({peer: dict(batches) for peer, batches in state.revealed.items()})
    memory.restore(state.in_flight)
    return state.rounds

"""Inputs and outcome of a party's program: its data, its files and callbacks, its results."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from typing_extensions import override

from securevfl.arrays import FloatArray, Labels
from securevfl.data.tables import OwnRows, PartyTable
from securevfl.models.local_model import LocalModel, MakeModule
from securevfl.models.storage import SavedModel
from securevfl.protocols.session.checkpoints import SessionState
from securevfl.protocols.session.early_stopping import SelectedState
from securevfl.protocols.session.keys import KeyMaker
from securevfl.protocols.session.pad_store import PadStore
from securevfl.protocols.session.privacy_account import LeakageCount, Promise
from securevfl.protocols.session.scoring import Score
from securevfl.shown import Shown
from securevfl.sparse import Matrix, require_dense


@dataclass(frozen=True, eq=False)
class PartyData:
    """What one party brings to a job.

    Attributes:
        train_labels: at the label party, or at all where the algorithm needs it.
        test_labels: likewise.
        own_rows: the label party's rows that no other party holds.
        class_names: at the label party.
    """

    table: PartyTable[Matrix]
    train_labels: Labels | None
    test_labels: Labels | None
    own_rows: OwnRows | None = None
    class_names: tuple[str, ...] = ()

    @property
    def whole_table(self) -> PartyTable[Matrix]:
        """The party's columns: rows common to all parties, then its own."""
        if self.own_rows is None:
            return self.table
        shared = require_dense(self.table.train, "a job with rows of one party's own")
        train = np.concatenate([shared, self.own_rows.features])
        return replace(self.table, train=train)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of all data, by which a resumed session recognizes them."""
        own = () if self.own_rows is None else (self.own_rows.features, self.own_rows.labels)
        digest = hashlib.sha256("|".join(self.table.columns).encode())
        arrays = (self.table.train, self.table.test, self.train_labels, self.test_labels, *own)
        for array in arrays:
            if array is not None:
                digest.update(f"{array.shape}".encode())
                for part in (array,) if isinstance(array, np.ndarray) else array.parts:
                    digest.update(np.ascontiguousarray(part).data)
        return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class Workplace:
    """The environment of a party's program.

    Attributes:
        start: draws θ⁰. Simulations seed it so that runs repeat; real parties must not, as θ⁰ is
            private.
        offsets_key: of the label party's row offsets, which are as private; None draws it from
            `start`.
        guard_directory: the guards' records of earlier jobs; None only counts, as benchmarks do.
        session: names the attempts at a job that have the same secret start, see `attempts`; empty
            where every run is another.
        answer: names everything that the job's numbers follow from, in a simulation or an
            attempt that would repeat them; None where they would be others.
        checkpoints: the folder for states during training; None writes none.
        durable: whether states must outlive a power cut.
        progress: called with the number of rounds done.
        make_module: makes this party's network where its model is custom.
        wrap_model: replaces the local model at θ⁰; benchmarks observe the weights with it.
        keep_state: called after every round with the state to resume from.
        resume: the state to resume from.
        pads: this party's store of offline pads; None has none.
    """

    data: PartyData
    keys: KeyMaker
    start: np.random.Generator
    offsets_key: bytes | None = None
    guard_directory: Path | None = None
    session: str = ""
    answer: str | None = None
    checkpoints: Path | None = None
    durable: bool = False
    progress: Callable[[int], None] | None = None
    make_module: MakeModule | None = None
    wrap_model: Callable[[LocalModel], LocalModel] | None = None
    keep_state: Callable[[SessionState], None] | None = None
    resume: SessionState | None = None
    pads: PadStore | None = None


Ending = Literal["rounds", "target", "settled", "no way down"]
"""Why training ended: all rounds are done, the held-out target is reached, the label party's loss
has settled, or it rises after every backtracking."""


@dataclass(frozen=True, eq=False)
class PathPoint:
    """One λ₁ of a regularization path.

    Attributes:
        rounds: done when training at this λ₁ ended.
        settled: whether it ended within the tolerance.
        model: this party's part of the model then.
        objective: of the joint model, at the label party, before weights near 0 are set to 0.
        gap: bound on the relative distance of `objective` from the minimum, at the label party.
    """

    l1: float
    rounds: int
    settled: bool
    model: SavedModel
    objective: float | None = None
    gap: float | None = None


@dataclass(frozen=True, eq=False, repr=False)
class PartyOutcome(Shown):
    """The result of one party's program.

    Attributes:
        model: its trained part.
        scores: held-out scores, at the label party.
        joint: H of the held-out rows by the selected state, shape (test rows, 1), as a label party
            that may see it scored two classes; else None.
        key_fingerprint: of its own homomorphic key, if any.
        key_bits: of that key, if its scheme has a choice.
        leakage: what the gradients it decrypted reveal.
        held_out: its own exact predictions of the held-out rows at the end.
        learned: at the label party, whether the training loss ended below that of the best
            constant; True where it could not see that.
        privacy: the guarantee of the job's noise; None without noise.
        selected: which state the model is.
        path: one point per λ₁, for algorithms with an L1 path.
        losses: of every exchanged batch of this run, in the targets' units, at the label party of
            fedsgd and fedbcd; empty where it sees none without noise.
        failure: bound on the probability that a truncation at this party spoiled the job.
    """

    model: SavedModel
    rounds: int
    scores: list[Score]
    key_fingerprint: str | None
    key_bits: int | None
    leakage: LeakageCount
    held_out: FloatArray
    ended: Ending
    learned: bool
    privacy: Promise | None
    selected: SelectedState
    path: tuple[PathPoint, ...] = ()
    losses: tuple[float, ...] = ()
    failure: float = 0.0
    joint: FloatArray | None = None

    @override
    def shown(self) -> dict[str, object]:
        """For people: the party, and how training ended."""
        return {"party": self.model.header.party, "rounds": self.rounds, "ended": self.ended}

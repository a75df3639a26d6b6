"""What a party's program is given, its data and what it may use besides, and what it returns."""

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
from securevfl.sparse import Matrix, SparseRows, require_dense


@dataclass(frozen=True, eq=False)
class PartyData:
    """What one party brings to a job.

    Attributes:
        train_labels: at the label party only; at all where the algorithm gives them to all.
        test_labels: the same.
        own_rows: the label party's rows that no other party holds.
        class_names: at the label party, what each class is called.
    """

    table: PartyTable[Matrix]
    train_labels: Labels | None
    test_labels: Labels | None
    own_rows: OwnRows | None = None
    class_names: tuple[str, ...] = ()

    @property
    def whole_table(self) -> PartyTable[Matrix]:
        """The party's columns with its own rows behind those that all hold."""
        if self.own_rows is None:
            return self.table
        shared = require_dense(self.table.train, "a job with rows of one party's own")
        train = np.concatenate([shared, self.own_rows.features])
        return replace(self.table, train=train)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) over all of it, so that a session goes on with the data that it had."""
        own = () if self.own_rows is None else (self.own_rows.features, self.own_rows.labels)
        digest = hashlib.sha256("|".join(self.table.columns).encode())
        arrays = (self.table.train, self.table.test, self.train_labels, self.test_labels, *own)
        for array in arrays:
            if array is not None:
                digest.update(f"{array.shape}".encode())
                for part in array.parts if isinstance(array, SparseRows) else (array,):
                    digest.update(np.ascontiguousarray(part).data)
        return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class Workplace:
    """What a party's program is given.

    Attributes:
        start: draws θ⁰. In a simulation it is seeded, so that runs repeat; between real parties
            it must not be, as θ⁰ is private.
        guard_directory: where a key owner remembers what its jobs revealed, and refuses or notes
            this one; None only counts, as benchmarks do.
        checkpoints: where the model is written as training goes on, and what it takes to go on
            from there; None writes none.
        progress: called with rounds done.
        make_module: makes this party's network where its model is custom.
        wrap_model: gives what is trained in place of the local model at θ⁰; benchmarks follow
            the weights with it.
        keep_state: called after every round with what it takes to go on from there.
        resume: go on from here.
        pads: where this party's pads are that were made offline; None keeps none.
    """

    data: PartyData
    keys: KeyMaker
    start: np.random.Generator
    guard_directory: Path | None = None
    checkpoints: Path | None = None
    progress: Callable[[int], None] | None = None
    make_module: MakeModule | None = None
    wrap_model: Callable[[LocalModel], LocalModel] | None = None
    keep_state: Callable[[SessionState], None] | None = None
    resume: SessionState | None = None
    pads: PadStore | None = None


Ending = Literal["rounds", "target", "settled", "no way down"]
"""What ends training: all rounds are done, the held-out target is reached, or the label party's
loss has settled, or rises whichever way it is tried."""


@dataclass(frozen=True, eq=False)
class PathPoint:
    """One λ₁ of a regularization path.

    Attributes:
        rounds: done when training at it ended.
        settled: whether it ended because it was good enough.
        model: this party's part of the model at its end.
        objective: of all parties' models, at the label party, before weights that were about to
            become 0 are set to it.
        gap: bound on how far that was above the least one, as a part of it, at the label party.
    """

    l1: float
    rounds: int
    settled: bool
    model: SavedModel
    objective: float | None = None
    gap: float | None = None


@dataclass(frozen=True, eq=False, repr=False)
class PartyOutcome(Shown):
    """What one party's program returns.

    Attributes:
        model: its trained part.
        scores: held-out scores, at the label party.
        key_fingerprint: of its own homomorphic key, if any.
        key_bits: of that key, if its scheme has a choice.
        leakage: what the gradients it decrypted reveal.
        held_out: its own exact predictions of the held-out rows after the last round.
        learned: at the label party, whether the training loss has ended below that of the best
            constant, as far as it could see.
        privacy: what the job's noise promises; None where there is none.
        selected: which state the model is, and what this party saw of it.
        path: by λ₁, of algorithms that have an L1 path.
        losses: of fedsgd and fedbcd at the label party, of the batch of every round of this run as
            it was exchanged, in the targets' units; empty where it sees none without noise.
        failure: bound on the probability that a truncation of its went wrong, and the job with it.
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

    @override
    def shown(self) -> dict[str, object]:
        """Whose it is, and how it ended."""
        return {"party": self.model.header.party, "rounds": self.rounds, "ended": self.ended}

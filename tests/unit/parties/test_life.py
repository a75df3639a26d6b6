"""A party's life: whatever is interrupted, all parties end with the model of an undisturbed run."""

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from securevfl.parties.agreement import Agreement, parse_agreement, sign_agreement
from securevfl.parties.alignment import Limits

from securevfl.arrays import FloatArray
from securevfl.data.read import FileSource
from securevfl.parties.identity import Identity, public_text
from securevfl.parties.life import Finished, Place, live
from securevfl.parties.own_data import OwnRows
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.workplace import PartyOutcome
from tests.switchboard import Switchboard, here, in_virtual_time

ROUNDS = 6
IDENTITIES = {name: Identity.generate() for name in ("bank", "shop", "post")}


def agreement_of(names: tuple[str, ...], scheme: str, **settings: object) -> Agreement:
    given = {"rounds": ROUNDS, "start": "seeded", "tolerance": 0.0, "eval_every": 0, **settings}
    text = "[job]\n" + "".join(f"{key} = {_toml(value)}\n" for key, value in given.items())
    text += f'[exchange]\nscheme = "{scheme}"\n[output]\ncheckpoint_every = 1\n'
    text += '[links]\nrelay = "ws://localhost:1"\n'
    for name in names:
        role = "label" if name == "bank" else "feature"
        key = public_text(IDENTITIES[name].public)
        text += f'[[party]]\nname = "{name}"\nrole = "{role}"\nidentity = "{key}"\n'
    return parse_agreement(text.encode())


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value).replace("'", '"')


def write_files(folder: Path, names: tuple[str, ...], rows: int = 60, seed: int = 5) -> None:
    """A file a party: two columns, ids in an order of its own, a few rows that others lack."""
    generator = np.random.default_rng(seed)
    common = [f"p{number:03}" for number in range(rows)]
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        ids = [*common, *(f"{name}{number}" for number in range(5))]
        generator.shuffle(ids)
        lines = ["id,one,two" + (",y" if name == "bank" else "")]
        for row in ids:
            values = [f"{value:.4f}" for value in generator.standard_normal(2)]
            label = [str(int(generator.random() < 0.5))] if name == "bank" else []
            lines.append(",".join([row, *values, *label]))
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")


@dataclass
class Parties:
    """All parties of a job in virtual time, whom a schedule kills and cuts off."""

    folder: Path
    agreement: Agreement
    files: Path
    board: Switchboard
    weights: dict[str, FloatArray] = field(default_factory=dict)
    rounds: dict[str, int] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)

    @property
    def names(self) -> tuple[str, ...]:
        return self.agreement.names

    def place(self, name: str, **changes: object) -> Place:
        label_column = "y" if name == "bank" else None
        source = FileSource(name, self.files / f"{name}.csv", "id", label_column)
        told = Place(
            name=name,
            agreement=self.agreement,
            job=self.agreement.job,
            rows=lambda by_digest: OwnRows.read(source, by_digest=by_digest),
            by_digest=False,
            signature=sign_agreement(self.agreement, IDENTITIES[name]),
            folder=self.folder / name,
            records=self.folder / name / "records",
            limits=Limits(),
            runs=here,
        )
        return replace(told, **changes)  # type: ignore[arg-type]

    def save(self, name: str, plan: Plan, outcome: PartyOutcome) -> None:
        del plan
        self.weights[name] = outcome.model.weights

    async def one(self, name: str, **changes: object) -> Finished:
        place = self.place(name, **changes)
        return await live(place, self.board.of(name), lambda p, o: self.save(name, p, o))

    async def all(self) -> Mapping[str, Finished]:
        found = await asyncio.gather(*(self.one(name) for name in self.names))
        return dict(zip(self.names, found, strict=True))


def parties(
    folder: Path,
    names: tuple[str, ...] = ("bank", "shop"),
    scheme: str = "plain",
    **settings: object,
) -> Parties:
    write_files(folder / "files", names)
    board = Switchboard(names, random.Random(0), 0.01)
    return Parties(
        folder / "state", agreement_of(names, scheme, **settings), folder / "files", board
    )


def test_two_parties_train(tmp_path: Path) -> None:
    made = parties(tmp_path)
    finished = in_virtual_time(made.all())
    assert {each.outcome.rounds for each in finished.values() if each.outcome} == {ROUNDS}
    assert {each.dropped for each in finished.values()} == {5}

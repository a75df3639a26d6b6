"""A party's life: whatever is interrupted, all parties end with the model of an undisturbed run."""

import asyncio
import random
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest

from securevfl.arrays import FloatArray
from securevfl.data.convert import Conversion, convert
from securevfl.data.join import load_files
from securevfl.data.read import FileSource
from securevfl.errors import ConfigError, PeerNotTrusted, PeerViolation, SecureVFLError
from securevfl.parties.agreement import Agreement, parse_agreement, sign_agreement
from securevfl.parties.alignment import Limits
from securevfl.parties.identity import Identity, public_text
from securevfl.parties.life import Finished, Place, live, read_diary
from securevfl.parties.meeting import CONTROL, JobEnded, Stopped
from securevfl.parties.own_data import OwnRows
from securevfl.parties.recovery import Told
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.checkpoints import Checkpoints
from securevfl.protocols.session.pad_store import PadStore
from securevfl.protocols.session.workplace import PartyOutcome, Workplace
from securevfl.protocols.vertical.fdml import SERVER, Fdml
from securevfl.training import train
from tests.switchboard import Switchboard, here, in_virtual_time

Names = tuple[str, ...]
TWO, THREE = ("bank", "shop"), ("bank", "shop", "post")
ROUNDS = 6
IDENTITIES = {name: Identity.generate() for name in THREE}


def agreement_of(names: Names, scheme: str, **settings: object) -> Agreement:
    given = {"rounds": ROUNDS, "start": "seeded", "tolerance": 0.0, "eval_every": 0, **settings}
    text = "[job]\n" + "".join(f"{key} = {_toml(value)}\n" for key, value in given.items())
    text += f'[exchange]\nscheme = "{scheme}"\n[output]\ncheckpoint_every = 1\n'
    if scheme == "dp":
        text += "[privacy]\nnoise_multiplier = 5.0\n"
    text += '[links]\nrelay = "ws://localhost:1"\n'
    for name in names:
        role = "label" if name == "bank" else "feature"
        key = public_text(IDENTITIES[name].public)
        text += f'[[party]]\nname = "{name}"\nrole = "{role}"\nidentity = "{key}"\n'
    return parse_agreement(text.encode())


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value).replace("'", '"')


def write_files(folder: Path, names: Names, rows: int = 60, seed: int = 5) -> None:
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
    def names(self) -> Names:
        return self.agreement.names

    def source(self, name: str) -> FileSource:
        label_column = "y" if name == "bank" else None
        return FileSource(name, self.files / f"{name}.csv", "id", label_column)

    def place(self, name: str, **changes: object) -> Place:
        source, folder = self.source(name), self.folder / name
        told = Place(
            name=name,
            agreement=self.agreement,
            job=self.agreement.job,
            rows=lambda by_digest: OwnRows.read(source, by_digest=by_digest),
            by_digest=False,
            signature=sign_agreement(self.agreement, IDENTITIES[name]),
            folder=folder,
            records=folder / "records",
            limits=Limits(),
            runs=here,
            pads=PadStore(folder / "pads", folder / "pad-keys", name),
        )
        return replace(told, **changes)  # type: ignore[arg-type]

    def save(self, name: str, plan: Plan, outcome: PartyOutcome) -> None:
        del plan
        self.weights[name] = outcome.model.weights

    async def one(self, name: str, **changes: object) -> Finished:
        place = self.place(name, **changes)
        return await live(place, self.board.of(name), lambda p, o: self.save(name, p, o))

    async def all(self) -> Mapping[str, Finished]:
        lives = (self.one(name) for name in self.names)
        found = await asyncio.gather(*lives, return_exceptions=True)
        for each in found:
            if isinstance(each, BaseException) and not isinstance(each, JobEnded):
                raise each
        return {n: e for n, e in zip(self.names, found, strict=True) if isinstance(e, Finished)}


def parties(folder: Path, names: Names = TWO, scheme: str = "plain", **settings: object) -> Parties:
    files = folder / "files"
    write_files(files, names, rows=900 if scheme in ("bfv", "blind") else 60)
    board = Switchboard(names, random.Random(0), 0.01)  # noqa: S311
    return Parties(folder / "state", agreement_of(names, scheme, **settings), files, board)


def undisturbed(made: Parties) -> dict[str, FloatArray]:
    """The models of the same job in one process."""
    sources = [made.source(name) for name in made.names]
    result = train(made.agreement.job, load_files(sources))
    return {name: each.model.weights for name, each in result.outcomes.items()}


def require_same(made: Parties, expected: Mapping[str, FloatArray]) -> None:
    for name, weights in expected.items():
        np.testing.assert_array_equal(made.weights[name], weights)


@pytest.mark.parametrize(
    ("names", "scheme", "settings"),
    [
        (TWO, "plain", {}),
        (TWO, "bfv", {}),
        (THREE, "plain", {"algorithm": "dbcd", "l1": 0.001}),
        (THREE, "masked", {}),
        (THREE, "plain", {"algorithm": "fdml", "batch_size": 16, "learning_rate": 0.1}),
    ],
)
def test_models_are_those_of_one_process(
    tmp_path: Path, names: Names, scheme: str, settings: dict[str, object]
) -> None:
    made = parties(tmp_path, names, scheme, **settings)
    in_virtual_time(made.all())
    require_same(made, undisturbed(made))
    assert {read_diary(made.folder / name).repeated for name in names} == {0}


def ends(made: Parties, **changes: dict[str, object]) -> dict[str, str]:
    """How a job ends at each party, of which some are in another place."""

    async def one(name: str) -> str:
        try:
            await made.one(name, **changes.get(name, {}))
        except SecureVFLError as error:
            return f"{type(error).__name__}: {error}"
        return "finished"

    async def all_of_them() -> list[str]:
        return await asyncio.gather(*(one(name) for name in made.names))

    return dict(zip(made.names, in_virtual_time(all_of_them()), strict=True))


def test_agreements_that_differ_end_in_what_differs(tmp_path: Path) -> None:
    made = parties(tmp_path)
    other = agreement_of(TWO, "plain", rounds=7)
    signed = sign_agreement(other, IDENTITIES["shop"])
    told = ends(made, shop={"agreement": other, "job": other.job, "signature": signed})
    assert "shop has another agreement: job.rounds: 6 here, 7 there" in told["bank"]
    assert "bank has another agreement: job.rounds: 7 here, 6 there" in told["shop"]
    assert made.weights == {}


def test_who_has_not_signed_takes_no_part(tmp_path: Path) -> None:
    made = parties(tmp_path)
    another = sign_agreement(made.agreement, IDENTITIES["bank"])
    told = ends(made, shop={"signature": another})
    assert told["bank"].startswith("PeerViolation: ")
    assert (
        told["shop"] == "JobEnded: bank ended the job (PeerViolation); its own last line says why"
    )
    assert made.weights == {}


def test_peers_hear_the_name_of_an_error_and_no_more(tmp_path: Path) -> None:
    made = parties(tmp_path, THREE, "masked")
    (made.files / "shop.csv").write_text("id,one\np000,secret text\n")
    told = ends(made)
    assert "secret text" in told["shop"]
    assert told["bank"] == "JobEnded: shop ended the job (DataError); its own last line says why"
    assert told["post"].startswith("JobEnded: ")
    assert told["post"].endswith("(DataError); its own last line says why")


def test_an_error_of_the_server_ends_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parties wait for it: the label party's own program would never end."""
    settings = {"algorithm": "fdml", "batch_size": 16, "learning_rate": 0.1}
    made, real = parties(tmp_path, THREE, "plain", **settings), Fdml.programs

    async def breaks(*_: object) -> PartyOutcome:
        raise PeerViolation("shop sent what is no message")

    def programs(self: Fdml, plan: Plan, places: Mapping[str, Workplace]) -> dict[str, Any]:
        return {n: breaks if n == SERVER else e for n, e in real(self, plan, places).items()}

    monkeypatch.setattr(Fdml, "programs", programs)
    told = ends(made)
    assert told["bank"] == "PeerViolation: shop sent what is no message"
    assert {told[name] for name in THREE[1:]} <= {
        f"JobEnded: {name} ended the job (PeerViolation); its own last line says why"
        for name in THREE
    }


def test_a_person_sees_how_far_alignment_is(tmp_path: Path) -> None:
    made, told = parties(tmp_path), list[tuple[int, int]]()

    async def both() -> None:
        shown = Told(ids=lambda *counts: told.append(counts))
        await asyncio.gather(made.one("bank", told=shown), made.one("shop"))

    in_virtual_time(both())
    assert told[-1] == (130, 130)


def test_a_job_whose_noise_was_released_begins_once(tmp_path: Path) -> None:
    made = parties(tmp_path, scheme="dp")

    async def interrupted() -> None:
        running = [asyncio.create_task(made.one(name)) for name in TWO]
        while not (made.folder / "bank" / "attempts").exists():
            await asyncio.sleep(0.001)
        for task in running:
            task.cancel()
        await asyncio.wait(running)

    in_virtual_time(interrupted())
    told = ends(made)
    assert any("ConfigError: " in each and "not started again" in each for each in told.values())
    assert made.weights == {}


@pytest.mark.parametrize("scheme", ["plain", "dp"])
def test_no_peer_takes_back_that_all_have_finished(tmp_path: Path, scheme: str) -> None:
    """Its secret is wiped: the job would begin anew with other numbers, and noise."""
    made = parties(tmp_path, scheme=scheme)
    in_virtual_time(made.all())
    finished = dict(made.weights)
    (made.folder / "shop" / "diary.json").unlink()
    told = ends(made, shop={"patience": 1.0})
    assert told == {
        "bank": "finished",
        "shop": "JobEnded: bank ended the job (PeerViolation); its own last line says why",
    }
    require_same(made, finished)
    assert not (made.folder / "bank" / "attempts").exists()


def test_who_runs_a_finished_job_again_is_told_so_and_stays_for_minutes(tmp_path: Path) -> None:
    made, said = parties(tmp_path), list[str]()
    in_virtual_time(made.all())

    async def again() -> tuple[Finished, float]:
        time = asyncio.get_running_loop().time
        began = time()
        return await made.one("bank", told=Told(line=said.append)), time() - began

    finished, seconds = in_virtual_time(again())
    assert finished.outcome is None
    assert 600 <= seconds < 601
    assert said[0].startswith("has finished before: stays 10 minutes at most")


def test_a_result_that_a_peer_needs_again_is_none(tmp_path: Path) -> None:
    """Else a party that meets nobody any more would end as if it had a model."""
    made, held = parties(tmp_path), list[object]()

    async def killed() -> None:
        bank = asyncio.create_task(made.one("bank", told=Told(holds=held.append)))
        shop = asyncio.create_task(made.one("shop"))
        while not held or held[-1] is None:
            await asyncio.sleep(0.0001)
        shop.cancel()  # its last message is on the way
        await asyncio.wait([shop])
        await asyncio.gather(bank, made.one("shop"))

    in_virtual_time(killed())
    assert [each is None for each in held] == [True, False, True, False]
    require_same(made, undisturbed(made))


def test_a_stop_after_the_end_is_not_kept(tmp_path: Path) -> None:
    made, kept = parties(tmp_path), list[Stopped]()
    in_virtual_time(made.all())
    stopped = Stopped(by="shop", at="2026-11-28 08:00 UTC", signature="00" * 64)

    async def stops() -> None:
        links = await made.board.of("shop").connect()
        links["bank"].post(bytes((CONTROL,)) + stopped.model_dump_json().encode())
        await asyncio.sleep(10)

    async def both() -> Finished:
        finished, _ = await asyncio.gather(made.one("bank", stopped=kept.append), stops())
        return finished

    assert in_virtual_time(both()).outcome is None
    assert kept == []


def test_states_of_no_round_in_common_end_the_job(tmp_path: Path) -> None:
    made = parties(tmp_path)

    async def interrupted() -> None:
        running = {name: asyncio.create_task(made.one(name)) for name in TWO}
        while min(Checkpoints(made.folder / "bank", "bank").load(), default=0) == 0:
            await asyncio.sleep(0.001)
        for task in running.values():
            task.cancel()
        await asyncio.wait(running.values())

    in_virtual_time(interrupted())
    for path in (made.folder / "shop").glob("shop.state*"):
        path.unlink()
    told = ends(made)
    assert any("states of no round in common" in each for each in told.values())
    assert "finished" not in told.values()


def test_rounds_are_not_taken_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    for seed in range(6):
        chance = random.Random(seed)  # noqa: S311
        made = parties(tmp_path / str(seed))
        monkeypatch.setattr(made, "place", partial(made.place, most_repeated=0))
        made.board = Switchboard(TWO, chance, 0.05)
        try:
            in_virtual_time(disturbed(made, chance))
        except ConfigError as error:
            told.append(str(error))
    assert any("rounds would be taken again, at most 0" in each for each in told)


@pytest.mark.parametrize("done", [0, 3])
def test_rounds_that_a_dead_party_had_taken_since_its_last_state_count(
    tmp_path: Path, done: int
) -> None:
    """Also the round in which it died: a peer may have got its part of that."""
    made = parties(tmp_path)
    text = made.agreement.text.replace(b"checkpoint_every = 1", b"checkpoint_every = 100")
    made.agreement, rounds = parse_agreement(text), [0]
    told = Told(rounds=lambda now, most: rounds.append(now))

    async def killed() -> None:
        running = [asyncio.create_task(made.one(name, told=told)) for name in TWO]
        while rounds[-1] < done or not (made.folder / "bank" / "attempts").exists():
            await asyncio.sleep(0.0001)
        for task in running:
            task.cancel()
        await asyncio.wait(running)

    in_virtual_time(killed())
    in_virtual_time(made.all())
    # The other may have been a round behind.
    assert max(read_diary(made.folder / name).repeated for name in TWO) == done + 1


class Lives(Protocol):
    """Parties that do something together."""

    board: Switchboard

    @property
    def names(self) -> Names: ...

    def one(self, name: str) -> Coroutine[Any, Any, object]: ...


def test_pads_that_were_made_ahead_are_used_up(tmp_path: Path) -> None:
    made = parties(tmp_path, scheme="blind", start="zero", eval_every="never")
    assert set(ends(made, bank={"ahead": True}, shop={"ahead": True}).values()) == {"finished"}
    stores = [made.place(name).pads for name in TWO]
    assert all(store is not None and store.there for store in stores)
    assert made.weights == {}
    told = ends(made, shop={"ahead": True})
    assert "shop makes pads (--ahead), and this party trains" in told["bank"]
    in_virtual_time(made.all())
    assert not any(store is not None and store.there for store in stores)
    assert [*(made.folder / "bank" / "pad-keys").rglob("*key")] == []
    for name, weights in undisturbed(made).items():
        np.testing.assert_allclose(made.weights[name], weights, atol=2e-3)  # rounding


@pytest.mark.parametrize(
    ("scheme", "finished", "refusal"),
    [("dp", False, "has no offline phase"), ("blind", True, "the job has finished")],
)
def test_pads_that_no_run_would_take_are_not_made(
    tmp_path: Path, scheme: str, finished: bool, refusal: str
) -> None:
    """Nor does a job with noise count as begun by that."""
    settings = {"start": "zero", "eval_every": "never"} if scheme == "blind" else {}
    made = parties(tmp_path, TWO, scheme, **settings)
    if finished:
        in_virtual_time(made.all())
    told = ends(made, bank={"ahead": True}, shop={"ahead": True})
    assert all(each.startswith("ConfigError: ") and refusal in each for each in told.values())
    assert not (made.folder / "bank" / "attempts").exists()


def test_rows_that_match_by_digest_are_aligned_once(tmp_path: Path) -> None:
    """Also at the party whose own data are a file with ids."""
    made, asked = parties(tmp_path, rounds=40), list[str]()
    convert([made.files / "shop.csv"], made.files / "shop", Conversion())
    shard = FileSource("shop", made.files / "shop", "id")

    def place(name: str) -> Place:
        changes = {"by_digest": True, "rows": lambda by_digest: OwnRows.read(shard, by_digest=True)}
        aligns = partial(asked.append, name)
        return made.place(name, aligns=aligns, **(changes if name == "shop" else {}))

    async def one(name: str) -> None:
        await live(place(name), made.board.of(name), partial(made.save, name))

    async def interrupted() -> None:
        running = [asyncio.create_task(one(name)) for name in TWO]
        for done in (1, 3):
            while max(Checkpoints(made.folder / "bank", "bank").load(), default=0) < done:
                await asyncio.sleep(0.001)
            made.board.cut(*TWO)
        for task in running:
            task.cancel()
        await asyncio.wait(running)
        await asyncio.gather(*(one(name) for name in TWO))

    in_virtual_time(interrupted())
    assert sorted(asked) == ["bank", "shop"]


def test_who_hears_a_false_stop_tells_the_others(tmp_path: Path) -> None:
    made = parties(tmp_path, THREE)
    stopped = Stopped(by="post", at="2026-11-28 08:00 UTC", signature="00" * 64)

    def refuses(_: Stopped) -> None:
        raise PeerNotTrusted("post has not signed that")

    async def lies() -> None:
        links = await made.board.of("shop").connect()
        links["bank"].post(bytes((CONTROL,)) + stopped.model_dump_json().encode())
        await asyncio.sleep(10)

    async def one(name: str) -> str:
        try:
            await made.one(name, stopped=refuses, patience=100.0)
        except SecureVFLError as error:
            return f"{type(error).__name__}: {error}"
        return "finished"

    async def together() -> list[str]:
        told = await asyncio.gather(one("bank"), one("post"), lies())
        return [each for each in told if each is not None]

    assert in_virtual_time(together()) == [
        "PeerNotTrusted: post has not signed that",
        "JobEnded: bank ended the job (PeerNotTrusted); its own last line says why",
    ]


def test_a_policy_that_has_enough_of_alignments_ends_the_job_before_one(tmp_path: Path) -> None:
    def enough() -> None:
        raise ConfigError("enough")

    made = parties(tmp_path)
    told = ends(made, shop={"aligns": enough})
    assert told == {
        "shop": "ConfigError: enough",
        "bank": "JobEnded: shop ended the job (ConfigError); its own last line says why",
    }
    assert not (made.folder / "bank" / "alignment").exists()


def test_a_finished_job_leaves_no_secret(tmp_path: Path) -> None:
    made = parties(tmp_path)
    in_virtual_time(made.all())
    assert not (made.folder / "bank" / "attempts").exists()
    assert not Checkpoints(made.folder / "bank", "bank").load()


def test_a_return_to_an_older_state_keeps_two_states(tmp_path: Path) -> None:
    """Else the next state would take the place of the one that all hold."""
    made = parties(tmp_path, rounds=8)
    folders = [(made.folder / name, name) for name in TWO]

    async def interrupted(until: int) -> None:
        running = {name: asyncio.create_task(made.one(name)) for name in TWO}
        while any(max(Checkpoints(*each).load(), default=0) < until for each in folders):
            await asyncio.sleep(0.0001)
        for task in running.values():
            task.cancel()
        await asyncio.wait(running.values())

    in_virtual_time(interrupted(4))
    bank = Checkpoints(*folders[0])
    (last,) = sorted(bank.load())[-1:]
    # The shop lost the newest state: both return to the one before.
    shop = Checkpoints(*folders[1])
    shop.newest.unlink()
    assert max(shop.load()) < last
    in_virtual_time(interrupted(last))
    assert sorted(bank.load()) == [last - 1, last]
    in_virtual_time(made.all())
    require_same(made, undisturbed(made))


async def disturbed(made: Lives, chance: random.Random) -> int:
    """Run a job while links break and parties die and come back; how many interruptions."""
    loop, names, until = asyncio.get_running_loop(), made.names, 1.5 * chance.random()
    running = {name: loop.create_task(made.one(name)) for name in names}
    happened = 0
    while loop.time() < until and not all(each.done() for each in running.values()):
        await asyncio.sleep(chance.expovariate(4.0))
        victim, other = chance.sample(names, 2)
        if chance.random() < 0.5:
            made.board.cut(victim, other)
        elif not running[victim].done():
            running[victim].cancel()
            await asyncio.wait([running[victim]])
            await asyncio.sleep(chance.random())
            running[victim] = loop.create_task(made.one(victim))
        happened += 1
    ended = await asyncio.gather(*running.values(), return_exceptions=True)
    for each in ended:
        if isinstance(each, BaseException) and not isinstance(each, JobEnded):
            raise each
    return happened


def schedules(tmp_path: Path, seeds: range, names: Names, scheme: str) -> int:
    expected, happened = undisturbed(parties(tmp_path, names, scheme)), 0
    for seed in seeds:
        chance = random.Random(seed)  # noqa: S311
        made = parties(tmp_path / str(seed), names, scheme)
        made.board = Switchboard(names, chance, 0.05 * chance.random())
        happened += in_virtual_time(disturbed(made, chance))
        require_same(made, expected)
    return happened


@pytest.mark.parametrize(("names", "scheme"), [(TWO, "plain"), (THREE, "masked")])
def test_whatever_is_interrupted_the_models_are_the_same(
    tmp_path: Path, names: Names, scheme: str
) -> None:
    assert schedules(tmp_path, range(8), names, scheme) > 8

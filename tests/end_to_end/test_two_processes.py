"""Two processes over a local socket do what the simulation does, and say how a job failed.

Each reads its own file and the aligned ids, and nothing else of the other's data.
"""

import json
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securevfl.data.ids import write_aligned
from securevfl.data.join import align_files, load_files
from securevfl.data.read import FileSource
from securevfl.job import parse_job
from securevfl.protocols.session.keys import KeyMaker
from securevfl.runtime.costs import (
    COMMUNICATION,
    CORRELATED_RANDOMNESS,
    OFFLINE_COMMUNICATION,
    Costs,
)
from securevfl.training import Environment, train
from tests.end_to_end.one_party import Order

ROOT = Path(__file__).parents[2]
LONG = 120.0  # seconds after which a test that waits has failed
ROWS = 120
NAMES = ("bank", "shop")
JOB = """
[job]
rounds = {rounds}
batch_size = 16
local_steps = 2
eval_every = 0
learning_rate = 0.1
loss = "{loss}"
seed = {seed}
[exchange]
scheme = "{scheme}"
[[party]]
name = "bank"
role = "label"
label_column = "default"
[[party]]
name = "shop"
role = "feature"
"""


class PartyProcess:
    """A party that waits for orders."""

    def __init__(self, name: str, ends: list[socket.socket]) -> None:
        self.name = name
        self._descriptors = [end.fileno() for end in ends]
        self.process = subprocess.Popen(  # noqa: S603 (this interpreter, our own file)
            [sys.executable, "-m", "tests.end_to_end.one_party", name],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=self._descriptors,
        )
        self._report: queue.Queue[dict[str, Any]] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def take_part(self, folder: Path, job: Path, timeout_seconds: float) -> None:
        own = folder / self.name
        order = Order(
            descriptor=self._descriptors.pop(),
            job=str(job),
            aligned=str(own / "aligned.json"),
            own=str(own / "rows.csv"),
            weights=str(own / "weights.npy"),
            timeout_seconds=timeout_seconds,
        )
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(vars(order)) + "\n")
        self.process.stdin.flush()

    def tells(self, what: str) -> dict[str, Any]:
        """The next thing it tells that says this; whatever else it says first is passed over."""
        while what not in (report := self._report.get(timeout=LONG)):
            assert "error" not in report, report["error"]
        return report

    def fails(self) -> str:
        """How it says that its job failed."""
        return str(self.tells("error")["error"])

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._report.put(json.loads(line))
        self._report.put({"error": f"{self.name} ended"})


@dataclass(frozen=True)
class Pair:
    bank: PartyProcess
    shop: PartyProcess
    folder: Path

    def job(self, name: str, **settings: object) -> Path:
        path = self.folder / f"{name}.toml"
        usual = {"rounds": 6, "seed": 3, "scheme": "plain", "loss": "logistic"}
        path.write_text(JOB.format(**{**usual, **settings}))
        return path

    def start(self, bank: Path, shop: Path | None = None, *, timeout_seconds: float = LONG) -> None:
        self.bank.take_part(self.folder, bank, timeout_seconds)
        self.shop.take_part(self.folder, shop or bank, LONG)

    def beside_the_simulation(self, job: Path) -> Iterator[tuple[dict[str, Any], Any, Any, Costs]]:
        """Of each party what it told, its weights, and its outcome and ledger in a simulation."""
        self.start(job)
        data, keys = load_files(sources(self.folder)), Environment(keys=KeyMaker())
        simulated = train(parse_job(job.read_text()), data, keys)
        for party in (self.bank, self.shop):
            report, ledger = party.tells("path"), simulated.ledgers[party.name]
            assert report["hops"] == ledger.hops
            assert sum(report["path"].values()) == pytest.approx(report["clock"])
            weights = np.load(self.folder / party.name / "weights.npy")
            yield report, weights, simulated.outcomes[party.name], ledger


def sources(folder: Path) -> list[FileSource]:
    return [
        FileSource("bank", folder / "bank" / "rows.csv", "id", label_column="default"),
        FileSource("shop", folder / "shop" / "rows.csv", "id"),
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each party, with its own rows in an order of their own."""
    place = tmp_path_factory.mktemp("parties")
    rng = np.random.default_rng(7)
    values = rng.standard_normal((ROWS, 5))
    labels = values.sum(axis=1) + rng.standard_normal(ROWS) > 0
    for name, columns in (("bank", [0, 1]), ("shop", [2, 3, 4])):
        header = ["id", *(f"x{column}" for column in columns), *["default"] * (name == "bank")]
        lines = [",".join(header)]
        for row in rng.permutation(ROWS):
            cells = [f"r{row:03}", *(repr(float(values[row, column])) for column in columns)]
            lines.append(",".join([*cells, *[str(int(labels[row]))] * (name == "bank")]))
        (place / name).mkdir()
        (place / name / "rows.csv").write_text("\n".join(lines) + "\n")
    aligned = align_files(sources(place))
    for name in NAMES:
        write_aligned(place / name / "aligned.json", aligned)
    return place


@pytest.fixture(scope="module")
def living() -> Iterator[list[Pair]]:
    """The pairs of processes that were started; the last one may be asked again."""
    pairs: list[Pair] = []
    yield pairs
    for pair in pairs:
        pair.bank.end()
        pair.shop.end()


@pytest.fixture
def pair(living: list[Pair], folder: Path) -> Iterator[Pair]:
    """Two parties, ready for one more job."""
    if not living:
        lines = [socket.socketpair() for _ in range(8)]
        ends = [[line[side] for line in lines] for side in (0, 1)]
        bank, shop = (PartyProcess(name, own) for name, own in zip(NAMES, ends, strict=True))
        for line in lines:
            for end in line:
                end.close()
        for party in (bank, shop):
            party.tells("ready")
        living.append(Pair(bank, shop, folder))
    pair = living.pop()
    yield pair
    if pair.shop.process.poll() is None and pair.bank.process.poll() is None:
        living.append(pair)
    else:
        pair.bank.end()
        pair.shop.end()


@pytest.mark.parametrize(("scheme", "rounds"), [("plain", 12), ("bfv", 4)])
def test_two_processes_learn_what_the_simulation_learns(
    pair: Pair, scheme: str, rounds: int
) -> None:
    """To the bit: the same operations in the same order, and masks of products cancel exactly."""
    job = pair.job(scheme, scheme=scheme, rounds=rounds)
    for report, weights, outcome, ledger in pair.beside_the_simulation(job):
        assert np.array_equal(weights, outcome.model.weights)
        assert np.any(weights)
        assert report["rounds"] == rounds
        assert report["scores"] == [score.auc for score in outcome.scores]
        if scheme == "plain":
            assert report["bytes_sent"] == dict(ledger.bytes_sent)
        assert {"setup", "local"} <= set(report["path"])


def test_two_processes_make_offline_what_the_simulation_makes(pair: Pair) -> None:
    """Pads are fresh in every run: weights agree to their last bits' rounding only."""
    job = pair.job("blind", scheme="blind", loss="taylor-logistic", rounds=4)
    for report, weights, outcome, ledger in pair.beside_the_simulation(job):
        np.testing.assert_allclose(weights, outcome.model.weights, atol=2e-3)
        assert set(report["bytes_sent"]) == set(ledger.bytes_sent)
        assert {CORRELATED_RANDOMNESS, OFFLINE_COMMUNICATION, COMMUNICATION} <= set(report["path"])


def test_a_peer_that_dies_ends_the_job_in_one_line(pair: Pair) -> None:
    pair.start(pair.job("endless", rounds=10**6))
    pair.shop.tells("round")
    pair.shop.end()
    report = pair.bank.fails()
    # As it waits, or as it sends: whichever it did when the other went.
    waiting = "(bank waits for Predictions from shop: )?"
    assert re.fullmatch(f"PeerUnreachable: {waiting}shop closed the connection", report)


def test_a_peer_that_falls_silent_ends_the_job_at_the_deadline(pair: Pair) -> None:
    pair.start(pair.job("endless", rounds=10**6), timeout_seconds=2.0)
    pair.shop.tells("round")
    pair.shop.process.send_signal(signal.SIGSTOP)
    report = pair.bank.fails()
    assert report == "PeerTimeout: bank waited 2 s for Predictions from shop in vain"
    pair.shop.process.send_signal(signal.SIGCONT)
    assert pair.shop.fails().startswith("PeerUnreachable: ")


def test_a_peer_in_another_job_is_refused_by_both(pair: Pair) -> None:
    pair.start(pair.job("one"), pair.job("another", seed=4))
    assert pair.bank.fails().startswith("PeerViolation: shop runs another job: hash ")
    assert pair.shop.fails().startswith("PeerViolation: bank runs another job: hash ")

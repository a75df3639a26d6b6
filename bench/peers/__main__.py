"""What do other systems take for the same training, and what does each promise?

Each system runs in an environment of its own, in processes of its own, by a script that reads the
prepared rows and prints one line of JSON: `run_securevfl.py` runs this package so, the others run
the peers. Nothing of a peer is imported here. `--set install=true` makes the environments, from
PyPI, with the versions that the scripts pin.
"""

import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import PositiveFloat, PositiveInt

from bench.documents import ROOT, by_columns
from bench.experiment import DataSettings, Experiment, Run, Several, main
from bench.tables import or_dash
from securevfl.benchmarks.progress import Report
from securevfl.data.scaling import Scaling
from securevfl.data.tables import VerticalDataset
from securevfl.errors import ConfigError, DataError
from securevfl.job import Job
from securevfl.models.scores import auc
from securevfl.reports.tables import Column, Row, seconds, share, size
from securevfl.training import plan_for

HERE = Path(__file__).parent
LONGEST_S = 1800
METADATA = re.compile(r"^# /// script\n((?:#.*\n)+?)# ///$", re.MULTILINE)
KEY_BITS = 2048
Exchanges = Mapping[str, Mapping[str, Any]]
"""By the name in the table, `[exchange]` of a job."""


@dataclass(frozen=True)
class Peer:
    """Another system as it is run, and what of this package runs in turns with it.

    Attributes:
        script: the name of its file here.
        options: for the script, beside the task's.
        own: exchanges of ours.
        loss: of our jobs.
    """

    script: str
    options: Mapping[str, Any]
    own: Exchanges
    loss: str = "logistic"


PAILLIER: Exchanges = {f"paillier {KEY_BITS}": {"scheme": "paillier", "key_bits": KEY_BITS}}
BFV, BLIND, PLAIN = ({name: {"scheme": name}} for name in ("bfv", "blind", "plain"))
BOTH: Exchanges = {"bfv both": {"scheme": "bfv", "hide": "both"}}
PEERS = {
    "FATE coordinated": Peer(
        "run_fate",
        {"algorithm": "coordinated", "key_bits": KEY_BITS},
        {**PAILLIER, **BOTH},
        loss="taylor-logistic",
    ),
    "FATE SSHE": Peer(
        "run_fate", {"algorithm": "sshe", "key_bits": KEY_BITS}, BLIND, loss="taylor-logistic"
    ),
    "SecretFlow Paillier": Peer(
        "run_secretflow", {"schema": "paillier", "key_bits": KEY_BITS}, {**PAILLIER, **BFV}
    ),
    "SecretFlow OU": Peer("run_secretflow", {"schema": "ou", "key_bits": KEY_BITS}, BFV),
    "SPU Cheetah": Peer("run_spu", {"protocol": "CHEETAH", "sigmoid": "exact"}, BLIND),
    "SPU Cheetah line": Peer("run_spu", {"protocol": "CHEETAH", "sigmoid": "line"}, BLIND),
    "SPU semi2k": Peer("run_spu", {"protocol": "SEMI2K", "sigmoid": "exact"}, BLIND),
    "SPU semi2k line": Peer("run_spu", {"protocol": "SEMI2K", "sigmoid": "line"}, BLIND),
    "VertiMosaic logistic": Peer("run_vertimosaic", {}, PLAIN),
    "VertiMosaic trees": Peer("run_vertimosaic", {"trees": {"n_estimators": 100}}, PLAIN),
}
ENCRYPTED = tuple(name for name in PEERS if name.startswith(("SecretFlow", "SPU")))


class PeersSettings(DataSettings):
    """The same rows, batches, step size and rounds on all sides.

    Attributes:
        peers: which systems to run.
        rows: the first training rows that take part, all if absent.
        learning_rate: the step size of every round; `auto` runs our own job as it comes.
        python: the interpreter that makes the peers' environments.
        environments: the folder of these.
        install: make the environments that are not there.
        own_only: run this package's side alone, without any environment.
    """

    peers: Several[Literal[tuple(PEERS)]] = ENCRYPTED  # type: ignore[valid-type]
    rows: PositiveInt | None = 455
    rounds: PositiveInt = 16
    batch_size: PositiveInt | Literal["full"] = 64
    learning_rate: PositiveFloat | Literal["auto"] = 0.3
    repeats: PositiveInt = 3
    python: str = "python3.11"
    environments: Path = Path("results/peers")
    install: bool = False
    own_only: bool = False

    @property
    def job(self) -> dict[str, Any]:
        """Our `[job]`: one gradient step a round from zero, and no reason to end early."""
        common = {"seed": self.seed, "eval_every": 0, "allow_label_leak": True}
        if self.learning_rate == "auto":
            return {**common, "rounds": self.rounds}
        return {
            **common,
            "rounds": self.rounds,
            "batch_size": self.batch_size,
            "learning_rate": self.learning_rate,
            "local_steps": 1,
            "l2": 0,
            "start": "zero",
            "tolerance": 0,
        }


def prepared(settings: PeersSettings) -> dict[str, NDArray[Any]]:
    """What all sides read: standardized columns, labels, and the rows of every round.

    The digests part the rows into batches of equal size, each a run of rows.

    Returns:
        {party}_train and {party}_test, y_train, y_test, row_digests, and the row numbers of each
        round's batch, `visits`, shape (rounds, S).

    Raises:
        ConfigError: rows that do not part into equal batches.
    """
    whole = settings.load()
    rows = min(settings.rows or sys.maxsize, len(whole.train_labels))
    places = (np.arange(rows) + 0.5) / rows
    dataset: VerticalDataset = replace(
        whole,
        parties=tuple(
            replace(table, train=table.train[:rows], people=None, rows_digest=b"")
            for table in whole.parties
        ),
        train_labels=whole.train_labels[:rows],
        row_digests=(places * 2.0**64).astype(np.uint64),
    )
    plan = plan_for(Job.of(job=settings.job), dataset)
    batches = [plan.schedule.batch(number) for number in range(settings.rounds)]
    if len({len(batch) for batch in batches}) > 1:
        raise ConfigError(f"batch_size: {settings.batch_size} does not part {rows} rows equally")
    arrays = {
        "y_train": dataset.train_labels,
        "y_test": dataset.test_labels,
        "row_digests": dataset.row_digests,
        "visits": np.stack(batches),
    }
    for name, table in zip(("label", "other"), dataset.parties, strict=True):
        scaling = Scaling.fit(table.train)
        arrays |= {
            f"{name}_train": scaling.apply(table.train),
            f"{name}_test": scaling.apply(table.test),
        }
    return arrays


def peers(settings: PeersSettings, report: Report) -> Iterator[dict[str, Any]]:
    """A row for each peer and each exchange of ours beside it; runs take turns.

    Seconds begin before keys are made and end with the model; starting a system and importing it
    are not counted. `bytes` are of both parties together, null where a system does not tell.

    Raises:
        ConfigError: an environment that is not there and may not be made.
        DataError: a script that fails.
    """
    chosen = {name: PEERS[name] for name in settings.peers}
    pythons = {
        peer.script: environment(settings, HERE / f"{peer.script}.py")
        for peer in ({} if settings.own_only else chosen).values()
    }
    arrays = prepared(settings)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rows.npz")
        np.savez(path, **arrays)  # type: ignore[arg-type]
        for name, peer in chosen.items():
            theirs: list[dict[str, Any]] = []
            own: dict[str, list[dict[str, Any]]] = {each: [] for each in peer.own}
            for number in range(settings.repeats):
                report(f"{name}, {number + 1} of {settings.repeats}")
                if not settings.own_only:
                    options = {"learning_rate": settings.learning_rate, **peer.options}
                    theirs.append(answer(pythons[peer.script], peer.script, path, options))
                for each, exchange in peer.own.items():
                    job = {"job": {**settings.job, "loss": peer.loss}, "exchange": exchange}
                    own[each].append(answer(Path(sys.executable), "run_securevfl", path, job))
            for each, runs in own.items():
                yield row_of(name, each, theirs, runs, arrays)


def environment(settings: PeersSettings, script: Path) -> Path:
    """The interpreter of a peer's own environment, made from the versions that its script pins.

    Raises:
        ConfigError: it is not there and may not be made.
        DataError: pip failed.
    """
    folder = (settings.environments / script.stem).absolute()
    python = folder / "bin/python"
    if settings.install:
        if shutil.which(settings.python) is None:
            raise ConfigError(f"python: no {settings.python!r} here")
        pip = [str(python), "-m", "pip", "install", "--no-deps", *pinned(script)]
        for command in ([settings.python, "-m", "venv", str(folder)], pip):
            done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
            if done.returncode:
                raise DataError(f"{script.stem}: {last_words(done.stderr, done.returncode)}")
    elif not python.exists():
        raise ConfigError(f"no environment {folder}: --set install=true makes it")
    return python


def pinned(script: Path) -> list[str]:
    """The requirements that a script names at its head (PEP 723)."""
    found = METADATA.search(script.read_text(encoding="utf-8"))
    if found is None:
        raise DataError(f"{script} names no requirements")
    lines = (line.removeprefix("#").removeprefix(" ") for line in found[1].splitlines())
    requirements: list[str] = tomllib.loads("\n".join(lines))["dependencies"]
    return requirements


def answer(python: Path, script: str, path: Path, options: Mapping[str, Any]) -> dict[str, Any]:
    """What a script finds for the prepared rows, in a process that gets nothing else of ours.

    Raises:
        DataError: it fails, or takes longer than `LONGEST_S`.
    """
    own = script == "run_securevfl"
    with tempfile.TemporaryDirectory() as folder:
        surroundings = {"PATH": os.environ["PATH"], "HOME": folder}
        isolated = () if own else ("-I",)
        command = [python, *isolated, HERE / f"{script}.py", path, json.dumps(options)]
        with subprocess.Popen(  # noqa: S603
            command,
            env=surroundings | ({"PYTHONPATH": str(ROOT)} if own else {}),
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                shown, complaints = process.communicate(timeout=LONGEST_S)
            except subprocess.TimeoutExpired:
                raise DataError(f"{script}: more than {LONGEST_S} s") from None
            finally:
                if process.returncode is None:  # what it started, as FATE's parties, goes with it
                    os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        raise DataError(f"{script}: {last_words(complaints, process.returncode)}")
    return last_line(shown)


def last_words(complaints: str, status: int) -> str:
    """The last line of what a process complained about."""
    return (complaints.strip().splitlines() or [f"status {status}"])[-1]


def last_line(text: str) -> dict[str, Any]:
    """A script's result, below whatever its system prints."""
    found: dict[str, Any] = json.loads(text.strip().splitlines()[-1])
    return found


def row_of(
    peer: str,
    exchange: str,
    theirs: Sequence[Mapping[str, Any]],
    own: Sequence[Mapping[str, Any]],
    arrays: Mapping[str, NDArray[Any]],
) -> dict[str, Any]:
    """A row from the scripts' results: medians, and held-out AUCs of the first run."""

    def figures(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        if not runs:
            return dict.fromkeys(("wall_s", "cpu_s", "start_s", "bytes", "auc", "versions"))
        return {
            "wall_s": statistics.median(run["wall_s"] for run in runs),
            "cpu_s": statistics.median(run["cpu_s"] for run in runs),
            "start_s": statistics.median(run.get("start_s", 0.0) for run in runs),
            "bytes": runs[0]["bytes"],
            "auc": auc(np.array(runs[0]["scores"])[:, None], arrays["y_test"]),
            "versions": runs[0]["versions"],
        }

    return {
        "peer": peer,
        "exchange": exchange,
        "train_rows": len(arrays["y_train"]),
        "rounds": own[0]["rounds"],
        "batch_rows": arrays["visits"].shape[1],
        **figures(own),
        **{f"peer_{key}": value for key, value in figures(theirs).items()},
        "runs": [
            {"side": side, **{key: run[key] for key in ("wall_s", "cpu_s", "bytes")}}
            for side, runs in (("peer", theirs), ("own", own))
            for run in runs
        ],
    }


def _times(name: str) -> Callable[[Row], str]:
    def text(value: float) -> str:
        return f"{value:.0f}" if value >= 10 else f"{value:.2g}"  # noqa: PLR2004

    return lambda row: or_dash(row[f"peer_{name}"], lambda value: text(value / row[name]))


def _a_round(key: str, show: Callable[[float], str]) -> Callable[[Row], str]:
    return lambda row: or_dash(row[key], lambda value: show(value / row["rounds"]))


WHO: tuple[Column[Row], ...] = (
    ("peer", lambda row: row["peer"]),
    ("here", lambda row: row["exchange"]),
)
AUCS: tuple[Column[Row], ...] = (
    ("peer's AUC", lambda row: or_dash(row["peer_auc"], share)),
    ("own", lambda row: share(row["auc"])),
)
COLUMNS: tuple[Column[Row], ...] = (
    *WHO,
    ("peer's CPU", lambda row: or_dash(row["peer_cpu_s"], seconds)),
    ("own", lambda row: seconds(row["cpu_s"])),
    ("times", _times("cpu_s")),
    ("peer's wall", lambda row: or_dash(row["peer_wall_s"], seconds)),
    ("own", lambda row: seconds(row["wall_s"])),
    ("times", _times("wall_s")),
    ("peer sent", lambda row: or_dash(row["peer_bytes"], size)),
    ("own", lambda row: size(row["bytes"])),
    *AUCS,
)
A_ROUND: tuple[Column[Row], ...] = (
    *WHO,
    ("rounds", lambda row: str(row["rounds"])),
    ("peer's CPU a round", _a_round("peer_cpu_s", seconds)),
    ("own", _a_round("cpu_s", seconds)),
    ("times", _times("cpu_s")),
    ("peer sent a round", _a_round("peer_bytes", size)),
    ("own", _a_round("bytes", size)),
    *AUCS,
)
NOTES = (
    "CPU of all threads, and wall: medians of a whole job with its keys; own: of this package",
    "times: how many times as long the peer takes; below 1 it is faster",
)

EXPERIMENT = Experiment(
    name="peers",
    about=__doc__ or "",
    runs={
        "batches": Run(400, {"peers": ENCRYPTED}),
        "full": Run(700, {"peers": ENCRYPTED, "rounds": 10, "batch_size": "full"}),
        "fate": Run(600, {"peers": ("FATE coordinated", "FATE SSHE")}),
        "clear": Run(30, {"peers": "VertiMosaic logistic", "rounds": 500, "batch_size": "full"}),
        "credit": Run(
            60,
            {
                "peers": "VertiMosaic trees",
                "dataset": "credit",
                "rows": None,
                "rounds": 100,
                "learning_rate": "auto",
            },
        ),
    },
    quick={"peers": "VertiMosaic logistic", "rounds": 2, "repeats": 1, "own_only": True},
    settings=PeersSettings,
    measure=peers,
    columns=COLUMNS,
    tables={"a_round": by_columns(*A_ROUND)},
    notes=lambda _: NOTES,
)

if __name__ == "__main__":
    main(EXPERIMENT)

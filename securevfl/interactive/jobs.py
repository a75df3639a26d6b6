"""Jobs from Python: training and audits in this process."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from securevfl.data.tables import VerticalDataset, as_arrays
from securevfl.errors import ConfigError
from securevfl.job import Job, check_job, read_job
from securevfl.sparse import Matrix
from securevfl.training import Environment, TrainingResult
from securevfl.training import train as run_training
from securevfl.training.job_data import job_data

if TYPE_CHECKING:
    from rich.console import Console

    from securevfl.auditing.matrix import Violation

AnyJob = Job | Mapping[str, Any] | str | Path
AnyData = VerticalDataset | Mapping[str, Any]
"""A data set, or by party a data frame or a file that replaces the job's."""
WIDTH = 100
SECONDS_BETWEEN = 0.2


def train(
    job: AnyJob,
    data: AnyData | None = None,
    *,
    data_dir: Path | None = None,
    environment: Environment | None = None,
    verbose: bool = False,
) -> TrainingResult:
    """Train all parties of a job in this process, over the simulated network.

    In this simulation the label guard's ratio is reported but refuses nothing, unless the
    environment sets a `guard_directory`, as the command line does. `save_models` saves the models.

    Args:
        job: a job, its file, or its sections as mappings of keys to values.
        data: replaces the job's data set or files: a data set, or by party a pandas or polars data
            frame or the path of a file, with the columns that `[[party]]` names, joined by id.
        data_dir: searched first for a built-in data set.
        environment: see there; it may provide modules of networks.
        verbose: show rounds as they are done.

    Raises:
        ConfigError: an invalid job, or one that does not match these data.
        DataError: missing or malformed data.
        RangeExceeded: fixed-point products could overflow.

    Example:
        >>> from securevfl import train
        >>> result = train({"job": {"dataset": "breast_cancer", "rounds": 3}})
        >>> result.rounds, result.scores[-1].auc > 0.98
        (3, True)
    """
    described, dataset = _read(job, data, data_dir)
    environment = environment or Environment()
    with line_of_progress(verbose) as tell:
        own_progress = environment.progress

        def progress(done: int) -> None:
            tell(f"round {done} of at most {described.job.rounds}")
            if own_progress is not None:
                own_progress(done)

        return run_training(described, dataset, replace(environment, progress=progress))


@dataclass(frozen=True, repr=False)
class AuditResult:
    """Results of attacks on recorded runs of a job.

    Attributes:
        job: the audited job.
        rows: as in the JSON of `securevfl audit`: attack, case, metric, value, chance, verdict.
    """

    job: Job
    rows: Sequence[Mapping[str, Any]]

    @cached_property
    def verdicts(self) -> dict[str, str]:
        """By attack, the worst of its cases: leaks, undecided, not_run, no_leak_found, immune."""
        from securevfl.auditing.judging import WORST_FIRST as order  # noqa: N811

        own = [r for r in self.rows if not (r["detail"]["control"] or r["detail"]["what_if"])]
        return {
            attack: min((r["verdict"] for r in own if r["attack"] == attack), key=order.index)
            for attack in dict.fromkeys(row["attack"] for row in own)
        }

    @property
    def broken(self) -> "list[Violation]":
        """Violations of the job's policy, `[audit] must_resist`."""
        from securevfl.auditing.matrix import violations

        return violations(self.rows, self.job.audit.must_resist, [self.job.exchange.scheme])

    @override
    def __repr__(self) -> str:
        return self._printed().export_text().rstrip()

    def _repr_html_(self) -> str:
        code = '<pre style="line-height: 1.3">{code}</pre>'
        return self._printed().export_html(inline_styles=True, code_format=code)

    def _printed(self) -> "Console":
        from rich.console import Console

        from securevfl.reports.matrix import headline, legend, matrix

        console = Console(record=True, file=StringIO(), width=WIDTH, force_jupyter=False)
        console.print(matrix(self.rows, f"audit of {self.job.job.name!r}"))
        for note in (headline(self.rows), *legend(self.rows)):
            console.print(note, highlight=False, markup=False)
        return console


def audit(
    job: AnyJob,
    data: AnyData | None = None,
    *,
    attacks: Sequence[str] | None = None,
    repeats: int = 5,
    workers: int = 1,
    data_dir: Path | None = None,
    verbose: bool = False,
) -> AuditResult:
    """Attack recorded runs of a job: what leaks, to whom.

    A result is a measurement of these attacks on this job, not a proof.

    Args:
        job: a job, its file, or its sections as mappings of keys to values.
        data: see `train`; with held-out rows.
        attacks: by name; all by default.
        repeats: number of seeds, starting from the job's.
        workers: processes; a script that asks for more than one needs an
            `if __name__ == "__main__"` guard.
        data_dir: searched first for a built-in data set.
        verbose: show runs as they are done.

    Raises:
        ConfigError: an invalid job, one that does not match these data, or an unknown attack.
        DataError: missing or malformed data.
    """
    from securevfl.auditing.matrix import AuditSettings
    from securevfl.auditing.matrix import audit as run_audit
    from securevfl.auditing.measuring import known_attacks

    described, read = _read(job, data, data_dir)
    dataset = as_arrays(read)
    if not len(dataset.test_labels):
        raise ConfigError("an audit needs held-out rows, and there are none")
    scheme = described.exchange.scheme
    chosen = tuple(known_attacks() if attacks is None else attacks)
    settings = AuditSettings({scheme: described}, chosen, repeats, workers)
    with line_of_progress(verbose) as tell:
        rows = run_audit(
            dataset, settings, lambda what, done, total: tell(f"{what}: run {done} of {total}")
        )
    return AuditResult(described, rows)


def _read(
    job: AnyJob, data: AnyData | None, data_dir: Path | None
) -> tuple[Job, VerticalDataset[Matrix]]:
    beside = Path()
    if isinstance(job, str | Path):
        path = Path(job)
        job, beside = read_job(path), path.parent
    elif not isinstance(job, Job):
        job = Job.of(**job)
    if isinstance(data, VerticalDataset):
        return job, data
    check_job(job)
    with TemporaryDirectory() as folder:
        return job, job_data(_with_tables(job, data or {}, Path(folder)), beside, data_dir)


def _with_tables(job: Job, tables: Mapping[str, Any], folder: Path) -> Job:
    """The job with these tables as its parties' files, saved in `folder`."""
    names = [party.name for party in job.party]
    for name in tables:
        if name not in names:
            raise ConfigError(f"data of {name!r}, which is not a [[party]] of the job: {names}")
    files = {name: _file_of(table, folder / f"{name}.parquet") for name, table in tables.items()}
    parties = [
        party.model_copy(update={"data": files.get(party.name, party.data)}) for party in job.party
    ]
    return job.model_copy(update={"party": tuple(parties)})


def _file_of(table: Any, path: Path) -> Path:  # noqa: ANN401
    if isinstance(table, str | Path):
        return Path(table).absolute()
    import polars as pl

    if hasattr(table, "isna"):  # pandas: by values, as its own conversion needs pyarrow
        missing = table.isna()
        columns = {
            str(name): [
                None if none else value
                for value, none in zip(table[name].tolist(), missing[name], strict=True)
            ]
            for name in table.columns
        }
        table = pl.DataFrame(columns)
    if not isinstance(table, pl.DataFrame):
        raise ConfigError(f"data: a {type(table).__name__}, expected a data frame or a path")
    table.write_parquet(path)
    return path


@contextmanager
def line_of_progress(shown: bool) -> Iterator[Callable[[str], None]]:
    """A function that shows progress on stderr, if `shown`; the last line stays."""
    written, last = 0.0, ""

    def tell(text: str) -> None:
        nonlocal written, last
        last = text
        if shown and time.monotonic() - written >= SECONDS_BETWEEN:
            written = time.monotonic()
            sys.stderr.write(f"\r{text}")
            sys.stderr.flush()

    yield tell
    if shown and last:
        sys.stderr.write(f"\r{last}\n")

"""`securevfl train`: all parties of a job, in this process or elsewhere (--processes, --ray)."""

import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from securevfl.cli import options
from securevfl.errors import ConfigError, RangeExceeded, TrainingDiverged
from securevfl.files import replace_file
from securevfl.job import Job, JobSettings, read_job
from securevfl.protocols import catalogue
from securevfl.reports import tables
from securevfl.reports.results import as_json, keep, manifest, now
from securevfl.reports.rows import TrainRow
from securevfl.reports.tables import privacy_notes, spent_text, wrapped

if TYPE_CHECKING:
    from securevfl.data.tables import VerticalDataset
    from securevfl.parties.task import Host
    from securevfl.protocols.plan import Plan
    from securevfl.protocols.session.checkpoints import SessionState
    from securevfl.protocols.session.pad_store import PadPlaces
    from securevfl.runtime.line import LinkCosts
    from securevfl.sparse import Matrix
    from securevfl.training import TrainingResult

EXAMPLE = f"""\
# securevfl train example.toml
[job]
name = "example"
dataset = "breast_cancer"      # embedded; or [[party]] sections with your own files
algorithm = "fedbcd-p"         # of {", ".join(catalogue.ALGORITHMS)}
rounds = 100                   # at most: training stops once the loss has settled; 20 for blind
model = "linear"               # or mlp, with hidden = [64]
# target_auc = 0.99            # stops at this held-out AUC; a guard counts the scorings
# batch_size = 128             # "full" by default; small batches reveal labels
# local_steps = 5              # "exact" by default; a number needs a learning_rate
# bounds = {{ "mean area" = [0, 3000] }}  # public: clips and scales, for an end-to-end budget
seed = 0

[exchange]
scheme = "bfv"                 # of {", ".join(catalogue.EXCHANGES)}
hide = "residuals"             # or "both", which also hides predictions

[network]
preset = "wan"                 # or latency_ms and bandwidth_mbit

# [privacy]                    # with scheme = "dp"
# noise_multiplier = 2.0       # or give a privacy budget instead: release_budget or budget
# clip = 2.0

[audit]
must_resist = ["labels_from_residuals"]  # otherwise `securevfl audit` exits with status 1

[output]
directory = "models"
checkpoint_every = 10

# [preprocess]                 # text becomes 0/1 columns, a missing value the median
# categories = ["zip"]         # numbers that stand for categories
# missing = ["-999"]           # in addition to empty cells, NA, NaN, null, ? and the like
# rare_count = 10              # values in fewer rows are pooled
# bins = 8                     # or {{ income = 16, age = [30, 45, 60] }}: curves in place of lines

# [[party]]
# name = "bank"
# role = "label"
# data = "bank.csv"            # CSV, Parquet, or a shard by `securevfl data convert`
# separator = ";"              # like decimal and encoding: only if detection fails
# id_column = "id"
# label_column = "default"
#
# [[party]]
# name = "shop"
# role = "feature"
# data = "shop.parquet"
# id_column = "id"
"""


@dataclass(frozen=True)
class Elsewhere:
    """What the command line says of parties that live outside of this process.

    The parties' files are relative to `beside`; None of `restarts` and of `silence` says nothing.
    """

    beside: Path
    data_dir: Path | None
    listen: str | None
    restarts: int | None
    processes: bool
    ray: str | None
    silence: float | None

    @property
    def wanted(self) -> bool:
        """Whether there are any."""
        return self.processes or self.ray is not None

    def require_fit(self, *, offline: bool, forecast: bool, trained: bool) -> None:
        """Refuse options that have no meaning with one another; some need a job to be `trained`."""
        if forecast and (self.wanted or offline or trained):
            raise ConfigError(
                "--forecast is a dry run of the job in this process: drop --processes, --ray, "
                "--offline, --resume and --html"
            )
        if self.ray is not None and self.processes:
            raise ConfigError(
                "--processes runs the parties on this machine, --ray on a cluster: give only one"
            )
        if self.restarts is not None and not self.wanted:
            raise ConfigError("--restarts needs --processes or --ray")
        if self.silence is not None and not self.wanted:
            raise ConfigError("--silence needs --processes or --ray")
        if self.listen is not None and not self.processes:
            raise ConfigError("--listen needs --processes")
        if offline and self.wanted:
            raise ConfigError(
                "--offline makes pads in this process: drop --processes or --ray, which the next "
                "run may use"
            )

    def models(self, result: "TrainingResult") -> list[Path]:
        """Where they have written their models."""
        from securevfl.training import model_files

        folder, outcomes = result.job.output.directory, result.outcomes.items()
        return [path for name, each in outcomes for path in model_files(name, each, folder)]

    def train(
        self,
        job: Job,
        dataset: "VerticalDataset[Matrix]",
        session: "Mapping[str, SessionState]",
        pads: "PadPlaces",
        *,
        progress: Callable[[int], None],
        quiet: bool,
    ) -> "TrainingResult":
        """Train a job there, see `train_locally`."""
        from securevfl.parties.local import RESTARTS, Places, Supervision, train_locally
        from securevfl.threads import cores

        with self._host() as host:
            return train_locally(
                job,
                dataset,
                host,
                Places(
                    output=job.output.directory,
                    beside=self.beside,
                    guard_directory=options.guard_directory(),
                    data_dir=self.data_dir,
                    pads=pads,
                    listen=self.listen,
                ),
                resume=session,
                supervision=Supervision(
                    restarts=RESTARTS if self.restarts is None else self.restarts,
                    progress=progress,
                    say=lambda line: None if quiet else options.say(f"securevfl: {line}"),
                    threads=max(cores() // len(dataset.parties), 1),
                ),
            )

    @contextmanager
    def _host(self) -> "Iterator[Host]":
        from securevfl.workers import SILENCE_SECONDS

        silence = self.silence or SILENCE_SECONDS
        if self.ray is None:
            from securevfl.parties.processes import ProcessHost

            yield ProcessHost(silence_seconds=silence)
            return
        from securevfl.parties.ray_host import RayHost
        from securevfl.ray_cluster import cluster

        with cluster(self.ray):
            yield RayHost(self.ray, silence)


def train(
    job: Annotated[Path | None, typer.Argument(help="Job file (TOML).")] = None,
    *,
    example: Annotated[
        bool, typer.Option("--example", help="Print an example job file that runs as it is.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from this job's last checkpoint.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace models and checkpoints in the output folder.")
    ] = False,
    offline: Annotated[
        bool,
        typer.Option("--offline", help="Only make a blind job's pads; the next run uses them."),
    ] = False,
    forecast: Annotated[
        bool,
        typer.Option("--forecast", help="Only find out what it will cost, from a short dry run."),
    ] = False,
    processes: Annotated[
        bool, typer.Option("--processes", help="Run each party as a separate process.")
    ] = False,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Connect the processes by TLS from this port on, one port each (0: free ports).",
        ),
    ] = None,
    restarts: Annotated[
        int | None,
        typer.Option(min=0, help="How often to start parties again that die; 3 by default."),
    ] = None,
    silence: Annotated[
        float | None,
        typer.Option(
            min=1,
            metavar="SECONDS",
            help="Treat a process as dead after this long without a sign of life; 60 by default.",
        ),
    ] = None,
    ray: options.Ray = None,
    data_dir: options.DataDir = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Overrides the job's seed.")] = None,
    json: options.Json = None,
    html: options.Html = None,
    quiet: options.Quiet = False,
) -> None:
    """Train all parties of a job: over a simulated network, or one process per party.

    Exit status: 3 if the model has learned nothing, 4 if a party alone does better, 5 if training
    went wrong and an earlier state is kept.
    """
    if example:
        sys.stdout.write(EXAMPLE)
        return
    if job is None:
        raise ConfigError("no job file: securevfl train JOB.toml, or --example to see one")
    described = read_job(job)
    catalogue.check_names(described)
    elsewhere = Elsewhere(job.parent, data_dir, listen, restarts, processes, ray, silence)
    trained = resume or html is not None
    elsewhere.require_fit(offline=offline, forecast=forecast, trained=trained)
    if seed is not None:
        described = described.with_settings(seed=seed)
    dataset = options.job_dataset(described, job, data_dir)
    _tell(dataset, described, quiet=quiet)
    if forecast:
        _forecast(described, dataset, json, quiet=quiet)
        return

    from securevfl.cli import outputs
    from securevfl.training import Environment, make_offline, plan_for, save_models
    from securevfl.training.job_data import data_hashes

    folder, plan = described.output.directory, plan_for(described, dataset)
    if offline:
        outputs.require_only_offline(plan, resume=resume, results=[json, html])
    session = outputs.session_to_go_on(plan, folder, resume=resume, force=force)
    outputs.require_room_for(plan, dataset, folder, [json, html])
    places = outputs.pad_places(folder)
    on_pads = outputs.settle_pads(plan, places, offline=offline, resume=resume, force=force)
    _tell_first(plan, dataset, session, on_pads, quiet=quiet)
    if offline:
        records = options.guard_directory()
        made = make_offline(described, dataset, Environment(guard_directory=records, pads=places))
        outputs.show_made(made, quiet=quiet)
        return
    started, data = now(), data_hashes(described, job.parent)
    with _interruptible(plan, folder):
        shown = not quiet or json is not None or html is not None
        links = _links() if shown and not elsewhere.wanted else None
        result = _run(
            described, dataset, plan, session, places, links=links, elsewhere=elsewhere, quiet=quiet
        )
        paths = elsewhere.models(result) if elsewhere.wanted else save_models(result, folder)
        outputs.forget_session(folder, plan.facts.names)
        outputs.forget_states(plan, places)
    run = manifest(started, plan.hash.hex(), data, paths)
    replace_file(folder / "manifest.json", as_json(run), "manifest")
    from securevfl.reports.trained import train_page, training_row

    row = training_row(result, dataset)
    keep(
        json,
        html,
        train_page,
        command="train",
        seed=described.job.seed,
        settings=result.job.model_dump(mode="json"),
        rows=[row],
    )
    if not quiet:
        failure = sum(each.failure for each in result.outcomes.values())
        _show(row, paths, failure)
    _tell_rows_left_out(result, dataset, quiet=quiet)
    options.end_with(result.warnings)


def _forecast(
    job: Job, dataset: "VerticalDataset[Matrix]", json: Path | None, *, quiet: bool
) -> None:
    """Say what a job will cost."""
    from rich.console import Console

    from securevfl.reports.training import forecast_notes, forecast_table
    from securevfl.training import Environment, resolved
    from securevfl.training.dry_run import dry_run

    plan, taken = resolved(job, dataset, ())
    links, began = _links() if json or not quiet else None, time.perf_counter()
    expected = dry_run(plan, taken, Environment(links=links))
    took = time.perf_counter() - began
    row = {**asdict(expected), "total_s": expected.total_s, "bytes_sent": expected.bytes_sent}
    settings = job.model_dump(mode="json")
    keep(json, command="train --forecast", seed=job.job.seed, settings=settings, rows=[row])
    if not quiet:
        Console().print(forecast_table(plan, expected))
        _write(sys.stdout, *forecast_notes(plan, expected, took))


def _links() -> "LinkCosts | None":
    """What links cost on this machine; None, and a warning, where there are none."""
    from securevfl.parties.link_costs import measured_link_costs

    if (links := measured_link_costs()) is None:
        sys.stderr.write(
            "securevfl: warning: this machine does not connect to itself over loopback: network "
            "times count lines alone\n"
        )
    return links


def _tell(dataset: "VerticalDataset[Matrix]", job: Job, *, quiet: bool) -> None:
    """What was noticed in the parties' files, and how much bounds clip, on standard error only."""
    from securevfl.data.scaling import clipped

    for note in (*dataset.notes, *clipped(job.job.bounds, dataset)):
        if note.warning:
            sys.stderr.write(f"securevfl: warning: {note.line}\n")
        elif not quiet:
            _write(sys.stderr, *wrapped(note.line))


def _tell_first(
    plan: "Plan",
    dataset: "VerticalDataset[Matrix]",
    session: Mapping[str, "SessionState"],
    on_pads: str | None,
    *,
    quiet: bool,
) -> None:
    if quiet:
        return
    from rich.console import Console

    from securevfl.reports.training import before, brought, parties_table, to_resume

    Console(stderr=True, highlight=False).print(parties_table(brought(plan, dataset)))
    lines = [*before(plan, dataset), *to_resume(plan)]
    if session:
        lines.append(f"resumes after {_rounds_of(session)} rounds, with new keys and masks")
    if on_pads is not None:
        lines.append(on_pads)
    _write(sys.stderr, *(line for text in lines for line in wrapped(text)))


def _rounds_of(session: Mapping[str, "SessionState"]) -> int:
    return next((state.rounds for state in session.values()), 0)


def _run(
    job: Job,
    dataset: "VerticalDataset[Matrix]",
    plan: "Plan",
    session: Mapping[str, "SessionState"],
    places: "PadPlaces",
    *,
    links: "LinkCosts | None",
    elsewhere: Elsewhere,
    quiet: bool,
) -> "TrainingResult":
    """Train, and say after a round or two how long it will take."""
    from securevfl.reports.training import Forecast, SetupWatch, WithinRounds
    from securevfl.training import Environment
    from securevfl.training import train as run_training

    account, before = plan.account, _rounds_of(session)
    may_end = plan.stops_early or plan.job.job.target_auc is not None
    watch = SetupWatch(lambda phase: within.worked(phase, time.perf_counter()))
    forecast = Forecast(plan.rounds - before, may_end, watch, time.perf_counter())

    def spending(rounds: int) -> str:
        return "rounds" if account is None else f"rounds, {spent_text(account.after(rounds).row())}"

    with options.progress(quiet) as report:

        def show(what: str, done: float) -> None:
            report(spending(within.done) + what + watch.left, done, plan.rounds)

        within = WithinRounds(show, before, time.perf_counter())

        def on_round(done: int) -> None:
            told = None
            within.ended(done, time.perf_counter())
            if not elsewhere.wanted:  # what set-up takes there is not seen here
                told = forecast.after(done - before, time.perf_counter())
            if told and not quiet:
                _write(sys.stderr, *wrapped(told))
            show("", done)

        if elsewhere.wanted:
            return elsewhere.train(job, dataset, session, places, progress=on_round, quiet=quiet)
        return run_training(
            job,
            dataset,
            Environment(
                guard_directory=options.guard_directory(),
                checkpoints=job.output.directory,
                stopwatch=watch,
                links=links,
                progress=on_round,
                resume=session,
                pads=places,
            ),
        )


@contextmanager
def _interruptible(plan: "Plan", folder: Path) -> Iterator[None]:
    """Say of a run that is interrupted how it goes on; forget one that would fail again."""
    from securevfl.cli.outputs import forget_session, unfinished

    try:
        yield
    except KeyboardInterrupt:
        rounds = unfinished(plan, folder)
        if rounds is None:
            why = plan.never_resumes or "no checkpoint had been written"
            sys.stderr.write(f"securevfl: cannot be resumed: {why}\n")
        else:
            words = [word for word in sys.argv[1:] if word not in ("--force", "--resume")]
            line = shlex.join(["securevfl", *words, "--resume"])
            sys.stderr.write(f"securevfl: stopped after {rounds} rounds; continue with: {line}\n")
        raise
    except (TrainingDiverged, RangeExceeded):
        if unfinished(plan, folder) is not None:
            forget_session(folder, plan.facts.names)
        raise


def _tell_rows_left_out(
    result: "TrainingResult", dataset: "VerticalDataset[Matrix]", *, quiet: bool
) -> None:
    """On stdout, and where that says nothing on stderr: no run is silent about it."""
    common = len(dataset.train_labels) + len(dataset.test_labels)
    left = [
        f"{party} {count} of {common + count}" for party, count in result.dropped.items() if count
    ]
    told = f"rows left out because not every party has them: {', '.join(left)}"
    if left and quiet:
        _write(sys.stderr, f"securevfl: {told}")
    elif left:
        _write(sys.stdout, *wrapped(told))


def _show(row: TrainRow, paths: list[Path], failure: float) -> None:
    from rich.console import Console

    from securevfl.reports.trained import compared, comparison_notes

    console = Console()
    unnamed = row["dataset"] == JobSettings.model_fields["name"].default
    title = ("" if unnamed else f"{row['dataset']}, ") + f"job {row['job_hash'][:16]}"
    tables.print_tables(console, tables.scored_by(row), [row], title)
    columns_of_models, models = compared(row)
    if len(models) > 1:
        console.print(tables.table(columns_of_models, models))
    notes = [line for note in comparison_notes(row) for line in wrapped(note)]
    if row["rounds_before"]:
        notes.append(f"times and bytes cover the rounds after {row['rounds_before']}")
    notes += [*tables.tradeoff_notes([row]), *tables.link_notes(row)]
    if failure:
        notes.append(f"a truncation fails, and the result with it, with probability {failure:.1g}")
    _write(sys.stdout, *notes)
    for note in privacy_notes(row):
        console.print(note, highlight=False)
    _write(sys.stdout, "models: " + ", ".join(map(str, paths)))


def _write(stream: TextIO, *lines: str) -> None:
    stream.write("".join(f"{line}\n" for line in lines))

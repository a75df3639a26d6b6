"""`securevfl train`: all parties of a job in this process, over the simulated network."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from securevfl.cli import options
from securevfl.errors import ConfigError
from securevfl.job import Job, read_job
from securevfl.protocols import names
from securevfl.reports import tables
from securevfl.reports.privacy import privacy_notes, spent_text
from securevfl.reports.rows import DERIVED, TrainRow, cost_figures

if TYPE_CHECKING:
    from securevfl.data.tables import VerticalDataset
    from securevfl.training import TrainingResult

USELESS = 3
# Where peers' own parts of the model rank training rows by some 0.02 AUC better than others
# (docs/decisions/0016-label-guard-by-person.md).
BY_HEART = 1 / 25
ENDINGS = {
    "rounds": "all rounds are done",
    "target": "ended at the target",
    "settled": "ended as the training loss had settled",
    "no way down": "ended as the training loss rose whichever way it was tried: the best is kept",
}

EXAMPLE = f"""\
# securevfl train example.toml
[job]
name = "example"
dataset = "breast_cancer"      # embedded; or [[party]] sections with your own files
algorithm = "fedbcd-p"         # of {", ".join(names.ALGORITHMS)}
rounds = 100                   # at most: training ends once the loss has settled
model = "linear"               # or mlp, with hidden = [64]
# target_auc = 0.99            # ends it sooner, by scorings that a guard counts
# batch_size = 128             # "full" if absent; smaller ones tell labels
# local_steps = 5              # "exact" where not given; with learning_rate = 0.3, say
seed = 0

[exchange]
scheme = "bfv"                 # of {", ".join(names.EXCHANGES)}
hide = "residuals"             # or both; round_trips = 1 or 2 where auto should not choose

[network]
preset = "wan"                 # or latency_ms and bandwidth_mbit

# [privacy]                    # with scheme = "dp"
# noise_multiplier = 2.0       # or release_budget, or budget, to calibrate it
# clip = 2.0

[audit]
must_resist = ["labels_from_residuals"]  # securevfl audit example.toml ends with status 1 else

[output]
directory = "models"
checkpoint_every = 10

# [preprocess]                 # text becomes 0/1 columns, missing values the median
# categories = ["zip"]         # numbers that are names
# missing = ["-999"]           # beside empty, NA, NaN, null, ? and the like
# rare_count = 10              # what fewer rows have, or less than rare_share, is pooled

# [[party]]
# name = "bank"
# role = "label"
# data = "bank.csv"            # CSV or Parquet
# separator = ";"              # as decimal and encoding, only where it cannot be found out
# id_column = "id"
# label_column = "default"
#
# [[party]]
# name = "shop"
# role = "feature"
# data = "shop.parquet"
# id_column = "id"
"""


def train(
    job: Annotated[Path | None, typer.Argument(help="Job file (TOML).")] = None,
    *,
    example: Annotated[
        bool, typer.Option("--example", help="Print a job file that runs as it is.")
    ] = False,
    data_dir: options.DataDir = None,
    seed: Annotated[int | None, typer.Option(min=0, help="In place of the job's seed.")] = None,
    json: options.Json = None,
    quiet: options.Quiet = False,
) -> None:
    """Train all parties of a job here, over the simulated network.

    Exit status 3 if the model has learned nothing.
    """
    if example:
        sys.stdout.write(EXAMPLE)
        return
    if job is None:
        raise ConfigError("no job file: securevfl train JOB.toml, or --example to see one")
    described = read_job(job)
    names.check_names(described)
    if seed is not None:
        described = described.with_settings(seed=seed)
    dataset = job_data(described, job.parent, data_dir)
    _tell(dataset, quiet=quiet)
    import platformdirs

    from securevfl.reports.results import write_results
    from securevfl.training import Environment, plan_for, save_models
    from securevfl.training import train as run_training

    directory = described.output.directory
    account = plan_for(described, dataset).account

    def spending(rounds: int) -> str:
        return "rounds" if account is None else f"rounds, {spent_text(account.after(rounds).row())}"

    with options.progress(quiet) as report:
        result = run_training(
            described,
            dataset,
            Environment(
                guard_directory=platformdirs.user_state_path("securevfl") / "label-guard",
                checkpoints=directory,
                progress=lambda done: report(spending(done), done, described.job.rounds),
            ),
        )
        paths = save_models(result, directory)
    row = training_row(result, dataset)
    if json is not None:
        write_results(
            json,
            command="train",
            seed=described.job.seed,
            settings=described.model_dump(mode="json"),
            rows=[row],
        )
    if not quiet:
        _show(row, paths, columns_a_label(result, dataset))
    if not result.learned:
        sys.stderr.write(
            "securevfl: warning: the model has learned nothing that can be told from chance; "
            f"it is written all the same (status {USELESS})\n"
        )
        raise typer.Exit(USELESS)


def _tell(dataset: "VerticalDataset", *, quiet: bool) -> None:
    """What was noticed in the parties' files, on standard error."""
    for note in dataset.notes:
        if note.warning:
            sys.stderr.write(f"securevfl: warning: {note.line}\n")
        elif not quiet:
            sys.stderr.write(f"{note.line}\n")


def job_data(job: Job, beside: Path, data_dir: Path | None) -> "VerticalDataset":
    """The data of a job: a set by name, or the parties' files, relative to the job file.

    Raises:
        ConfigError: a party without a data file.
        DataError: missing or malformed data.
    """
    from securevfl.data.csv_format import GivenFormat
    from securevfl.data.joining import load_files
    from securevfl.data.own_files import FileSource
    from securevfl.data.sources import load

    if job.job.dataset is not None:
        return load(job.job.dataset, parties=job.job.parties, data_dir=data_dir)
    sources = []
    for party in job.party:
        if party.data is None:
            raise ConfigError(f"party {party.name!r}: data is missing, expected a file")
        if (party.label_column is not None) != (party.role == "label"):
            raise ConfigError(
                f"party {party.name!r} with role {party.role!r}: the label party, and only it, "
                "has a label_column"
            )
        sources.append(
            FileSource(
                name=party.name,
                path=beside / party.data,
                id_column=party.id_column,
                label_column=party.label_column,
                features=party.features,
                test_path=beside / party.test_data if party.test_data else None,
                drop=party.drop,
                csv=GivenFormat(party.separator, party.decimal, party.thousands, party.encoding),
                preprocess=party.preprocess or job.preprocess,
            )
        )
    return load_files(sources)


def columns_a_label(result: "TrainingResult", dataset: "VerticalDataset") -> float:
    """P/(N·v) of all feature parties where they learn gradients, else 0."""
    from securevfl.protocols.session.person_record import label_variance

    if not result.plan.learns.gradients:
        return 0.0
    feature_parties = (each for each in dataset.parties if each.name != dataset.label_party)
    columns = sum(len(each.columns) for each in feature_parties)
    return columns / (result.plan.facts.rows * label_variance(dataset.train_labels))


def training_row(result: "TrainingResult", dataset: "VerticalDataset") -> TrainRow:
    """What a finished job reports."""
    job, exchange = result.job.job, result.job.exchange
    score = result.scores[-1] if result.scores else None
    target = job.target_auc
    rate = None if job.learning_rate == "auto" else job.learning_rate
    return {
        "dataset": dataset.name,
        "exchange": exchange.scheme,
        "hide": exchange.hide if result.key_fingerprints else None,
        "algorithm": job.algorithm,
        "local_steps": result.plan.local_steps,
        "he_per_step": exchange.he_per_step,
        "parties": len(dataset.parties),
        "batch_size": result.plan.batch_size,
        "rounds": result.rounds,
        "learned": result.learned,
        "ended": result.ended,
        "reached_target": target is None or (score is not None and score.auc >= target),
        "auc": score.auc if score else None,
        "auc_exact": result.clear_auc if result.privacy and score else None,
        "accuracy": score.accuracy if score else None,
        "binormal": score is not None and score.binormal,
        **cost_figures(result.costs()),
        "label_guard_ratio": result.label_guard_ratio,
        "learning_rate": rate,
        "learning_rate_chosen": "given" if rate else DERIVED,
        "key_bits": result.key_bits,
        "key_fingerprints": result.key_fingerprints,
        "job_hash": result.job.hash().hex(),
        "privacy": result.privacy.row() if result.privacy else None,
        "dropped_rows": dict(result.dropped),
        "wall_s": result.wall_s,
    }


def _show(row: TrainRow, paths: list[Path], columns: float) -> None:
    from rich.console import Console

    Console().print(
        tables.table(tables.TRADEOFF, [row], f"{row['dataset']}, job {row['job_hash'][:16]}")
    )
    sys.stdout.write(f"{ENDINGS[row['ended']]}\n")
    for note in tables.tradeoff_notes([row]):
        sys.stdout.write(f"{note}\n")
    for note in privacy_notes(row):
        Console().print(note, highlight=False)
    for party, count in row["dropped_rows"].items():
        sys.stdout.write(f"{party}: {count} rows without a partner were left out\n")
    if columns > BY_HEART:
        sys.stdout.write(
            f"peers' columns are {columns:.2f} of what labels vary, above {BY_HEART:g}:\n"
            "their parts of any model know labels of training rows partly by heart\n"
        )
    sys.stdout.write("models: " + ", ".join(str(path) for path in paths) + "\n")

"""`securevfl predict`: all parties of a job score new rows with the model that they trained."""

import sys
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from securevfl.cli import options
from securevfl.cli.scores_file import STANDARD_OUTPUT, check_out, write_scores
from securevfl.errors import ConfigError
from securevfl.job import read_job
from securevfl.protocols import catalogue

if TYPE_CHECKING:
    from securevfl.models.storage import ModelHeader
    from securevfl.reports.predictions import PredictRow
    from securevfl.scoring.outputs import Columns


def predict(
    job: Annotated[Path, typer.Argument(help="Job file (TOML).")],
    *,
    out: Annotated[Path, typer.Option(help="Scores: .csv, .parquet, or - to print them.")],
    rows: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FILE", help="A party's new rows; overrides new_data in the job file."
        ),
    ] = None,
    models: Annotated[
        Path | None,
        typer.Option(help="Folder of the parties' models; [output] directory by default."),
    ] = None,
    l1: Annotated[
        float | None, typer.Option(help="Which point of an L1 path to use; the last by default.")
    ] = None,
    cost_false_positive: Annotated[
        float | None,
        typer.Option(help="For each row flagged wrongly: shows the cheapest cut-off."),
    ] = None,
    cost_false_negative: Annotated[
        float | None, typer.Option(help="For each row missed, in the same unit; give both.")
    ] = None,
    flag: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="Show the cut-off that flags at most this share."),
    ] = None,
    cut_off: Annotated[
        float | None,
        typer.Option(help="Adds a column `flagged`: 1 from this probability on, else 0."),
    ] = None,
    explain: Annotated[
        Path | None,
        typer.Option(help="Each column's contribution to each score: a .csv or .parquet file."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite an existing --out or --explain file.")
    ] = False,
    data_dir: options.DataDir = None,
    json: options.Json = None,
    quiet: options.Quiet = False,
) -> None:
    """Score new rows with a trained model: a probability and a class for each row.

    The rows come from --rows, or else from new_data, test_data or data in the job file; for a
    named data set they are its test rows.
    """
    described = read_job(job)
    catalogue.check_names(described)
    given = _given(rows or [])
    check_out(out, json, explain=explain, force=force)
    costs = [each for each in (cost_false_positive, cost_false_negative) if each is not None]
    _check_choice(costs, flag)
    from securevfl.data.sources import load
    from securevfl.reports.predictions import predict_row, warnings
    from securevfl.reports.results import keep
    from securevfl.scoring.explanation import explained, importances
    from securevfl.scoring.joint_model import load_parts
    from securevfl.scoring.outputs import cutoffs, known_labels, metrics, score_columns
    from securevfl.scoring.running import score, scoring_plan, trained_in
    from securevfl.scoring.sources import rows_to_score

    directory = models or described.output.directory
    dataset = None
    if described.job.dataset is not None:
        dataset = load(described.job.dataset, parties=described.job.parties, data_dir=data_dir)
    holders = described.party if dataset is None else dataset.parties
    parts = load_parts(directory, [party.name for party in holders], l1=l1)
    plan = scoring_plan(described, parts)
    header = parts[plan.label_party].header
    if models is None and trained_in(plan, parts[plan.label_party]) is False:
        raise ConfigError(
            f"{directory} holds a model of another job than {job} describes, such as another "
            f"seed, or of an earlier version ({header.job_hash[:16]}): train this job, in an "
            f"[output] directory of its own, or give --models {directory} to score with that model"
        )
    found = rows_to_score(described, parts, job.parent, given=given, dataset=dataset)
    # Before scores are sent and counted.
    known_labels(header, found.labels)
    why = None if explain is None else explained(plan, parts, found)
    new, asked = found.new_labels, bool(costs) or flag is not None
    _check_cutoffs(header, new, chosen=asked, given=cut_off)
    scored = score(
        plan,
        parts,
        found.features,
        found.ids,
        raw=found.raw,
        sources=found.sources,
        guard_directory=options.guard_directory(),
    )
    ids = [found.written[row] for row in found.order]
    columns = score_columns(header, found.id_column, ids, scored.predictions[found.order], cut_off)
    quality = metrics(header, scored.predictions, new if any(new) else found.labels)
    write_scores(out, columns)
    row = predict_row(scored, found, parts, quality, out)
    if explain is not None and why is not None:
        write_scores(explain, why[0])
        row |= {"explained": str(explain), "importance": importances(why[1])}
    if asked:
        row["cutoffs"] = cutoffs(header, scored.predictions, new, costs=costs, share=flag)
    settings = described.model_dump(mode="json")
    keep(json, command="predict", seed=described.job.seed, settings=settings, rows=[row])
    if not quiet:
        _show(row, header.class_names or (), columns)
    shown = () if out.suffix.lower() == ".parquet" else ids
    for warning in warnings(found.dropped, found.unknown, shown):
        sys.stderr.write(f"securevfl: {warning}\n")


def _check_choice(costs: Sequence[float], flag: float | None) -> None:
    if len(costs) == 1 or not all(0 < each < inf for each in costs):
        raise ConfigError("--cost-false-positive, --cost-false-negative: give both, each above 0")
    if flag is not None and not 0 < flag <= 1:
        raise ConfigError(f"--flag {flag:g}: expected a share above 0, at most 1, as in 0.1")


def _check_cutoffs(
    header: "ModelHeader", labels: Sequence[str | None], *, chosen: bool, given: float | None
) -> None:
    from securevfl.models.losses import has_probabilities
    from securevfl.scoring.outputs import known_labels

    if (chosen or given is not None) and header.classes != 2:  # noqa: PLR2004
        raise ConfigError(f"a cut-off is between two classes, and the model has {header.classes}")
    low, high = (0.0, 1.0) if has_probabilities(header.loss) else (-inf, inf)
    if given is not None and not low <= given <= high:
        raise ConfigError(f"--cut-off {given:g}: expected {low:g} to {high:g}")
    if chosen and len(set(known_labels(header, labels))) < header.classes:
        raise ConfigError(
            "a cut-off is chosen by rows that the model was not trained on, with labels of both "
            "classes: give such rows with --rows, new_data or test_data, or a --cut-off"
        )


def _given(rows: Sequence[str]) -> dict[str, Path]:
    given = {}
    for each in rows:
        name, sign, path = each.partition("=")
        if not (name and sign and path) or name in given:
            raise ConfigError(f"--rows {each!r}: expected NAME=FILE, once for each party")
        given[name] = Path(path)
    return given


def _show(row: "PredictRow", class_names: Sequence[str], columns: "Columns") -> None:
    from rich.console import Console

    from securevfl.reports import tables
    from securevfl.reports.predictions import IMPORTANCE, columns_of, predict_notes

    # Whoever takes scores from standard output wants nothing else there.
    apart = row["out"] == str(STANDARD_OUTPUT)
    console = Console(stderr=apart)
    title = f"{row['rows']:,} rows, model of job {row['job_hash'][:16]}"
    tables.print_tables(console, columns_of(row), [row], title, names=1)
    for note in predict_notes(row, class_names):
        console.print(note, highlight=False, markup=False)
    if (flagged := columns.get("flagged")) is not None:
        rows = f"{list(flagged).count(1):,} of {len(flagged):,} rows"
        console.print(f"flagged: {rows}", highlight=False)
    if row["explained"] is not None:
        console.print(tables.table(IMPORTANCE, row["importance"][:20]))
        told = f"contributions, as sensitive as the columns: {row['explained']}"
        console.print(told, highlight=False, markup=False)
    if not apart:
        console.print(f"scores: {row['out']}", highlight=False, markup=False)

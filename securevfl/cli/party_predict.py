"""What `securevfl party predict` does around a scoring: it reads rows, tells, and writes scores."""

import sys
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from securevfl.cli import options
from securevfl.cli.party_run import Run, Telling, seat_of
from securevfl.cli.scores_file import STANDARD_OUTPUT, check_out, write_scores
from securevfl.errors import ConfigError
from securevfl.parties.agreement import Agreement, folder_of
from securevfl.parties.alignment import Limits
from securevfl.parties.identity import Identity
from securevfl.parties.own_file import OwnFile
from securevfl.parties.quota import count_scores
from securevfl.parties.scoring import ScoredRows, ScoringSeat, own_part, score
from securevfl.protocols.catalogue import algorithm_of, exchange_of
from securevfl.protocols.predicting import ScoringPlan
from securevfl.reports.predictions import IMPORTANCE, warnings
from securevfl.reports.tables import scores_in_words, table
from securevfl.scoring.explanation import explained, importances
from securevfl.scoring.outputs import known_labels, metrics, rounded, score_columns
from securevfl.scoring.sources import own_rows

if TYPE_CHECKING:
    from securevfl.models.storage import ModelHeader

STATUS, PURPOSE = "scoring.json", b"scoring"


def score_rows(
    own: OwnFile,
    agreement: Agreement,
    identity: Identity,
    patience: float,
    *,
    rows: Path | None,
    out: Path | None,
    explain: Path | None,
    force: bool,
    quiet: bool,
) -> None:
    """Take part in a scoring, to its end; the caller holds this party's place in the job."""
    _check_out(own, agreement, out)
    check_out(out, explain=explain, force=force)

    def say(line: str) -> None:
        if not quiet:
            options.say(f"{own.name}: {line}")

    with options.progress(quiet) as bar:
        path = folder_of(own.state, agreement) / STATUS
        telling = Telling(agreement, own.name, path, say, bar)
        seat = _seat(own, agreement, seat_of(own, telling, patience, "scorings"), rows)
        header = seat.model.header
        if out is not None:
            known_labels(header, seat.rows.labels)  # before scores are sent and counted
        if explain is not None:
            explained(seat.plan, {own.name: seat.model}, seat.rows)
        save = partial(_save, own, seat, out, explain)
        run = Run(own, agreement, identity, telling, patience, PURPOSE)
        scored = run.until_the_end(lambda links: score(seat, links, save))
    if out == STANDARD_OUTPUT:  # once, whatever was interrupted
        _write(own, header, out, scored)
    typer.echo(f"{own.name}: {_ending(scored, header, out)}", err=out == STANDARD_OUTPUT)
    if explain is not None and not quiet:
        options.say(f"{own.name}: contributions of its own columns: {explain}")
        _, sizes = explained(seat.plan, {own.name: seat.model}, scored.rows)
        Console(stderr=True).print(table(IMPORTANCE, importances(sizes)[:20]))
    dropped = {own.name: len(seat.rows.ids) - len(scored.rows.ids)}
    shown = scored.rows.written if out is not None and out.suffix.lower() != ".parquet" else ()
    for warning in warnings(dropped, scored.rows.unknown, shown):
        sys.stderr.write(f"securevfl: {warning}\n")


def _check_out(own: OwnFile, agreement: Agreement, out: Path | None) -> None:
    label = agreement.label_party
    if own.name != label and out is not None:
        raise ConfigError(f"--out: only {label}, which holds the labels, gets scores")
    if own.name == label and out is None:
        raise ConfigError("--out is missing: a .csv or .parquet file for the scores, or -")


def _seat(
    own: OwnFile, agreement: Agreement, seat: dict[str, Any], rows: Path | None
) -> ScoringSeat:
    """What this party brings; its model and its rows are read here."""
    job, policy = own.own_job(agreement.job), own.policy
    path = rows or own.data.new_data
    if path is None:
        raise ConfigError("no rows to score: give --rows, or new_data in [data] of your own file")
    plan = ScoringPlan(
        job, algorithm_of(job), exchange_of(job), agreement.names, agreement.label_party
    )
    _ = plan.shown  # some models score no new rows
    model = own_part(own.output, plan, own.name)
    party = next(each for each in job.party if each.name == own.name)
    return ScoringSeat(
        **seat,
        # The label party learns nothing of the ids that it lacks; its own list may be short.
        limits=Limits(inf if own.name == agreement.label_party else policy.most_ids_ratio),
        plan=plan,
        model=model,
        rows=own_rows(party, model, path),
        count=partial(count_scores, own.state, policy.scores_per_day),
    )


def _write(own: OwnFile, header: "ModelHeader", out: Path | None, scored: ScoredRows) -> None:
    """Write the scores, in the order of the label party's file."""
    if out is None or scored.predictions is None:
        return
    rows, predictions = scored.rows, scored.predictions[scored.rows.order]
    ids = [rows.written[row] for row in rows.order]
    columns = score_columns(header, rows.id_column, ids, predictions)
    write_scores(out, rounded(columns, own.policy.score_digits))


def _save(
    own: OwnFile, seat: ScoringSeat, out: Path | None, explain: Path | None, scored: ScoredRows
) -> None:
    if out != STANDARD_OUTPUT:
        _write(own, seat.model.header, out, scored)
    if explain is not None:
        write_scores(explain, explained(seat.plan, {own.name: seat.model}, scored.rows)[0])


def _ending(scored: ScoredRows, header: "ModelHeader", out: Path | None) -> str:
    """How a scoring has ended, in a line."""
    rows = scored.rows
    if scored.predictions is None:
        return f"{len(rows.ids)} of your rows were scored"
    said = [f"{len(rows.ids)} rows scored: {out}"]
    quality = metrics(header, scored.predictions, rows.labels)
    found = scores_in_words(vars(quality))
    return "; ".join([*said, *(f"{each} of {quality.rows} with a label" for each in found)])

"""`securevfl audit`: the attack × exchange matrix, and the exit status of a policy."""

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from securevfl.cli import options
from securevfl.cli.reporting import finished, leave_if_cut
from securevfl.errors import ConfigError
from securevfl.job import Job
from securevfl.protocols import catalogue
from securevfl.reports.results import marks

if TYPE_CHECKING:
    from securevfl.data.tables import VerticalDataset

VIOLATED = 1
SEEDS = 5


def audit(
    job: Annotated[
        Path | None, typer.Argument(help="Job file: its settings, data and policy.")
    ] = None,
    *,
    dataset: Annotated[
        str | None, typer.Option(help="Data set by name; breast_cancer where no job is given.")
    ] = None,
    exchange: Annotated[
        str | None,
        typer.Option(help=f"By commas: {', '.join(catalogue.EXCHANGES)}; the job's, or all."),
    ] = None,
    attack: Annotated[str | None, typer.Option(help="Attacks, by commas; all by default.")] = None,
    hide: Annotated[
        Literal["residuals", "both"], typer.Option(help="What homomorphic exchanges hide.")
    ] = "residuals",
    batch_size: Annotated[
        str | None, typer.Option(help="Rows per batch; `full` by default.")
    ] = None,
    local_steps: Annotated[
        str | None,
        typer.Option(help="Q, or `exact`; `exact` by default, 5 if there is a learning rate."),
    ] = None,
    learning_rate: Annotated[
        str | None, typer.Option(help="Step size, or `auto`; `auto` by default.")
    ] = None,
    noise: Annotated[
        float, typer.Option(min=0, help="Noise multiplier under dp, unless the job file has one.")
    ] = 1.0,
    clip: Annotated[float, typer.Option(help="Predictions are clipped to this under dp.")] = 2.0,
    parties: options.Parties = None,
    label_party: options.LabelParty = None,
    repeats: Annotated[
        int | None, typer.Option(min=1, help="Number of seeds, for the intervals; 5 by default.")
    ] = None,
    quick: options.Quick = False,
    must_resist: Annotated[
        str | None,
        typer.Option(
            help="Attacks that the exchange must resist, by commas; otherwise exit status 1."
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Number of processes; one per core by default.")
    ] = None,
    ray: options.Ray = None,
    data_dir: options.DataDir = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="First seed; by default the job's, or 0.")
    ] = None,
    json: options.Json = None,
    html: options.Html = None,
    quiet: options.Quiet = False,
) -> None:
    """Attack recorded training runs: which exchange leaks what, and to whom.

    A job file gives the settings to audit, and [audit] must_resist is its policy. Exit status 1 if
    an attack of the policy leaks, is undecided or was not run. Neither --quick nor an interrupted
    audit (status 130) satisfies a policy.
    """
    chosen = _known(exchange, tuple(catalogue.EXCHANGES), "--exchange")
    asked, repeats = _asked(attack), _seeds(repeats, must_resist, quick)
    only_without_job = {
        "--dataset": dataset,
        "--batch-size": batch_size,
        "--local-steps": local_steps,
        "--learning-rate": learning_rate,
        "--parties": parties,
        "--label-party": label_party,
    }
    given = options.read(job, only_without_job)
    policy = _policy(must_resist, given, () if quick else asked)
    if job is not None and given is not None:
        described, data = given, options.job_dataset(given, job, data_dir)
    else:
        data = options.dataset(dataset or "breast_cancer", parties, data_dir)
        data = replace(data, label_party=label_party or data.label_party)
        described = _by_options(data.name, batch_size, local_steps, learning_rate, hide)
    if seed is not None:
        described = described.with_settings(seed=seed)
    from securevfl.auditing.matrix import AuditSettings, violations
    from securevfl.auditing.matrix import audit as run_audit
    from securevfl.auditing.measuring import known_attacks
    from securevfl.data.tables import as_arrays
    from securevfl.reports.page import audit_page
    from securevfl.reports.results import keep
    from securevfl.reports.tables import wrapped

    every = data
    data = as_arrays(options.fewer_rows(data, described.job.batch_size) if quick else data)
    known = known_attacks()
    slow = [name for name, each in known.items() if quick and not (asked or each.quick)]
    left_out = _left_out(every, data, slow) if quick else ""
    settings = AuditSettings(
        jobs=_jobs(
            described, chosen, hide, {"noise_multiplier": noise, "clip": clip}, job is not None
        ),
        attacks=asked or tuple(name for name in known if name not in slow),
        repeats=repeats,
        workers=workers or os.cpu_count() or 1,
        curves=not quick,
        ray=ray,
    )
    todo = (
        f"attacks: {len(settings.attacks)}, seeds: {repeats}, exchanges: {', '.join(settings.jobs)}"
    )
    with options.progress(quiet, f"audit of {data.name}: {todo}") as report:
        rows, missing = finished(lambda: run_audit(data, settings, report))
    # A job's policy is about its own exchange, whichever others are audited.
    own = [described.exchange.scheme] if job is not None else []
    unfit = "; ".join(marks(missing, quick=quick))
    broken = violations(rows, policy, [*settings.jobs, *own], unfit)
    keep(
        json,
        html,
        audit_page,
        command="audit",
        seed=described.job.seed,
        settings={
            "dataset": data.name,
            "parties": len(data.parties),
            "repeats": repeats,
            "quick": quick,
            "left_out": left_out,
            "must_resist": list(policy),
            "job": described.model_dump(mode="json"),
        },
        rows=rows,
        missing=missing,
    )
    if not quiet:
        notes = (*marks(missing, quick=quick), *wrapped(left_out))
        sys.stdout.writelines(f"{note}\n" for note in notes)
        _show(rows, described, data)
    for each in broken:
        sys.stderr.write(f"securevfl: must_resist: {each.says}\n")
    leave_if_cut(missing)
    if broken:
        raise typer.Exit(VIOLATED)


def _asked(text: str | None) -> tuple[str, ...]:
    """The attacks that were given, none if nothing is said: then none is loaded yet."""
    if not options.names(text or ""):
        return ()
    from securevfl.auditing.measuring import known_attacks

    return _known(text, tuple(known_attacks()), "--attack")


def _seeds(repeats: int | None, must_resist: str | None, quick: bool) -> int:
    if quick and (must_resist is not None or repeats is not None):
        raise ConfigError("--quick is one seed and no policy: drop --must-resist and --repeats")
    return 1 if quick else repeats or SEEDS


def _left_out(data: Any, kept: Any, attacks: Sequence[str]) -> str:  # noqa: ANN401
    """What `--quick` leaves out of an audit of the job."""
    rows = f"{len(kept.train_labels):,} of {len(data.train_labels):,} training rows"
    without = ", ".join((*attacks, "curves and advice"))
    return f"--quick is not this very job: {rows}, 1 seed instead of {SEEDS}; without {without}"


def _by_options(
    name: str, batch_size: str | None, local_steps: str | None, learning_rate: str | None, hide: str
) -> Job:
    """The job that is audited where there is no file."""
    given, count = options.number_or, options.count
    steps = {}
    if local_steps is not None:
        steps["local_steps"] = given("exact", "--local-steps", local_steps, count)
    return Job.of(
        job={
            "dataset": name,
            "batch_size": given("full", "--batch-size", batch_size or "full", count),
            "loss": "taylor-logistic" if hide == "both" else "logistic",
            "learning_rate": given("auto", "--learning-rate", learning_rate or "auto", float),
            **steps,
        }
    )


def _known(text: str | None, known: Sequence[str], option: str) -> tuple[str, ...]:
    """The names that were given, none if nothing is said."""
    given = options.names(text or "")
    for name in given:
        catalogue.require(name, known, option)
    return given


def _policy(must_resist: str | None, job: Job | None, run: Sequence[str]) -> tuple[str, ...]:
    """What must resist: as it was typed, or else as the job file has it."""
    policy = options.names(must_resist or "")
    if not policy and job is not None:
        policy = job.audit.must_resist
    if policy:
        from securevfl.auditing.measuring import known_attacks

        run = run or tuple(known_attacks())
    for name in policy:
        if name not in run:
            raise ConfigError(f"must_resist: {name!r} is not run; run are {', '.join(run)}")
    return policy


def _jobs(
    job: Job, chosen: tuple[str, ...], hide: str, noise: dict[str, float], from_file: bool
) -> dict[str, Job]:
    """The job under each exchange; a file's own exchange as it stands."""
    if not chosen and from_file:
        return {job.exchange.scheme: job}
    jobs = {}
    for name in chosen or catalogue.EXCHANGES:
        if name == job.exchange.scheme and from_file:
            jobs[name] = job
            continue
        hidden = {"hide": hide} if catalogue.EXCHANGES[name].encrypts else {}
        sections = {
            "exchange": {"scheme": name, **hidden},
            "privacy": noise if catalogue.EXCHANGES[name].adds_noise else {},
        }
        jobs[name] = Job.of(**{**dict(job), **sections})
    return jobs


def _show(rows: list[dict[str, Any]], job: Job, data: "VerticalDataset") -> None:
    from rich.console import Console

    from securevfl.reports import matrix as shown
    from securevfl.reports.findings import findings
    from securevfl.training import plan_for

    console = Console()
    plan = plan_for(job.without_protection, data)
    title = (
        f"{data.name}, {len(data.parties)} parties, S = {plan.batch_size}, Q = {plan.local_steps}"
    )
    console.print(shown.headline(rows), style="bold", highlight=False)
    for exchange, said in findings(rows):
        console.print(f"\n{exchange}", style="bold", highlight=False)
        for sentences in said:
            console.print(f"- {' '.join(sentences)}", highlight=False, markup=False)
    console.print()
    console.print(shown.matrix(rows, title))
    for note in (*shown.legend(rows), *shown.epsilon_lines(rows)):
        console.print(note, highlight=False)
    for table in shown.advice_tables(rows):
        console.print()
        console.print(table)
    for note in shown.advice_lines(rows):
        console.print(note, highlight=False)

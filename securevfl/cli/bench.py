"""`securevfl bench`: what encryption costs, measured."""

import sys
from dataclasses import asdict, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from securevfl.benchmarks.crypto import CryptoSettings
from securevfl.benchmarks.crypto import crypto as run_crypto
from securevfl.benchmarks.rounds import RoundsSettings
from securevfl.benchmarks.rounds import rounds as run_rounds
from securevfl.benchmarks.staleness import StalenessSettings
from securevfl.benchmarks.staleness import staleness as run_staleness
from securevfl.benchmarks.tradeoff import TradeoffSettings
from securevfl.benchmarks.tradeoff import tradeoff as run_tradeoff
from securevfl.cli import options
from securevfl.errors import ConfigError
from securevfl.reports import tables
from securevfl.reports.results import write_results

bench = typer.Typer(help="Benchmarks: what encryption costs.", no_args_is_help=True)

Row = dict[str, Any]
ROUND_TRIPS: dict[str, Literal["auto", 1, 2]] = {"auto": "auto", "1": 1, "2": 2}
LearningRate = Annotated[
    float | None,
    typer.Option(help="Step size for all runs; tuned on a validation fifth if absent."),
]
MaxRounds = Annotated[int, typer.Option(min=1, help="Give up after so many rounds.")]
EvalEvery = Annotated[int, typer.Option(min=0, help="Rounds between scorings; 0: last only.")]
Repeats = Annotated[int, typer.Option(min=1, help="Runs with seeds of their own; medians.")]


@bench.command()
def tradeoff(
    *,
    dataset: options.Dataset = "breast_cancer",
    exchange: Annotated[
        str, typer.Option(help="Exchanges, by commas.")
    ] = "plain,paillier,ckks,bfv",
    algorithm: Annotated[
        Literal["fedsgd", "fedbcd-p", "fedbcd-s"], typer.Option(help="Which algorithm.")
    ] = "fedbcd-p",
    local_steps: Annotated[str, typer.Option(help="Values of Q, by commas.")] = "1,5,10",
    batch_size: options.BatchSize = "64",
    target_auc: Annotated[str, typer.Option(help="Held-out AUCs to reach, by commas.")] = "0.99",
    max_rounds: MaxRounds = 200,
    phe_rounds: Annotated[
        int | None, typer.Option(min=1, help="Give up on phe after so many rounds.")
    ] = None,
    eval_every: EvalEvery = 1,
    learning_rate: LearningRate = None,
    tuning: Annotated[
        Literal["shared", "per-q"],
        typer.Option(help="Tune one step size at the largest Q for all, or one for each Q."),
    ] = "shared",
    loss: Annotated[
        Literal["logistic", "squared", "taylor-logistic"],
        typer.Option(help="Loss; hiding both sides takes squared or taylor-logistic."),
    ] = "logistic",
    repeats: Repeats = 1,
    parties: options.Parties = None,
    network: options.NetworkName = "lan",
    hide: Annotated[
        Literal["residuals", "both"], typer.Option(help="What homomorphic exchanges hide.")
    ] = "residuals",
    key_bits: Annotated[int | None, typer.Option(help="Paillier modulus: 3072 or 2048.")] = None,
    engine: Annotated[
        str | None, typer.Option(help="Implementation, of the schemes that have it: phe, fast.")
    ] = None,
    round_trips: Annotated[
        Literal["auto", "1", "2"], typer.Option(help="A round, where the scheme can do with one.")
    ] = "auto",
    value_fraction_bits: Annotated[
        int | None, typer.Option(help="Fixed point of residuals; the scheme's if absent.")
    ] = None,
    feature_fraction_bits: Annotated[
        int | None, typer.Option(help="Fixed point of features; the scheme's if absent.")
    ] = None,
    data_dir: options.DataDir = None,
    seed: options.Seed = 0,
    json: options.Json = None,
    quiet: options.Quiet = False,
) -> None:
    """Encrypted training to a target AUC: computation and communication apart."""
    settings = TradeoffSettings(
        exchanges=options.names(exchange),
        algorithm=algorithm,
        local_steps=options.numbers(local_steps, "--local-steps", int),
        batch_size=options.batch_size(batch_size),
        target_aucs=options.numbers(target_auc, "--target-auc", float),
        max_rounds=max_rounds,
        phe_rounds=phe_rounds,
        eval_every=eval_every,
        learning_rate=learning_rate,
        tuning=tuning,
        loss=loss,
        repeats=repeats,
        seed=seed,
        network=options.network(network),
        hide=hide,
        key_bits=key_bits,
        engine=engine,
        round_trips=ROUND_TRIPS[round_trips],
        value_fraction_bits=value_fraction_bits,
        feature_fraction_bits=feature_fraction_bits,
    )
    loaded = options.dataset(dataset, parties, data_dir)
    rows: list[Row] = []
    with options.progress(quiet) as report:
        rows.extend(run_tradeoff(settings, loaded, report))
    _keep(json, "bench tradeoff", settings, rows, dataset=dataset, parties=len(loaded.parties))
    if not quiet:
        for target in settings.target_aucs:
            chosen = [row for row in rows if row["target_auc"] == target]
            title = (
                f"{dataset}, {len(loaded.parties)} parties, S = {batch_size}, {network}, "
                f"to AUC {target:g}"
            )
            _show(tables.table(tables.TRADEOFF, chosen, title))
        for note in tables.tradeoff_notes(rows):
            _line(note)


@bench.command()
def rounds(
    *,
    dataset: options.Dataset = "breast_cancer",
    algorithm: Annotated[
        str, typer.Option(help="fedsgd, fedbcd-p, fedbcd-s, by commas.")
    ] = "fedsgd,fedbcd-p,fedbcd-s",
    local_steps: Annotated[str, typer.Option(help="Values of Q, by commas.")] = "1,5,10",
    parties: Annotated[str, typer.Option(help="Values of K, by commas.")] = "2",
    proximal: Annotated[str, typer.Option(help="Values of μ, by commas.")] = "0",
    batch_size: options.BatchSize = "64",
    target_auc: Annotated[float, typer.Option(help="Held-out AUC to reach.")] = 0.99,
    max_rounds: MaxRounds = 1000,
    eval_every: EvalEvery = 1,
    learning_rate: LearningRate = None,
    schedule: Annotated[
        Literal["constant", "inverse-sqrt"], typer.Option(help="Step sizes over rounds.")
    ] = "constant",
    divide_by_sqrt_parties: Annotated[
        bool, typer.Option("--divide-by-sqrt-parties", help="Step size over the root of K.")
    ] = False,
    local_rule: Annotated[
        Literal["curvature", "frozen"], typer.Option(help="What local steps take for residuals.")
    ] = "curvature",
    l2: Annotated[float, typer.Option(min=0, help="L2 regularization.")] = 0.0,
    start: Annotated[
        Literal["random", "zero"], typer.Option(help="Where training starts; papers: zero.")
    ] = "zero",
    repeats: Repeats = 3,
    data_dir: options.DataDir = None,
    seed: options.Seed = 0,
    json: options.Json = None,
    quiet: options.Quiet = False,
) -> None:
    """Rounds to a target AUC, by algorithm, local steps, parties and proximal term."""
    algorithms = options.names(algorithm)
    for name in algorithms:
        if name not in {"fedsgd", "fedbcd-p", "fedbcd-s"}:
            raise ConfigError(f"--algorithm {name!r}: expected fedsgd, fedbcd-p or fedbcd-s")
    settings = RoundsSettings(
        algorithms=algorithms,
        local_steps=options.numbers(local_steps, "--local-steps", int),
        proximal=options.numbers(proximal, "--proximal", float),
        batch_size=options.batch_size(batch_size),
        target_auc=target_auc,
        max_rounds=max_rounds,
        learning_rate=learning_rate,
        schedule=schedule,
        divide_by_sqrt_parties=divide_by_sqrt_parties,
        local_rule=local_rule,
        l2=l2,
        start=start,
        eval_every=eval_every,
        repeats=repeats,
        seed=seed,
    )
    counts = options.numbers(parties, "--parties", int)
    loaded = {count: options.dataset(dataset, count, data_dir) for count in counts}
    with options.progress(quiet) as report:
        rows = list(run_rounds(settings, loaded, report))
    _keep(json, "bench rounds", settings, rows, dataset=dataset, parties=list(counts))
    if not quiet:
        title = f"{dataset}, S = {batch_size}, plain, rounds to AUC {target_auc:g}"
        _show(tables.table(tables.ROUNDS, rows, title))
        if not all(row["reached_target"] for row in rows):
            _line("* target not reached")


@bench.command()
def crypto(
    *,
    samples: Annotated[str, typer.Option(help="Batch sizes S, by commas.")] = "64,256,4096",
    features: Annotated[str, typer.Option(help="Columns P, one for each S.")] = "15,64,128",
    key_bits: Annotated[str, typer.Option(help="Paillier moduli, by commas.")] = "2048,3072",
    rounds: Annotated[
        int, typer.Option(min=1, help="Rounds of the job that noise flooding has to cover.")
    ] = 1000,
    network: options.NetworkName = "20:1000",
    workers: Annotated[
        int, typer.Option(min=1, help="Measure paillier fast in so many processes as well.")
    ] = 1,
    repeats: Repeats = 5,
    seed: options.Seed = 0,
    json: options.Json = None,
    quiet: options.Quiet = False,
) -> None:
    """Engines on the encrypted product of a matrix and a vector, beside phe and NumPy."""
    rows_of = options.numbers(samples, "--samples", int)
    columns_of = options.numbers(features, "--features", int)
    if len(rows_of) != len(columns_of):
        raise ConfigError(
            f"--samples has {len(rows_of)} values, --features {len(columns_of)}: expected one each"
        )
    if min(rows_of + columns_of) < 1:
        raise ConfigError("--samples and --features: expected numbers from 1 on")
    settings = CryptoSettings(
        shapes=tuple(zip(rows_of, columns_of, strict=True)),
        paillier_bits=options.numbers(key_bits, "--key-bits", int),
        rounds=rounds,
        network=options.network(network),
        workers=workers,
        repeats=repeats,
        seed=seed,
    )
    with options.progress(quiet) as report:
        rows = list(run_crypto(settings, report))
    _keep(json, "bench crypto", settings, rows)
    if not quiet:
        _show(tables.table(tables.CRYPTO, rows, "masked product: encrypt, multiply, decrypt"))
        if any(row["extrapolated"] for row in rows):
            _line("~ timed on a part of the work and scaled up; the JSON says which")


@bench.command()
def staleness(
    *,
    dataset: options.Dataset = "a9a",
    label_party: options.LabelParty = None,
    staleness: Annotated[
        str, typer.Option(help="Values of tau, by commas: iterations, or `unbounded`.")
    ] = "0,4,64,1024,unbounded",
    straggler: Annotated[
        str | None,
        typer.Option(help="Slow parties by name, `turns`, `none`, by commas; all if absent."),
    ] = None,
    factor: Annotated[float, typer.Option(help="How many times slower.")] = 4.0,
    compute_ms: Annotated[
        float, typer.Option(min=0, help="What an iteration takes; 0: what it measures.")
    ] = 2.0,
    batch_size: Annotated[int, typer.Option(min=1, help="Rows a batch.")] = 100,
    rounds: Annotated[int, typer.Option(min=1, help="Iterations of each party.")] = 3000,
    learning_rate: Annotated[
        float, typer.Option(help="Step size; falls with the root of t.")
    ] = 3.0,
    target_auc: Annotated[float, typer.Option(help="Held-out AUC to reach.")] = 0.9,
    network: options.NetworkName = "lan",
    repeats: Repeats = 1,
    data_dir: options.DataDir = None,
    seed: options.Seed = 0,
    json: options.Json = None,
    quiet: options.Quiet = False,
) -> None:
    """FDML's parties at their own speed: virtual time to a target AUC, and regret."""
    settings = StalenessSettings(
        staleness=options.staleness(staleness),
        stragglers=options.names(straggler or ""),
        factor=factor,
        compute_ms=compute_ms,
        batch_size=batch_size,
        rounds=rounds,
        learning_rate=learning_rate,
        target_auc=target_auc,
        network=options.network(network),
        repeats=repeats,
        seed=seed,
    )
    data = options.dataset(dataset, None, data_dir)
    data = replace(data, label_party=label_party or data.label_party)
    with options.progress(quiet) as report:
        rows = list(run_staleness(settings, data, report))
    _keep(json, "bench staleness", settings, rows, dataset=dataset)
    if not quiet:
        title = f"{dataset}, fdml, S = {batch_size}, virtual time to AUC {target_auc:g}"
        _show(tables.table(tables.STALENESS, rows, title))
        if not all(row["reached_target"] for row in rows):
            _line("* target not reached")


def _keep(
    path: Path | None, command: str, settings: object, rows: list[Row], **more: object
) -> None:
    if path is None:
        return
    assert is_dataclass(settings)  # noqa: S101
    assert not isinstance(settings, type)  # noqa: S101
    kept = {
        field.name: _plain(getattr(settings, field.name))
        for field in fields(settings)
        if field.name != "environment"
    }
    write_results(
        path, command=command, seed=int(kept.pop("seed")), settings={**more, **kept}, rows=rows
    )


def _plain(value: Any) -> Any:  # noqa: ANN401
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def _show(table: object) -> None:
    Console().print(table)


def _line(text: str) -> None:
    sys.stdout.write(f"{text}\n")

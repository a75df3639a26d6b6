"""How a person at a party sees what an agreement says, and accepts it or not."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress

import typer

from securevfl.cli.party_run import ALIGNMENT_REVEALS
from securevfl.errors import ConfigError
from securevfl.parties.agreement import Agreement
from securevfl.parties.own_file import OwnFile
from securevfl.parties.policy import refusals
from securevfl.protocols.catalogue import algorithm_of, exchange_of
from securevfl.reports.tables import wrapped


def _lines(agreement: Agreement, name: str) -> Iterator[str]:
    """What an agreement says, for a person who is to sign it."""
    job, label = agreement.job, agreement.label_party
    algorithm, exchange = algorithm_of(job), exchange_of(job)
    yield (
        f"job {job.job.name!r}: {algorithm.name} under {exchange.name}, at most "
        f"{job.job.rounds} rounds"
    )
    for each in agreement.names:
        role = "holds the labels" if each == label else "holds features"
        where = agreement.addresses.get(each)
        at = f"listens at {where}" if where else "connects outward"
        yield f"{each}{' (you)' if each == name else ''} {role}, {at}"
    if agreement.relay:
        yield f"parties that cannot reach each other meet at {agreement.relay}"
    if places := sorted({str(each) for each in agreement.outward(name).values()}):
        yield f"your machine connects to {', '.join(places)}"
    learns = exchange.learns(job)
    roles = [(role, learned) for role, learned, _ in algorithm.roles] or [
        ("label party", learns.label_party),
        ("feature party", learns.feature_party),
    ]
    for role, learned in roles:
        yield f"{role} learns: {learned}"
    yield ALIGNMENT_REVEALS
    if exchange.adds_noise:
        said = job.privacy.model_dump(exclude_defaults=True)
        yield "noise: " + (", ".join(f"{key} = {each}" for key, each in said.items()) or "default")
    else:
        yield "no noise is added"


def show(agreement: Agreement, name: str) -> None:
    """Print what an agreement says."""
    for line in _lines(agreement, name):
        for each in wrapped(line):
            typer.echo(each)


def require_accepted(own: OwnFile, agreement: Agreement) -> None:
    """Refuse what this party's policy refuses; all of it in one line."""
    if refused := refusals(own.policy, agreement, own.name):
        raise ConfigError(f"your policy refuses this job: {'; '.join(refused)}")


def agree_here(
    own: OwnFile, *, yes: bool, first: Callable[[Agreement], object] = lambda agreement: None
) -> Callable[[Agreement, Mapping[str, str]], Awaitable[bool]]:
    """Shows an agreement and asks; what the policy refuses is not asked."""

    async def agree(agreement: Agreement, words: Mapping[str, str]) -> bool:
        show(agreement, own.name)
        for peer, each in words.items():
            typer.echo(f"read aloud with {peer}: {each}")
        require_accepted(own, agreement)
        first(agreement)
        return yes or await _asked("Are the words the same, and do you sign it?")

    return agree


async def _asked(question: str) -> bool:
    """A yes or no; connections live while a person reads."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[bool] = loop.create_future()

    def answered(said: bool) -> None:
        if not answer.done():
            answer.set_result(said)

    def ask() -> None:
        try:
            said = typer.confirm(question)
        except typer.Abort:
            said = False
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(answered, said)

    threading.Thread(target=ask, daemon=True).start()
    return await answer

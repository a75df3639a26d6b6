"""`securevfl party`: one organization's part in jobs with others, on its own machine."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer
from pydantic import TypeAdapter, ValidationError

from securevfl.cli import options
from securevfl.errors import ConfigError, DataError
from securevfl.files import replace_file, require_room

if TYPE_CHECKING:
    from securevfl.job import Job
    from securevfl.parties.agreement import Agreement
    from securevfl.parties.identity import Identity
    from securevfl.parties.own_file import OwnFile

party = typer.Typer(help="One organization's part in jobs with others.", no_args_is_help=True)

JobPath = Annotated[Path, typer.Argument(help="The agreement.", metavar="JOB.toml")]
OwnPath = Annotated[Path, typer.Option("--party", help="This party's own file.")]
PassphraseFd = Annotated[
    int | None,
    typer.Option(min=0, metavar="N", help="Read the key's passphrase from file descriptor N."),
]
Yes = Annotated[bool, typer.Option("--yes", help="Accept what the agreement says, unasked.")]
Address = Annotated[
    str | None,
    typer.Option(metavar="ws://HOST:PORT", help="Where the others reach this party."),
]
Patience = Annotated[
    float | None,
    typer.Option(metavar="HOURS", help="How long to wait without progress; 24 by default."),
]
OWN = Path("party.toml")
ANY_HOST = ("0.0.0.0", "::")  # noqa: S104
MOST_PASSPHRASE = 1024
TEMPLATE = """\
# What {name} keeps to itself: nobody else sees this file. Paths are relative to it.
name = "{name}"
key = "{name}.key"
state = "state"                # what a job needs to go on after a restart
output = "models"              # this party's model and result
# listen = "0.0.0.0:7000"      # only if others connect to this party
# proxy = "http://proxy:3128"  # through which it connects to others

[data]
# data = "customers.csv"       # CSV, Parquet, or a shard by `securevfl data convert`
# id_column = "id"
# label_column = "default"     # at the party with the labels

# [preprocess]                 # text becomes 0/1 columns, a missing value the median

# What this party accepts; what it does not ends before any data are read.
[policy]
# peers = {{ shop = "…" }}       # identities; empty accepts every peer that the agreement names
# exchanges = ["bfv", "blind"]
# fewest_rows = 100            # people in common
# most_rounds = 1000
"""


@party.command("init")
def init(
    name: Annotated[str, typer.Argument(help="This party's name in agreements.")],
    *,
    folder: Annotated[Path, typer.Option(help="For the key and party.toml.")] = Path(),
    passphrase_fd: PassphraseFd = None,
) -> None:
    """Make an identity and a party's own file."""
    from securevfl.job import PartyName
    from securevfl.parties.identity import Identity

    try:
        TypeAdapter(PartyName).validate_python(name)
    except ValidationError as error:
        raise ConfigError(f"{name!r}: a name has letters, digits, _, - and . only") from error
    own, key = folder / OWN, folder / f"{name}.key"
    for path in (key, own):
        if path.exists():
            raise ConfigError(f"{path} exists: this party has an identity already")
    require_room({key: len(TEMPLATE), own: len(TEMPLATE)}, "folder")
    folder.mkdir(parents=True, exist_ok=True)
    identity = Identity.generate()
    identity.save(key, _passphrase(passphrase_fd))
    replace_file(own, TEMPLATE.format(name=name).encode(), "party file")
    _show_identity(name, identity)
    typer.echo(f"key: {key}; say in {own} where your data are, then draft a job and type")
    typer.echo("`securevfl party invite JOB.toml`, or `securevfl party join CODE`")


@party.command("sign")
def sign(
    job: JobPath,
    *,
    own_path: OwnPath = OWN,
    yes: Yes = False,
    passphrase_fd: PassphraseFd = None,
) -> None:
    """Show what an agreement says, and sign it."""
    from securevfl.cli.party_consent import require_accepted, show
    from securevfl.parties.agreement import keep_signature, read_agreement, sign_agreement
    from securevfl.parties.identity import words_of

    own, agreement = _own(own_path), read_agreement(job)
    identity = _identity(own, passphrase_fd)
    agreement.require_own(own.name, identity)
    show(agreement, own.name)
    require_accepted(own, agreement)
    if not yes:
        typer.confirm("Sign it?", abort=True)
    keep_signature(own.state, agreement, own.name, sign_agreement(agreement, identity))
    typer.echo(f"signed; all who sign it see the words: {words_of(agreement.hash)}")


@party.command("invite")
def invite(
    job: JobPath,
    *,
    own_path: OwnPath = OWN,
    relay: Annotated[
        str | None, typer.Option(metavar="URL", help="Where to meet, instead of the job's relay.")
    ] = None,
    address: Address = None,
    yes: Yes = False,
    passphrase_fd: PassphraseFd = None,
) -> None:
    """Invite the parties that a draft lacks, and sign it with them."""
    import asyncio

    from securevfl.cli.party_consent import agree_here
    from securevfl.job import job_text, parse_job
    from securevfl.parties import invitation
    from securevfl.parties.agreement import keep_signature
    from securevfl.parties.talk import Code

    own = _own(own_path)
    identity = _identity(own, passphrase_fd)
    if not job.exists():
        raise ConfigError(f"no draft {job}: write one first, with the parties' names and roles")
    text = job_text(job)
    draft = parse_job(text, str(job))
    invited = _invited(draft, own, identity)
    relay, address = relay or draft.links.relay, address or _address(own)
    agreed = next((each.address for each in draft.party if each.name == own.name), None)
    place = relay or agreed or address
    if place is None or (relay is None and own.listen is None):
        raise ConfigError(
            "nowhere to meet: give --relay, [links] relay in the draft, or listen in your own file "
            "with an --address for others"
        )
    codes = {name: Code.new(place) for name in invited}

    def tell() -> None:
        for name, code in codes.items():
            typer.echo(f"tell {name}, within ten minutes: {code}")

    agreement, signatures = asyncio.run(
        invitation.invite(
            text,
            (own.name, address),
            identity,
            codes,
            agree_here(own, yes=yes),
            listen=None if relay else own.listen,
            proxy=own.proxy,
            say=options.say,
            opened=tell,
        )
    )
    replace_file(job, agreement.text, "agreement")
    for name, signature in signatures.items():
        keep_signature(own.state, agreement, name, signature)
    typer.echo(f"signed by {', '.join(signatures)}: securevfl party run {job}")


@party.command("join")
def join(
    code: Annotated[str, typer.Argument(help="As the inviter told it.")],
    *,
    own_path: OwnPath = OWN,
    address: Address = None,
    yes: Yes = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the job file.")] = False,
    passphrase_fd: PassphraseFd = None,
) -> None:
    """Join an invitation: see its agreement, sign it and keep it."""
    import asyncio

    from securevfl.cli.party_consent import agree_here
    from securevfl.parties import invitation
    from securevfl.parties.agreement import keep_signature
    from securevfl.parties.talk import Code

    own, parsed = _own(own_path), Code.parse(code)
    identity = _identity(own, passphrase_fd)
    written: list[Path] = []

    def keep(agreement: "Agreement", signatures: Mapping[str, bytes]) -> None:
        path = _job_path(agreement, force=force)
        for name, signature in signatures.items():
            keep_signature(own.state, agreement, name, signature)
        replace_file(path, agreement.text, "agreement")
        written.append(path)

    agree = agree_here(own, yes=yes, first=lambda agreement: _job_path(agreement, force=force))
    given = own.name, address or _address(own)
    asyncio.run(invitation.join(parsed, given, identity, agree, keep, proxy=own.proxy))
    typer.echo(f"signed by all: securevfl party run {written[0]}")


@party.command("check")
def check(
    job: JobPath,
    *,
    own_path: OwnPath = OWN,
    wait: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long to wait for each peer.")
    ] = 30.0,
    passphrase_fd: PassphraseFd = None,
) -> None:
    """Check what is ready before any data move.

    Peers run `check` or `run` at the same time. Exit status: 1 if something is not ready.
    """
    import asyncio

    from securevfl.cli.party_check import Check
    from securevfl.cli.party_consent import show
    from securevfl.parties.agreement import folder_of, read_agreement
    from securevfl.parties.life import alone
    from securevfl.reports.tables import wrapped

    own, agreement = _own(own_path), read_agreement(job)
    identity = _identity(own, passphrase_fd)
    agreement.require_own(own.name, identity)
    folder, bad = folder_of(own.state, agreement), list[str]()
    require_room({folder / "diary.json": len(TEMPLATE)}, "state folder")

    def say(line: str, good: bool) -> None:
        bad.extend([] if good else [line])
        for each in wrapped(line if good else f"NOT READY  {line}"):
            typer.echo(each)

    with alone(folder, own.name):
        asyncio.run(Check(own, agreement, identity, say, wait).run())
    show(agreement, own.name)
    if bad:
        raise typer.Exit(1)


@party.command("run")
def run(
    job: JobPath,
    *,
    own_path: OwnPath = OWN,
    patience: Patience = None,
    ahead: Annotated[
        bool,
        typer.Option("--ahead", help="Only make a blind job's pads; the next run uses them."),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace another job's model.")] = False,
    quiet: options.Quiet = False,
    passphrase_fd: PassphraseFd = None,
) -> None:
    """Take part in a job, to its end, however often it is interrupted.

    Exit status, as of train: 3, 4 or 5 if there is something to warn of in the model.
    """
    from securevfl.cli.party_run import run_job

    with _taking_part(job, own_path, passphrase_fd, patience) as part:
        run_job(*part, ahead=ahead, force=force, quiet=quiet)


@party.command("predict")
def predict(
    job: JobPath,
    *,
    rows: Annotated[
        Path | None, typer.Option(help="New rows; overrides new_data in your own file.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="At the label party: .csv, .parquet, or - to print the scores."),
    ] = None,
    explain: Annotated[
        Path | None,
        typer.Option(help="Your own columns' contributions to scores: a .csv or .parquet file."),
    ] = None,
    own_path: OwnPath = OWN,
    patience: Patience = None,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite an existing --out or --explain file.")
    ] = False,
    quiet: options.Quiet = False,
    passphrase_fd: PassphraseFd = None,
) -> None:
    """Score new rows with the model of a job.

    Every party runs it with its own file.
    """
    from securevfl.cli.party_predict import score_rows

    with _taking_part(job, own_path, passphrase_fd, patience) as part:
        score_rows(*part, rows=rows, out=out, explain=explain, force=force, quiet=quiet)


@party.command("status")
def status(
    job: Annotated[Path | None, typer.Argument(help="One agreement.", metavar="JOB.toml")] = None,
    *,
    own_path: OwnPath = OWN,
) -> None:
    """Say how far this party's jobs are, one a line."""
    from securevfl.cli.party_run import STATUS
    from securevfl.parties.agreement import folder_of, read_agreement

    own = _own(own_path)
    found = sorted(own.state.glob(f"*/{STATUS}"))
    if job is not None:
        found = [folder_of(own.state, read_agreement(job)) / STATUS]
    lines = [_status_line(path, own.name) for path in found if path.exists()]
    for line in lines or [f"no job has run yet in {own.state}"]:
        typer.echo(line)


@party.command("stop")
def stop(
    job: JobPath,
    *,
    own_path: OwnPath = OWN,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    passphrase_fd: PassphraseFd = None,
) -> None:
    """Stop a job for good, at all parties."""
    from securevfl.parties.agreement import folder_of, read_agreement
    from securevfl.parties.life import read_diary
    from securevfl.parties.stopping import stop as stop_job

    own, agreement = _own(own_path), read_agreement(job)
    identity = _identity(own, passphrase_fd)
    agreement.require_own(own.name, identity)
    folder = folder_of(own.state, agreement)
    if read_diary(folder).complete:
        raise ConfigError("the job has finished: there is nothing to stop")
    if not yes:
        typer.confirm("No party will ever go on with it. Stop it?", abort=True)
    stopped = stop_job(own.state, agreement, own.name, identity)
    running = _is_running(folder)
    how = "the running party tells" if running else "securevfl party run tells"
    typer.echo(f"stopped by {stopped.by} on {stopped.at}; {how} the others")


@party.command("rotate")
def rotate(
    job: Annotated[
        Path | None, typer.Argument(help="With --confirm: the draft.", metavar="JOB.toml")
    ] = None,
    *,
    own_path: OwnPath = OWN,
    confirm: Annotated[
        str | None, typer.Option(metavar="LINE", help="A peer's line, to write into JOB.toml.")
    ] = None,
    passphrase_fd: PassphraseFd = None,
) -> None:
    """Make a new identity, signed by the old one.

    With --confirm: put a peer's new one into a draft.
    """
    from securevfl.job import job_text
    from securevfl.parties.identity import Identity
    from securevfl.parties.rotation import confirmed, rotation

    if (job is None) != (confirm is None):
        raise ConfigError("--confirm LINE and JOB.toml go together")
    if job is not None and confirm is not None:
        text, name = confirmed(job_text(job), confirm)
        replace_file(job, text.encode(), "agreement")
        typer.echo(f"{job} has the new identity of {name}: all sign it again")
        return
    own, passphrase = _own(own_path), _passphrase(passphrase_fd)
    new, line = rotation(own.name, Identity.load(own.key, passphrase))
    path = own.key.with_name(f"{own.key.name}.new")
    new.save(path, passphrase)
    _show_identity(own.name, new)
    typer.echo(f"peers run: securevfl party rotate JOB.toml --confirm {line}")
    typer.echo(f"once all have signed an agreement with it: key = {path.name!r} in your own file")


@contextmanager
def _taking_part(
    job: Path, own_path: Path, passphrase_fd: int | None, patience: float | None
) -> "Iterator[tuple[OwnFile, Agreement, Identity, float]]":
    """Hold this party's place in a job that it accepts; the last number is its patience in s."""
    from securevfl.cli.party_consent import require_accepted
    from securevfl.parties.agreement import folder_of, read_agreement
    from securevfl.parties.life import alone

    own, agreement = _own(own_path), read_agreement(job)
    require_accepted(own, agreement)
    identity = _identity(own, passphrase_fd)
    agreement.require_own(own.name, identity)
    hours = own.patience_hours if patience is None else patience
    if not hours > 0:
        raise ConfigError(f"--patience {hours:g}: expected hours, more than 0")
    folder = folder_of(own.state, agreement)
    require_room({folder / "diary.json": len(TEMPLATE)}, "state folder")
    with alone(folder, own.name):
        yield own, agreement, identity, 3600 * hours


def _own(path: Path) -> "OwnFile":
    from securevfl.parties.own_file import read_own_file

    return read_own_file(path)


def _passphrase(descriptor: int | None) -> bytes | None:
    """The first line that a file descriptor gives."""
    if descriptor is None:
        return None
    try:
        with os.fdopen(descriptor, "rb") as file:
            return file.readline(MOST_PASSPHRASE).rstrip(b"\r\n")
    except OSError as error:
        raise ConfigError(f"--passphrase-fd {descriptor}: {error.strerror}") from error


def _identity(own: "OwnFile", descriptor: int | None) -> "Identity":
    from securevfl.parties.identity import Identity

    return Identity.load(own.key, _passphrase(descriptor))


def _show_identity(name: str, identity: "Identity") -> None:
    from securevfl.parties.identity import public_text, words_of

    typer.echo(f"identity of {name}: {public_text(identity.public)}")
    typer.echo(f"to read aloud: {words_of(identity.public)}")


def _job_path(agreement: "Agreement", *, force: bool) -> Path:
    """Where a joiner keeps an agreement: a peer names the job, but no place on this machine."""
    name = "".join(c for c in agreement.job.job.name if c.isascii() and (c.isalnum() or c in "-_"))
    path = Path(f"{name[:64] or 'job'}.toml")
    if path.exists() and not force:
        raise ConfigError(f"{path} exists: move it away, or --force to replace it")
    return path


def _invited(draft: "Job", own: "OwnFile", identity: "Identity") -> list[str]:
    from securevfl.parties.identity import parse_public
    from securevfl.parties.invitation import names_without_identity

    known = {each.name: each.identity for each in draft.party}
    if own.name not in known:
        raise ConfigError(f"party {own.name!r} is not in the draft ({', '.join(known)})")
    said = known[own.name]
    if said is not None and parse_public(said) != identity.public:
        raise ConfigError(f"party {own.name!r}: the draft has another identity than its key file")
    invited = [name for name in names_without_identity(draft) if name != own.name]
    if not invited:
        raise ConfigError("every other party has an identity: securevfl party sign JOB.toml")
    return invited


def _address(own: "OwnFile") -> str | None:
    """Where others reach this party, if that follows from where it listens."""
    if own.listen is None or urlsplit(f"//{own.listen}").hostname in ANY_HOST:
        return None
    return f"ws://{own.listen}"


def _is_running(folder: Path) -> bool:
    from securevfl.parties.life import alone

    try:
        with alone(folder, ""):
            return False
    except ConfigError:
        return True


def _status_line(path: Path, name: str) -> str:
    try:
        found = json.loads(path.read_bytes())
        at = f"round {found['round']} of {found['rounds']}, " if found["rounds"] else ""
        is_over = found["phase"] == "finished" or _is_running(path.parent)
        live = "" if is_over else ", not running"
        return (
            f"{found['job']} {found['agreement'][:8]}: {found['phase']}, {at}with "
            f"{', '.join(found['peers'])}, since {found['since'][:16]} UTC{live}"
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} of party {name!r} cannot be read, or is damaged") from error

"""What `securevfl party run` does around a party's life: it tells, waits, stops and writes."""

import asyncio
import json
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import typer

from securevfl.cli import options
from securevfl.data.shards import is_shard
from securevfl.errors import ConfigError, PeerError, PeerTimeout, SecureVFLError
from securevfl.files import replace_file, require_room
from securevfl.interrupts import INTERRUPTED
from securevfl.models.storage import save_model
from securevfl.parties.agreement import Agreement, folder_of, read_signatures, shown
from securevfl.parties.alignment import Limits
from securevfl.parties.identity import Identity
from securevfl.parties.life import DIARY, Finished, Place, live, read_diary
from securevfl.parties.links import Link, Links
from securevfl.parties.meeting import CONTROL, JobStopped, Stopped, kind_of
from securevfl.parties.own_data import OwnRows
from securevfl.parties.own_file import OwnFile
from securevfl.parties.policy import count_alignment
from securevfl.parties.recovery import Told
from securevfl.parties.stopping import all_know, keep_stop, note_all_know, read_stop
from securevfl.protocols.session.pad_store import PadStore
from securevfl.reports.results import as_json, manifest, now
from securevfl.reports.tables import interval_notes, scores_in_words, seconds, wrapped
from securevfl.reports.training import learned_in
from securevfl.runtime.costs import job_costs
from securevfl.runtime.real import RealChannel
from securevfl.training.job_data import data_hashes, file_sources
from securevfl.training.result import model_files
from securevfl.verdict import own_verdict, ranked
from securevfl.warned import Warned, status_of

if TYPE_CHECKING:
    from securevfl.protocols.plan import Plan
    from securevfl.protocols.session.scoring import Score
    from securevfl.protocols.session.workplace import PartyOutcome

T = TypeVar("T")
STATUS, RESULT = "status.json", "result.json"
LOOK_SECONDS, STATUS_SECONDS = 0.5, 1.0
SILENT_SECONDS, STILL_SILENT_SECONDS = 60.0, 600.0
TELL_STOP_SECONDS = 30.0
STATE_BYTES = 1 << 20
ALIGNMENT_REVEALS = (
    "by alignment all learn which of their own rows all have, and how many rows each brings; the "
    "label party also how many rows any of the parties share"
)


@dataclass
class Telling:
    """What a run tells: lines, a bar on a terminal, and a status file.

    Attributes:
        say: takes a line.
        bar: takes what is done, how much of it, and of how much.
        kept: this party's own result, once it has one.
    """

    agreement: Agreement
    name: str
    path: Path
    say: Callable[[str], None]
    bar: Callable[[str, float, int | None], None]
    phase: str = "connecting"
    done: int = 0
    most: int = 0
    waiting: str = ""
    channels: list[RealChannel] = field(default_factory=list)
    kept: object = None
    since: float = field(default_factory=time.time)
    changed: float = field(default_factory=time.monotonic)
    progressed: float = field(default_factory=time.monotonic)
    _seen: set[str] = field(default_factory=set)
    _began: tuple[float, int] = (0.0, 0)
    _silent: float = SILENT_SECONDS
    _written: float = 0.0

    def told(self) -> Told:
        """For `life.live`."""
        return Told(
            self.line, self.rounds, self.ids, self.enter, self.channels.append, holds=self.keep
        )

    def keep(self, result: object) -> None:
        """This party has its own result."""
        self.kept = result

    def line(self, text: str) -> None:
        """Say a line, which may hold names and words of peers."""
        self.waiting = text if text.startswith("waits for ") else ""
        self._moved(time.monotonic())
        self.say(shown(text, 400))

    def enter(self, phase: str) -> None:
        """A phase begins."""
        self.phase, self.waiting, self.since = phase, "", time.time()
        self._moved(now := time.monotonic())
        if phase not in self._seen:
            self._seen.add(phase)
            self.progressed = now
        self._began = (0.0, 0)
        self.say(phase)

    def rounds(self, done: int, most: int) -> None:
        """So many rounds are done; called on the program's thread, often."""
        now = time.monotonic()
        if not self._began[0]:
            self._began = now, done
        if done > self.done:
            self.progressed = now
        self.done, self.most = done, most
        self._moved(now)
        self.bar(f"trains, {self.rate(now)}" if self.rate(now) else "trains", done, most)

    def ids(self, done: int, total: int) -> None:
        """Alignment has worked on so many ids; called on the program's thread."""
        self._moved(time.monotonic())
        self.bar("aligns, ids", done, total)

    def _moved(self, now: float) -> None:
        self.changed, self._silent = now, SILENT_SECONDS

    def rate(self, now: float) -> str:
        """Rounds a second and the time left, as far as they are known."""
        began, first = self._began
        if not began or now <= began or self.done <= first:
            return ""
        pace = (self.done - first) / (now - began)
        return f"{pace:.3g} rounds/s, {seconds((self.most - self.done) / pace)} left"

    def look(self, patience: float) -> None:
        """Write the status, and say what a silent job waits for; called often.

        Raises:
            PeerTimeout: nothing has moved for as long as this party has patience.
        """
        now = time.monotonic()
        if now - self._written >= STATUS_SECONDS:
            self._written = now
            self.write()
        awaited = next((each.awaited for each in reversed(self.channels) if each.awaited), "")
        waits = self.waiting or (f"waits for {awaited}" if awaited else "computes")
        if now - self.progressed >= patience:
            raise PeerTimeout(
                f"no progress for {patience / 3600:g} hours in {self.phase!r}: {waits}; the same "
                "command goes on"
            )
        if self.phase == "connecting":
            return  # links say themselves for whom they wait
        if now - self.changed >= self._silent:
            self._silent += STILL_SILENT_SECONDS
            self.say(f"{self.phase}: {shown(waits, 200)}, for {seconds(now - self.changed)}")

    def write(self, **more: object) -> None:
        """Write the status file."""
        status = {
            "job": self.agreement.job.job.name,
            "agreement": self.agreement.hash.hex(),
            "party": self.name,
            "peers": [name for name in self.agreement.names if name != self.name],
            "phase": self.phase,
            "round": self.done,
            "rounds": self.most,
            "waiting": shown(self.waiting, 200),
            "since": time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(self.since)),
            **more,
        }
        replace_file(self.path, json.dumps(status, indent=2).encode(), "status", durable=False)


@dataclass(frozen=True)
class Network:
    """Links, with a word to the person when they stand."""

    links: Links
    telling: Telling

    async def connect(self) -> Mapping[str, Link]:
        """A fresh link to every peer."""
        self.telling.phase, self.telling.since = "connecting", time.time()
        self.telling.channels.clear()
        found = await self.links.connect()
        self.telling.enter(f"connected with {', '.join(found)}")
        return found


async def _tells(link: Link, stopped: Stopped) -> bool:
    """Tell a peer that the job is stopped; whether it has answered that it knows."""
    try:
        link.post(stopped.frame)
        while True:  # what it sent before it heard comes first
            answer = await link.receive()
            if answer[:1] == bytes((CONTROL,)) and kind_of(answer[1:]) == stopped.kind:
                return True
    except PeerError:
        return False


def seat_of(
    own: OwnFile, telling: Telling, patience: float, kind: str = "alignments"
) -> dict[str, Any]:
    """What a party brings to all meetings, see `Seat`; a ConfigError if it has not signed."""
    agreement = telling.agreement
    signatures = read_signatures(own.state, agreement)
    if own.name not in signatures:
        raise ConfigError("this agreement is not signed here: securevfl party sign JOB.toml")
    return {
        "name": own.name,
        "agreement": agreement,
        "signature": signatures[own.name],
        "records": own.guard_directory or options.guard_directory(),
        "told": telling.told(),
        "aligns": partial(count_alignment, own.state, own.policy, agreement, own.name, kind),
        "stopped": partial(keep_stop, own.state, agreement),
        "patience": 2 * patience,  # `Telling.look` ends it before, and says for whom it waits
    }


def place_of(own: OwnFile, agreement: Agreement, seat: dict[str, Any]) -> tuple[Place, int]:
    """What a party brings to a job, and how many rows that is; its data are read here."""
    folder = folder_of(own.state, agreement)
    job = own.own_job(agreement.job)
    (source,) = file_sources(job, Path(), own.name)

    @cache
    def rows(by_digest: bool) -> OwnRows:
        return OwnRows.read(source, by_digest=by_digest)

    by_digest = is_shard(source.path)
    policy = own.policy
    place = Place(
        **seat,
        job=job,
        rows=rows,
        by_digest=by_digest,
        folder=folder,
        most_repeated=policy.most_repeated_rounds,
        pads=PadStore(folder / "pads", folder / "pad-keys", own.name),
        limits=Limits(policy.most_ids_ratio, policy.least_overlap, policy.fewest_rows),
    )
    return place, len(rows(by_digest))


def require_places(own: OwnFile, agreement: Agreement, *, force: bool) -> None:
    """Refuse, before any work, folders that cannot be written, and to overwrite another's model."""
    folder, model = folder_of(own.state, agreement), own.output / f"{own.name}.safetensors"
    require_room({folder / STATUS: STATE_BYTES}, "state folder")
    require_room({model: STATE_BYTES}, "output folder")
    if model.exists() and not force and not (folder / DIARY).exists():
        raise ConfigError(
            f"{model} would be overwritten: choose another output in your own file, or --force"
        )


@dataclass
class Run:
    """One run of a party's job, until it is finished, stopped or interrupted.

    Attributes:
        purpose: who runs for another one is not met.
        data: hashes of its own files.
    """

    own: OwnFile
    agreement: Agreement
    identity: Identity
    telling: Telling
    patience: float
    purpose: bytes = b""
    rows: int = 0
    started: str = field(default_factory=now)
    data: Mapping[str, str] = field(default_factory=dict)
    _result: dict[str, Any] = field(default_factory=dict)
    _signals: int = 0

    def links(self) -> Links:
        """This party's links, not yet open."""
        own = self.own
        return Links(
            self.agreement,
            own.name,
            self.identity,
            listen=own.listen,
            proxy=own.proxy,
            say=self.telling.line,
            purpose=self.purpose,
        )

    def until_the_end(self, begin: Callable[[Network], Coroutine[Any, Any, T]]) -> T:
        """Take part; whatever ends it stands in the status, and an interrupt ends the process."""
        telling = self.telling
        try:
            finished = asyncio.run(self._live(begin))
        except KeyboardInterrupt:
            telling.write(phase="interrupted")
            after = f" after {telling.done} rounds" if telling.done else ""
            sys.stderr.write(f"securevfl: stopped{after}; the same command goes on\n")
            sys.exit(INTERRUPTED)
        except JobStopped as error:
            telling.write(phase="stopped")
            if set(self.agreement.names) <= {self.own.name, error.peer, error.stopped.by}:
                note_all_know(self.own.state, self.agreement)
            raise ConfigError(f"the job is {error}") from error
        except SecureVFLError as error:
            with suppress(SecureVFLError):  # the first error counts
                telling.write(phase="ended", error=shown(str(error), 400))
            raise
        telling.write(phase="finished")
        return finished

    async def _live(self, begin: Callable[[Network], Coroutine[Any, Any, T]]) -> T:
        """Live; a JobStopped if a party has stopped the job, here or elsewhere.

        Raises:
            KeyboardInterrupt: a signal ended it before this party had its result.
            PeerTimeout: nothing has moved for too long.
        """
        async with self.links() as links:
            life = asyncio.ensure_future(begin(Network(links, self.telling)))
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, self._interrupted, life)
            watch = asyncio.ensure_future(self._watch())
            try:
                await asyncio.wait([life, watch], return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (life, watch):
                    task.cancel()
                await asyncio.wait([life, watch])
            if self._signals and self.telling.kept is None:
                raise KeyboardInterrupt
            if self._signals:
                self.telling.line(
                    "interrupted: this party has its result; where a peer still lacks its own, the "
                    "same command goes on"
                )
                return cast("T", self.telling.kept)
            if not watch.cancelled() and (error := watch.exception()) is not None:
                if isinstance(error, JobStopped):
                    await self._tell_stop(links, error.stopped)
                elif isinstance(error, PeerTimeout) and self.telling.kept is not None:
                    self.telling.line(
                        "no word from peers: this party has its result, and waits no longer"
                    )
                    return cast("T", self.telling.kept)
                raise error
            return life.result()

    async def tell_stop(self, stopped: Stopped) -> None:
        """Tell the peers that a job is stopped, if all of them come within half a minute."""
        if not all_know(self.own.state, self.agreement):
            async with self.links() as links:
                await self._tell_stop(links, stopped)

    async def _tell_stop(self, links: Links, stopped: Stopped) -> None:
        try:
            async with asyncio.timeout(TELL_STOP_SECONDS):
                waiting = set(self.agreement.names) - {self.own.name}
                while waiting:
                    found = await links.connect()
                    told = await asyncio.gather(*(_tells(link, stopped) for link in found.values()))
                    waiting -= {name for name, knows in zip(found, told, strict=True) if knows}
        except TimeoutError:
            self.telling.line("not all peers know yet that the job is stopped: run tells them")
        else:
            note_all_know(self.own.state, self.agreement)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if (stopped := read_stop(self.own.state, self.agreement)) is not None:
                raise JobStopped(stopped.by, stopped)
            self.telling.look(self.patience)

    def _interrupted(self, life: "asyncio.Future[Any]") -> None:
        self._signals += 1
        life.cancel()

    def save(self, plan: "Plan", outcome: "PartyOutcome") -> None:
        """Write this party's model and result."""
        models = model_files(self.own.name, outcome, self.own.output)
        for path, model in models.items():
            save_model(path, model)
        self._result = self._found(plan, outcome)
        self._result["manifest"] = manifest(self.started, plan.hash.hex(), self.data, models)
        self._write()

    def judge(self, finished: Finished) -> tuple[Warned, ...]:
        """Warnings about the model, which are added to the result as well.

        They take seconds, so no peer waits for them.
        """
        plan, outcome, data = finished.plan, finished.outcome, finished.data
        if plan is None or outcome is None or data is None:
            return ()
        alone, warnings = own_verdict(plan, outcome, data)
        self._result["alone"] = alone and _figures(alone.score)
        if alone is not None and data.test_labels is not None:
            owns = {plan.facts.label_party: alone}
            self._result["ranking"] = ranked(plan, outcome, owns, data.test_labels)
            row = {**self._result, "binormal": outcome.scores[-1].binormal}
            for note in interval_notes(row):
                self.telling.line(note)
        self._result["warnings"] = [each._asdict() for each in warnings]
        self._result["status"] = status_of(warnings)
        self._write()
        return warnings

    def ending(self, finished: Finished) -> str:
        """How a job has ended, in a line."""
        outcome, folder = finished.outcome, self.own.output
        if (pads := finished.pads) is not None:
            size = f"{pads.size / 1e6:.3g} MB"
            return f"pads for {pads.rounds} rounds, {size}, which the next run uses up: {pads.path}"
        if outcome is None:
            return f"the job has finished before: {folder / RESULT}"
        score = outcome.scores[-1] if outcome.scores else None
        said = [f"{outcome.rounds} rounds, ended: {outcome.ended}"]
        if score is not None:
            row = {**_figures(score), "binormal": score.binormal}
            said += [f"{each} held out" for each in scores_in_words(row)]
        said.append(f"model and result in {folder}")
        if before := self._result["rounds_before"]:
            said.append(f"times and bytes cover the rounds after {before}")
        return f"finished: {'; '.join(said)}"

    def _write(self) -> None:
        replace_file(self.own.output / RESULT, as_json(self._result), "result file")

    def _found(self, plan: "Plan", outcome: "PartyOutcome") -> dict[str, Any]:
        """This party's own result: no labels, no predictions, and no figure of a row."""
        aligned, trained = (each.costs for each in self.telling.channels[-2:])
        costs = job_costs({self.own.name: trained}, len(trained.snapshots))
        diary = read_diary(folder_of(self.own.state, self.agreement))
        return {
            "party": self.own.name,
            "job": self.agreement.job.job.name,
            "job_hash": plan.hash.hex(),
            "agreement_hash": self.agreement.hash.hex(),
            "rounds": outcome.rounds,
            "kept_rounds": outcome.selected.rounds,
            "ended": outcome.ended,
            "attempts": diary.attempts,
            # Costs and alignment are of the last attempt, which went on after these.
            "rounds_before": outcome.rounds - len(trained.snapshots),
            "repeated_rounds": diary.repeated,
            "own_rows": self.rows,
            "rows_in_common": {"train": plan.facts.rows, "held_out": plan.facts.test_rows},
            "scores": _figures(outcome.scores[-1]) if outcome.scores else None,
            "who_learned_what": [
                *(f"{role} learned: {learns}" for role, learns in learned_in(plan)),
                ALIGNMENT_REVEALS,
            ],
            "costs": costs.row(),
            "alignment": {
                "seconds": sum(aligned.path.values()),
                "bytes_sent": sum(aligned.bytes_sent.values()),
                "messages": sum(aligned.messages.values()),
            },
        }


def _figures(score: "Score") -> dict[str, float | None]:
    names = ("class_auc", "class_accuracy", "r2", "rmse", "mae")
    return {name.removeprefix("class_"): getattr(score, name) for name in names}


def run_job(
    own: OwnFile,
    agreement: Agreement,
    identity: Identity,
    patience: float,
    *,
    ahead: bool,
    force: bool,
    quiet: bool,
) -> None:
    """Take part in a job, to its end; the caller holds this party's place in it."""

    def say(line: str) -> None:
        for each in [] if quiet else wrapped(f"{own.name}: {line}"):
            options.say(each)

    with options.progress(quiet) as bar:
        status = folder_of(own.state, agreement) / STATUS
        telling = Telling(agreement, own.name, status, say, bar)
        run, seat = (
            Run(own, agreement, identity, telling, patience),
            seat_of(own, telling, patience),
        )
        if (stopped := read_stop(own.state, agreement)) is not None:
            asyncio.run(run.tell_stop(stopped))
            raise ConfigError(f"the job is stopped by {stopped.by} on {stopped.at}")
        require_places(own, agreement, force=force)
        place, run.rows = place_of(own, agreement, seat | {"ahead": ahead})
        run.data = data_hashes(own.own_job(agreement.job), Path(), own.name)
        finished = run.until_the_end(lambda links: live(place, links, run.save))
    for each in [] if quiet else wrapped(f"{own.name}: {run.ending(finished)}"):
        typer.echo(each)
    options.end_with(run.judge(finished))

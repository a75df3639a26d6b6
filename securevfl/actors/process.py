"""`python -m securevfl.actors.process`: an actor as a process, over its standard input and output.

It reads its task and then its peers, a line of JSON each, and tells a line of JSON for everything,
and again and again that it is alive.
When its input ends, it ends at once, with all processes that it has started and with what the job's
actors shared: nobody and nothing is left behind a supervisor that was killed.
"""

import contextlib
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

from securevfl.actors.party import PartyActor
from securevfl.actors.task import EVENT, PEERS, TASK, ActorTask, Event

BEAT_SECONDS = 0.5


def main() -> None:
    """Run an actor until its input ends."""
    # What libraries print is nobody's event.
    told = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    lock = threading.Lock()

    def tell(event: Event) -> None:
        with lock, contextlib.suppress(BrokenPipeError):
            told.write(EVENT.dump_json(event).decode() + "\n")
            told.flush()

    def beat() -> None:
        while True:
            tell(Event("alive"))
            time.sleep(BEAT_SECONDS)

    threading.Thread(target=beat, daemon=True).start()
    task = TASK.validate_json(sys.stdin.readline())
    # While it is open no other folder has its number.
    work = os.open(task.work, os.O_RDONLY)
    actor = PartyActor(task, tell)
    actor.open()
    peers = sys.stdin.readline()
    if peers:
        taking_part = threading.Thread(
            target=actor.take_part, args=(PEERS.validate_json(peers),), daemon=True
        )
        taking_part.start()
        sys.stdin.read()
    _end(task, work)


def _end(task: ActorTask, work: int) -> None:
    kind, _, place = task.listen.partition(":")
    if kind == "unix":
        Path(place).unlink(missing_ok=True)
        # The supervisor that made its folder is gone: the last of its actors removes it.
        with contextlib.suppress(OSError):
            Path(place).parent.rmdir()
    # Ids and predictions; not those of a job that was started since.
    with contextlib.suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(work), os.stat(task.work)):
            shutil.rmtree(task.work, ignore_errors=True)
    # Its own group: whoever it started, too.
    os.killpg(os.getpgid(0), signal.SIGKILL)


if __name__ == "__main__":
    main()

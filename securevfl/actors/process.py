"""`python -m securevfl.actors.process`: an actor as a process, over its standard input and output.

It reads its task and then its peers, one line of JSON each, and writes each event as a line of
JSON. At short intervals it reports that it is alive. When its input ends, as it does when the
supervisor is killed, the actor ends at once: it kills all processes that it has started and removes
the files that the job's actors shared.
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
    # What libraries print must not be read as events.
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    lock = threading.Lock()

    def tell(event: Event) -> None:
        with lock, contextlib.suppress(BrokenPipeError):
            output.write(EVENT.dump_json(event).decode() + "\n")
            output.flush()

    def beat() -> None:
        while True:
            tell(Event("alive"))
            time.sleep(BEAT_SECONDS)

    threading.Thread(target=beat, daemon=True).start()
    task = TASK.validate_json(sys.stdin.readline())
    # While it is open no other folder can have its inode number.
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
        # The supervisor that made the folder is gone, so the last of its actors removes it.
        with contextlib.suppress(OSError):
            Path(place).parent.rmdir()
    # The folder holds ids and predictions; one of a job that was started since is left alone.
    with contextlib.suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(work), os.stat(task.work)):
            shutil.rmtree(task.work, ignore_errors=True)
    # Its own process group includes all processes that it started.
    os.killpg(os.getpgid(0), signal.SIGKILL)


if __name__ == "__main__":
    main()

"""`python -m securevfl.parties.process`: a party as a process, over its standard input and output.

It reads its task and then where all parties are, one line of JSON each, and writes each event as a
line of JSON. At short intervals it reports that it is alive. When its input ends, as it does when
the operator is killed, the party ends at once: it kills all processes that it has started and
removes the files that the job's parties shared.
"""

import contextlib
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

from securevfl.parties.door import UNIX
from securevfl.parties.local_party import LocalParty
from securevfl.parties.task import ADDRESSES, EVENT, TASK, Event, Task

BEAT_SECONDS = 0.5


def main() -> None:
    """Run a party until its input ends."""
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
    party = LocalParty(task, tell)
    threading.Thread(target=party.run, daemon=True).start()
    for line in sys.stdin:
        party.introduce(ADDRESSES.validate_json(line))
    _end(task, work)


def _end(task: Task, work: int) -> None:
    own = task.addresses[task.name]
    if own.startswith(UNIX):
        path = Path(own.removeprefix(UNIX))
        path.unlink(missing_ok=True)
        # The operator that made the folder is gone, so the last of its parties removes it.
        with contextlib.suppress(OSError):
            path.parent.rmdir()
    # The folder holds keys, ids and predictions; one of a job that was started since is left alone.
    with contextlib.suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(work), os.stat(task.work)):
            shutil.rmtree(task.work, ignore_errors=True)
    # Its own process group includes all processes that it started.
    os.killpg(os.getpgid(0), signal.SIGKILL)


if __name__ == "__main__":
    main()

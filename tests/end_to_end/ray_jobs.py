"""What tests do on Ray, in a process of its own: it prints, warns, and starts processes.

Tells what it found as one line of JSON, the last on standard output.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from typing_extensions import override

from securevfl.errors import ConfigError, DataError
from securevfl.job import Job
from securevfl.parties.local import Places, Supervision, train_locally
from securevfl.parties.ray_host import RayHandle, RayHost
from securevfl.parties.task import Task, Tell
from securevfl.processes import Tell as TellTask
from securevfl.processes import in_processes
from securevfl.protocols.session.checkpoints import SessionState
from securevfl.ray_cluster import LOCAL, RemoteObject, cluster
from securevfl.training import TrainingResult, save_models, train
from securevfl.workers import Gone
from tests.end_to_end import ray_jobs
from tests.jobs import breast_cancer

JOB = Job.of(
    job={
        "dataset": "breast_cancer",
        "rounds": 300,
        "batch_size": 64,
        "learning_rate": 0.1,
        "seed": 3,
        "start": "seeded",
    },
    output={"checkpoint_every": 1},
)
Kill = Callable[[RayHandle, int], None]


class KillingHost(RayHost):
    def __init__(self, victim: str, state: Path, kill: Kill) -> None:
        super().__init__(LOCAL, silence_seconds=10.0)
        self._victim, self._state, self._kill = victim, state, kill
        self._killed = False

    @override
    def start(self, task: Task, tell: Tell) -> RayHandle:
        handle = super().start(task, tell)
        if task.name == self._victim and not self._killed:
            self._killed = True
            threading.Thread(target=self._watch, args=(handle,)).start()
        return handle

    def _watch(self, handle: RayHandle) -> None:
        process = handle.remote.process_id()
        while True:
            try:
                if SessionState.load(self._state).rounds >= 3:
                    break
            except DataError:
                time.sleep(0.001)
        self._kill(handle, process)


def by_signal(_: RayHandle, process: int) -> None:
    os.kill(process, signal.SIGKILL)


def by_stopping(_: RayHandle, process: int) -> None:
    os.kill(process, signal.SIGSTOP)


def by_ray(handle: RayHandle, _: int) -> None:
    import ray  # noqa: PLC0415  # after its cluster's token

    ray.kill(handle.remote._actor)


def killed(folder: Path, name: str, victim: str, kill: Kill) -> tuple[TrainingResult, list[str]]:
    said = list[str]()
    models = folder / name
    result = train_locally(
        JOB,
        breast_cancer(),
        KillingHost(victim, models / f"{victim}.state", kill),
        Places(models, folder, folder / f"{name} guard"),
        supervision=Supervision(say=said.append),
    )
    return result, said


def noting_words(noted: list[int]) -> None:
    """Note the sizes of all that passes between this process and remote objects; it is JSON."""
    begin, call = RemoteObject.begin, RemoteObject.call

    def began(remote: RemoteObject, method: str, *words: str) -> None:
        noted.extend(len(json.dumps(json.loads(each))) for each in words)
        begin(remote, method, *words)

    def called(
        remote: RemoteObject, method: str, *words: str, seconds: float | None = None
    ) -> object:
        given = call(remote, method, *words, seconds=seconds)
        noted.append(len(json.dumps([words, given])))
        return given

    setattr(RemoteObject, "begin", began)  # noqa: B010  # mypy: a method
    setattr(RemoteObject, "call", called)  # noqa: B010


def stored_bytes() -> int:
    import ray  # noqa: PLC0415
    from ray._private.internal_api import memory_summary  # noqa: PLC0415

    # There may be another cluster on this machine.
    here = ray.get_runtime_context().gcs_address
    summary: str = memory_summary(here, stats_only=True)  # type: ignore[no-untyped-call]
    line = next(line for line in summary.splitlines() if line.startswith("Plasma memory usage"))
    return round(float(line.split()[3]) * (1 << 20))


INTRUDER = """
import logging, sys, ray
ray.init(sys.argv[1], log_to_driver=False, logging_level=logging.CRITICAL)
print(ray.get(ray.remote(num_cpus=0)(lambda: "ran").remote(), timeout=60))
"""


def strangers_word(address: str) -> str:
    env = {name: word for name, word in os.environ.items() if not name.startswith("RAY_AUTH")}
    command = [sys.executable, "-c", INTRUDER, address]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False).stdout  # noqa: S603


def slowed(by: float, task: int, _: TellTask) -> float:
    if task == 3:
        raise DataError("task 3")
    return by * task


def main(folder: Path) -> dict[str, object]:
    found, noted = dict[str, object](), list[int]()
    noting_words(noted)
    save_models(train(JOB, breast_cancer()), folder / "expected")
    with cluster(LOCAL):
        import ray  # noqa: PLC0415  # after its cluster's token

        found["stranger"] = strangers_word(ray.get_runtime_context().gcs_address)
        for name, victim, kill in (
            ("signal", "party2", by_signal),
            ("ray", "party1", by_ray),
            ("stopping", "party2", by_stopping),
        ):
            result, said = killed(folder, name, victim, kill)
            found[name] = {"said": said, "before": result.rounds_before, "rounds": result.rounds}
        found["words"], found["stored"] = max(noted), stored_bytes()
        held = ray.put(np.zeros(1_000_000))
        found["stored with data"] = stored_bytes()
        del held
        # By the name that other processes import it by.
        work = partial(ray_jobs.slowed, 0.5)
        with in_processes(work, range(3), 2, "test", ray=LOCAL) as results:
            found["cells"] = sorted(results)
        try:
            with in_processes(work, range(2, 5), 2, "test", ray=LOCAL) as results:
                list(results)
        except DataError as error:
            found["error"] = str(error)
        try:
            RemoteObject("securevfl.nowhere:Thing", "").call("events", seconds=60)
        except ConfigError as error:
            found["unmade"] = str(error)
        try:  # Ray has many errors; whoever waits for an object hears of each
            RemoteObject("queue:Queue", "").call("get_nowait", seconds=60)
        except Gone as gone:
            found["no death"] = str(gone)
    return found


if __name__ == "__main__":
    report = main(Path(sys.argv[1]))
    sys.stdout.write(json.dumps(report) + "\n")

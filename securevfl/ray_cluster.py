"""Ray, in one place: objects and functions that run in a cluster, or in one made on this machine.

What passes through Ray is words: what to do, where data are, progress and metrics. Data stay where
they are opened, and nothing is put into the object store on purpose.
"""

import importlib
import logging
import os
import re
import secrets
import socket
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib.util import find_spec
from typing import Any, TypeVar

from securevfl.errors import ConfigError
from securevfl.shown import first_line
from securevfl.workers import Gone

HOST_PORT = re.compile(r"(?:ray://)?\[?([^/\]]+)\]?:(\d+)")
REACHED_SECONDS = 5.0
"""Of a head that is there; Ray itself tries for minutes."""
T = TypeVar("T")
R = TypeVar("R")
LOCAL = "local"
# The least that Ray takes: the store is for words.
STORE_BYTES = 80 << 20
LEAVE_SECONDS = 20.0


def require_ray() -> None:
    """Check that Ray is there, without importing it."""
    if find_spec("ray") is None:
        raise ConfigError("--ray needs ray: pip install 'securevfl[ray]'")


def require_head(address: str) -> None:
    """Check that something listens where an address HOST:PORT says that a cluster's head is."""
    if (said := HOST_PORT.fullmatch(address)) is None:
        return
    try:
        socket.create_connection((said[1], int(said[2])), REACHED_SECONDS).close()
    except (OSError, OverflowError, UnicodeError) as error:
        raise ConfigError(f"--ray {address}: no cluster there ({error})") from error


def require_token() -> None:
    """See that a cluster on this machine obeys nobody else.

    Its ports are open to the network, and whoever reaches one without a token can run anything. So
    it is refused where Ray was imported without, as it would not take one any more.
    """
    if os.environ.get("RAY_AUTH_MODE") == "token":  # of an earlier cluster, or the user's own
        return
    if "ray" in sys.modules:
        raise ConfigError(
            f"--ray {LOCAL}: ray was imported before and takes no token any more, without which "
            "anyone in the network can use its cluster: import it later, or set RAY_AUTH_MODE=token"
        )
    os.environ["RAY_AUTH_MODE"], os.environ["RAY_AUTH_TOKEN"] = "token", secrets.token_hex(32)


@contextmanager
def cluster(address: str) -> Iterator[None]:
    """Be connected, quietly, with the cluster whose head has this address.

    `local` is one on this machine, which ends with the context and takes orders from this process
    and those that it starts.

    Raises:
        ConfigError: Ray is not installed, or no cluster is there; see `require_token`.
    """
    require_ray()
    require_head(address)
    # Before it is imported: no statistics to its makers, no warning about accelerators.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # Two lines a minute otherwise, of a head that nobody asked to export metrics.
    os.environ.setdefault("RAY_enable_metrics_collection", "0")
    if address == LOCAL and not _is_connected():
        require_token()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ray  # noqa: PLC0415  # an extra, and slow to import

        if ray.is_initialized():  # whoever is connected stays so
            yield
            return
        with tempfile.TemporaryDirectory(prefix="svfl-", ignore_cleanup_errors=True) as folder:
            own: dict[str, Any] = {}
            if address == LOCAL:
                own = {
                    "include_dashboard": False,
                    "object_store_memory": STORE_BYTES,
                    "_temp_dir": folder,
                }
            try:
                ray.init(address, log_to_driver=False, logging_level=logging.CRITICAL, **own)
            except Exception as error:  # that it did not start in time is no kind of its own
                which = "" if address == LOCAL else ", or one with another token"
                raise ConfigError(
                    f"--ray {address}: no cluster there{which} ({first_line(error)})"
                ) from error
            # It says there of every process that ends, and what is left of that as it shuts down;
            # whoever started it knows better.
            with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
                try:
                    yield
                finally:
                    ray.shutdown()


def _is_connected() -> bool:
    ray: Any = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


class _Remote:
    """What lives in a process of Ray's: an object made there, of which methods are called."""

    def __init__(self, factory: str) -> None:
        module, _, name = factory.partition(":")
        self._made = getattr(importlib.import_module(module), name)()

    def call(self, method: str, *words: str) -> Any:  # noqa: ANN401
        return getattr(self._made, method)(*words)

    def process_id(self) -> int:
        return os.getpid()

    def leave(self) -> None:
        """End the process now: whoever asked sees it break off, and nothing is written later."""
        os._exit(0)


def own_address() -> str:
    """Of the machine that a remote object is on, as others in the cluster reach it."""
    import ray  # noqa: PLC0415

    return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]


class RemoteObject:
    """An object in a process of its own somewhere in the cluster.

    Its `factory` is `module:name` of a function or class without arguments. It lives only where
    there is one of `resource`, and anywhere in a cluster that has none.
    """

    def __init__(self, factory: str, resource: str) -> None:
        import ray  # noqa: PLC0415

        there = ray.cluster_resources()  # type: ignore[no-untyped-call]
        wanted = {resource: 0.001} if resource in there else {}
        # They wait more than they compute, and all have to run at once: no core is booked.
        kind = ray.remote(_Remote).options(
            num_cpus=0,
            max_restarts=0,
            max_concurrency=4,
            resources=wanted,
            scheduling_strategy="SPREAD",
        )
        self._actor: Any = kind.remote(factory)

    def begin(self, method: str, *words: str) -> None:
        """Call a method, and do not wait for it."""
        self._actor.call.remote(method, *words)

    def call(self, method: str, *words: str, seconds: float | None = None) -> Any:  # noqa: ANN401
        """What a method gives within some `seconds`; None waits on.

        Raises:
            ConfigError: it was never there, as its machine lacks what it needs.
            Gone: the process is gone.
            TimeoutError: it gave nothing in time.
        """
        return self._got(self._actor.call.remote(method, *words), seconds)

    def process_id(self) -> int:
        """Of its process, on its machine."""
        return int(self._got(self._actor.process_id.remote()))

    def stop(self) -> None:
        """End its process, and return when it is gone."""
        import ray  # noqa: PLC0415

        try:
            ray.get(self._actor.leave.remote(), timeout=LEAVE_SECONDS)
        except ray.exceptions.RayError:
            ray.kill(self._actor)

    def _got(self, reference: Any, seconds: float | None = None) -> Any:  # noqa: ANN401
        import ray  # noqa: PLC0415

        try:
            return ray.get(reference, timeout=seconds)
        except TimeoutError:  # a RayError, too
            raise
        except ray.exceptions.ActorUnavailableError as error:
            raise Gone("it cannot be reached") from error
        except ray.exceptions.ActorDiedError as error:
            if error.actor_init_failed:  # it would fail again
                reason = str(error).splitlines()[-1]
                raise ConfigError(f"its machine cannot make it: {reason}") from error
            raise Gone(str(error).splitlines()[0]) from error
        except ray.exceptions.RayError as error:  # out of memory, and more, are no RayActorError
            raise Gone(str(error).splitlines()[0]) from error


def as_they_end(work: Callable[[T], R], tasks: Sequence[T]) -> Iterator[tuple[int, R]]:
    """What every task gives, with its place, as it is there; each on a core of the cluster.

    Other processes must be able to import `work`; a task is a few words. What it raises is raised.

    Raises:
        Gone: the process of one was killed, again and again.
    """
    import ray  # noqa: PLC0415

    remote = ray.remote(num_cpus=1)(work)
    running = {remote.remote(task): place for place, task in enumerate(tasks)}
    try:
        while running:
            (ended, *_), _ = ray.wait(list(running), num_returns=1)
            place = running.pop(ended)
            try:
                result = ray.get(ended)
            except ray.exceptions.RayTaskError as error:
                raise error.cause from None
            except ray.exceptions.RayError as error:
                why = str(error).splitlines()[0]
                raise Gone(f"a process in the cluster was killed: {why}") from error
            yield place, result
    finally:
        for each in running:
            ray.cancel(each, force=True)

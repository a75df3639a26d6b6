"""All use of Ray: objects and functions that run in a cluster, or in one on this machine.

Only short texts pass through Ray: what to do, where data are, progress and metrics. Data stay where
they are opened, and nothing is put into the object store deliberately.
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
"""To connect with a cluster's head; Ray itself would try for minutes."""
T = TypeVar("T")
R = TypeVar("R")
LOCAL = "local"
STORE_BYTES = 80 << 20  # the smallest object store that Ray accepts
LEAVE_SECONDS = 20.0


def require_ray() -> None:
    """Check that Ray is installed, without importing it."""
    if find_spec("ray") is None:
        raise ConfigError("--ray needs ray: pip install 'securevfl[ray]'")


def require_head(address: str) -> None:
    """Check that something listens at an address HOST:PORT of a cluster's head."""
    if (parts := HOST_PORT.fullmatch(address)) is None:
        return
    try:
        socket.create_connection((parts[1], int(parts[2])), REACHED_SECONDS).close()
    except (OSError, OverflowError, UnicodeError) as error:
        raise ConfigError(f"--ray {address}: no cluster there ({error})") from error


def require_token() -> None:
    """Make a cluster on this machine require a token.

    Its ports are open to the network, and without a token anybody who reaches one can run code. If
    Ray was imported before, it ignores a new token, so the cluster is refused.
    """
    if os.environ.get("RAY_AUTH_MODE") == "token":  # of an earlier cluster, or the user's own
        return
    if "ray" in sys.modules:
        raise ConfigError(
            f"--ray {LOCAL}: ray was imported already and ignores new tokens, without which anyone "
            "in the network can use its cluster: import it later, or set RAY_AUTH_MODE=token"
        )
    os.environ["RAY_AUTH_MODE"], os.environ["RAY_AUTH_TOKEN"] = "token", secrets.token_hex(32)


@contextmanager
def cluster(address: str) -> Iterator[None]:
    """Connect with the cluster whose head has this address, without output.

    `local` is a cluster on this machine that ends with the context and obeys only this process and
    its children.

    Raises:
        ConfigError: Ray is not installed, there is no cluster, or it is refused by `require_token`.
    """
    require_ray()
    require_head(address)
    # Set before the import: no usage statistics, no warning about accelerators, no metrics (whose
    # export prints two lines per minute).
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_enable_metrics_collection", "0")
    if address == LOCAL and not _is_connected():
        require_token()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ray  # noqa: PLC0415  # an extra, and slow to import

        if ray.is_initialized():  # an existing connection stays open
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
            except Exception as error:  # a timeout of the start has no class of its own
                which = "" if address == LOCAL else ", or one with another token"
                raise ConfigError(
                    f"--ray {address}: no cluster there{which} ({first_line(error)})"
                ) from error
            # Ray prints a line for each process that ends, also while it shuts down.
            with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
                try:
                    yield
                finally:
                    ray.shutdown()


def _is_connected() -> bool:
    ray: Any = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


class _Remote:
    def __init__(self, factory: str) -> None:
        module, _, name = factory.partition(":")
        self._made = getattr(importlib.import_module(module), name)()

    def call(self, method: str, *words: str) -> Any:  # noqa: ANN401
        return getattr(self._made, method)(*words)

    def process_id(self) -> int:
        return os.getpid()

    def leave(self) -> None:
        """End the process at once, so that nothing is written later."""
        os._exit(0)


def own_address() -> str:
    """The address of a remote object's machine within the cluster."""
    import ray  # noqa: PLC0415

    return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]


class RemoteObject:
    """An object in a process of its own in the cluster.

    `factory` is `module:name` of a function or class without arguments. If some machine has the
    `resource`, the object runs there.
    """

    def __init__(self, factory: str, resource: str) -> None:
        import ray  # noqa: PLC0415

        there = ray.cluster_resources()  # type: ignore[no-untyped-call]
        wanted = {resource: 0.001} if resource in there else {}
        # All have to run at once and mostly wait, so they reserve no core.
        kind = ray.remote(_Remote).options(
            num_cpus=0,
            max_restarts=0,
            max_concurrency=4,
            resources=wanted,
            scheduling_strategy="SPREAD",
        )
        self._actor: Any = kind.remote(factory)

    def begin(self, method: str, *words: str) -> None:
        """Call a method without waiting for its end."""
        self._actor.call.remote(method, *words)

    def call(self, method: str, *words: str, seconds: float | None = None) -> Any:  # noqa: ANN401
        """A method's result; None waits without limit.

        Raises:
            ConfigError: the object could not be made on its machine.
            Gone: the process died.
            TimeoutError: the time is over.
        """
        return self._got(self._actor.call.remote(method, *words), seconds)

    def process_id(self) -> int:
        """The id of its process, on its machine."""
        return int(self._got(self._actor.process_id.remote()))

    def stop(self) -> None:
        """End its process, and wait for its end."""
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
            if error.actor_init_failed:  # a restart would fail again
                reason = str(error).splitlines()[-1]
                raise ConfigError(f"its machine cannot make it: {reason}") from error
            raise Gone(str(error).splitlines()[0]) from error
        except ray.exceptions.RayError as error:  # such as out of memory, which is no RayActorError
            raise Gone(str(error).splitlines()[0]) from error


def as_they_end(work: Callable[[T], R], tasks: Sequence[T]) -> Iterator[tuple[int, R]]:
    """Yield the tasks' results with their places, as they end, each from a core of the cluster.

    Other processes must be able to import `work`, and tasks must be small. Errors of `work` are
    raised here.

    Raises:
        Gone: a process was killed, also after Ray's retries.
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

"""Writing a file in one step: a reader sees the old one or the new one, never half of it."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from securevfl.errors import DataError

PATIENCE_SECONDS = 60.0


@contextmanager
def only_one(path: Path, what: str) -> Iterator[None]:
    """Keep other processes off a file while it is read and replaced.

    Args:
        path: of the file, which need not be there.
        what: what the file is, for the error.

    Raises:
        DataError: somebody else holds it for a minute, or its folder cannot be written.
    """
    from filelock import FileLock, Timeout  # noqa: PLC0415  # only records need it

    lock = FileLock(path.with_name(f"{path.name}.lock"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=PATIENCE_SECONDS)
    except Timeout as error:
        raise DataError(f"{what} {path}: another job holds it") from error
    except OSError as error:
        raise DataError(f"{what} {path} cannot be written: {error.strerror}") from error
    try:
        yield
    finally:
        lock.release()


def replace_file(path: Path, data: bytes, what: str) -> None:
    """Write `data` to `path`, making its folder if need be.

    Args:
        path: where.
        data: the whole content.
        what: what the file is, for the error.

    Raises:
        DataError: it cannot be written (no room, no permission); the old file is as it was.
    """
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(temporary).replace(path)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise DataError(f"{what} {path} cannot be written: {error.strerror}") from error
    except BaseException:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise

"""Writing a file in one step: a reader sees the old one or the new one, never half of it."""

import os
import tempfile
from pathlib import Path

from securevfl.errors import DataError


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

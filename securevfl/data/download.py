"""Fetching data sets from their publishers, verified before they are put in place."""

import contextlib
import os
import secrets
from collections.abc import Callable
from pathlib import Path

from securevfl.data.catalog import SourceFile, entry_of
from securevfl.data.locations import by_hand, find, places, read_verified
from securevfl.errors import ConfigError, DataError

Progress = Callable[[int, int | None], None]
_CHUNK_BYTES = 1 << 16
_TIMEOUT_SECONDS = 30.0


def get(
    name: str,
    *,
    data_dir: Path | None = None,
    progress: Progress | None = None,
    base_url: str | None = None,
) -> list[Path]:
    """Download a data set's files into the first of `places`; good files already there stay.

    Args:
        name: The data set; nothing to do for those embedded in scikit-learn.
        data_dir: Where to, instead of $SECUREVFL_DATA or the per-user cache.
        progress: Called with bytes so far and, where known, bytes in all, file by file.
        base_url: A mirror that serves the same file names, instead of the publisher.

    Returns:
        The files' paths.

    Raises:
        ConfigError: Unknown name, or a base_url that is not http(s).
        DataError: No network, cut off, refused by the server, another content than was pinned
            (the file is removed), no space, or nobody serves it; how to do it by hand is named.
    """
    if base_url is not None and not base_url.startswith(("https://", "http://")):
        raise ConfigError(f"base_url: {base_url!r}, expected http:// or https://")
    entry, target = entry_of(name), places(data_dir)[0]
    if entry.file_sets and not entry.downloads:
        steps = "; ".join(by_hand(file) for file in entry.file_sets[-1])
        raise DataError(f"{name}: nobody serves it in this form; put into {target} {steps}")
    return [_get_file(file, target, progress, base_url) for file in entry.downloads]


def _get_file(
    file: SourceFile, target: Path, progress: Progress | None, base_url: str | None
) -> Path:
    # Slow to import, and needed only here.
    import http.client  # noqa: PLC0415
    import ssl  # noqa: PLC0415
    import urllib.error  # noqa: PLC0415

    network_errors = (
        *(urllib.error.URLError, http.client.HTTPException, ssl.SSLError),
        *(ConnectionError, TimeoutError),
    )
    present = find(file, (target,))
    if present and _is_good(present, file):
        return present
    path = target / file.path
    url = str(file.url) if base_url is None else f"{base_url.rstrip('/')}/{path.name}"
    # The suffix stays, since it tells archives from gzipped text.
    part = path.with_name(f".{secrets.token_hex(4)}.part-{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _stream(url, part, progress)
        read_verified(part, file.sha256)
        os.replace(part, path)
        if present and present != path:
            # A damaged twin (plain or .gz) would hide the good file.
            present.unlink()
    except network_errors as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        raise DataError(f"{url}: download failed ({error}); {_advice(file, target)}") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror or error})") from error
    except DataError as error:
        raise DataError(f"{url}: {error}; nothing was kept; {_advice(file, target)}") from error
    finally:
        # What went wrong before is what to report.
        with contextlib.suppress(OSError):
            part.unlink()
    return path


def _is_good(path: Path, file: SourceFile) -> bool:
    try:
        read_verified(path, file.sha256)
    except DataError:
        return False
    return True


def _stream(url: str, part: Path, progress: Progress | None) -> None:
    import urllib.request  # noqa: PLC0415

    done = 0
    # The scheme is https in the catalog and was checked for a base_url.
    with (
        urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as response,  # noqa: S310
        part.open("xb") as sink,
    ):
        length = response.headers.get("Content-Length")
        total = int(length) if length and length.isdigit() else None
        while chunk := response.read(_CHUNK_BYTES):
            sink.write(chunk)
            done += len(chunk)
            if progress:
                progress(done, total)
    if total is not None and done != total:
        raise DataError(f"cut off after {done} of {total} bytes")


def _advice(file: SourceFile, target: Path) -> str:
    return f"by hand: put into {target} {by_hand(file)}"

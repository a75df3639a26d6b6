"""Reading whole files, and replacing files atomically."""

import glob
import gzip
import hashlib
import os
import shutil
import tempfile
import tomllib
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from pydantic import ValidationError

from securevfl.errors import DataError
from securevfl.lazy import Lazy

if TYPE_CHECKING:
    import safetensors
    from numpy.typing import NDArray
else:
    safetensors = Lazy("safetensors")

PATIENCE_SECONDS = 60.0
GZIP_MAGIC = b"\x1f\x8b"


def read_content(path: Path) -> bytes:
    """A file's content, decompressed if gzip except for archives; a DataError if that fails."""
    try:
        data = path.read_bytes()
        if data.startswith(GZIP_MAGIC) and not path.name.endswith((".tar.gz", ".tgz")):
            data = gzip.decompress(data)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: damaged gzip ({error})") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    return data


def read_arrays(path: Path) -> tuple[dict[str, str], dict[str, "NDArray[Any]"]]:
    """The metadata and arrays of a safetensors file, by name."""
    with safetensors.safe_open(path, "numpy") as file:
        return file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def sha256(path: Path) -> str:
    """SHA-256 in hex of a file, or of a folder's files in the order of their names.

    Raises:
        DataError: it cannot be read.
    """
    digest = hashlib.sha256()
    with reading(str(path)):
        files = [each for each in sorted(path.iterdir()) if each.is_file()] if path.is_dir() else []
        for each in files or [path]:
            with each.open("rb") as file:
                hashlib.file_digest(file, lambda: digest)
    return digest.hexdigest()


def toml_tables(text: str) -> dict[str, Any]:
    """The tables of a TOML file; a TOMLDecodeError if it is none, or nested too deeply."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise tomllib.TOMLDecodeError("nested too deeply") from None


@contextmanager
def reading(what: str, *, verb: str = "is") -> Iterator[None]:
    """Convert errors of reading `what` to DataError."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{what} cannot be read: {error.strerror}") from error
    except (safetensors.SafetensorError, ValidationError, KeyError) as error:
        raise DataError(f"{what} {verb} damaged") from error


def content_if_there(path: Path, what: str) -> bytes | None:
    """A file's bytes, or None where there is none; a DataError if it cannot be read."""
    with reading(f"{what} {path}"), suppress(FileNotFoundError):
        return path.read_bytes()
    return None


@contextmanager
def only_one(path: Path, what: str) -> Iterator[None]:
    """Lock a file, which need not exist, against other processes.

    Raises:
        DataError: another process holds the lock for a minute, or the folder cannot be written.
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


def replace_file(path: Path, data: bytes, what: str, *, durable: bool = True) -> None:
    """Write `data` to `path` atomically, see `replacing`."""
    with replacing(path, what, durable=durable) as file:
        file.write(data)


@contextmanager
def replacing(path: Path, what: str, *, durable: bool = True) -> Iterator[BinaryIO]:
    """Write a file that takes the place of `path` when this ends without an exception.

    Its folder is created if necessary; `what` is for errors. If `durable`, the new file outlives a
    power cut from then on. Otherwise one may leave it empty.

    Raises:
        DataError: it cannot be written (no space, no permission); the old file is unchanged.
    """
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
        with os.fdopen(handle, "wb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(handle)
        Path(temporary).replace(path)
        temporary = None
        if durable:
            sync_folder(path.parent)
    except OSError as error:
        raise DataError(f"{what} {path} cannot be written: {error.strerror}") from error
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def private_folder(path: Path, what: str) -> None:
    """Create a folder, with those above it that are missing, which only this user may enter.

    Raises:
        DataError: it cannot be created.
    """
    try:
        for each in reversed([path, *path.parents]):
            each.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise DataError(f"{what} {error.filename} cannot be made: {error.strerror}") from error


def remove_unfinished(path: Path) -> None:
    """Remove temporary files of `replace_file` that dead processes left for `path`."""
    for each in path.parent.glob(f".{glob.escape(path.name)}-*"):
        each.unlink(missing_ok=True)


def wipe_file(path: Path) -> None:
    """Overwrite a file with zeros and flush it to disk.

    A file system with copy-on-write, or flash memory, may keep the old blocks until it reuses them.
    """
    with path.open("r+b", buffering=0) as file:
        file.write(bytes(path.stat().st_size))
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Flush creations, renames and deletions in a folder to disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def require_room(sizes: Mapping[Path, int], what: str) -> None:
    """Check before work that files of these sizes, in bytes, can be written after it.

    Tries it, as permissions say little (root may write to /proc), and leaves nothing behind.

    Raises:
        DataError: a folder cannot be created or written, has too little free space, or a path is a
            folder itself.
    """
    for folder in {path.parent for path in sizes}:
        needed = sum(size for path, size in sizes.items() if path.parent == folder)
        try:
            free = _free_bytes(folder)
        except OSError as error:
            raise DataError(f"{what} {folder} cannot be written to: {error.strerror}") from error
        if free < needed:
            raise DataError(
                f"{what} {folder}: {needed / 1e6:.3g} MB will be written and {free / 1e6:.3g} MB "
                "are free"
            )
    for path in sizes:
        if path.is_dir():
            raise DataError(f"{what} {path} is a folder")


def _free_bytes(folder: Path) -> int:
    """Free space in a folder that can be written, which is created temporarily if missing."""
    made: list[Path] = []
    try:
        for each in reversed([folder, *folder.parents]):
            if not each.exists():
                each.mkdir()
                made.append(each)
        with tempfile.TemporaryFile(dir=folder):
            return shutil.disk_usage(folder).free
    finally:
        for each in reversed(made):
            each.rmdir()

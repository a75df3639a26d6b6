import gzip
import hashlib
import os
import resource
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import filelock
import pytest
from filelock import FileLock

from securevfl import files
from securevfl.errors import DataError
from securevfl.files import (
    only_one,
    private_folder,
    read_content,
    replace_file,
    require_room,
    sha256,
)


def test_a_file_is_written_with_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file"
    replace_file(path, b"content", "result")
    assert path.read_bytes() == b"content"
    replace_file(path, b"new", "result")
    assert path.read_bytes() == b"new"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("durable", [True, False])
def test_a_file_is_on_disk_before_it_takes_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    """Else a power cut may leave it empty; its folder's entry is on disk, too."""
    path, done = tmp_path / "file", list[str]()
    sync, replace = os.fsync, Path.replace

    def synced(handle: int) -> None:
        done.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        assert done != ["file"] or os.fstat(handle).st_size == len(b"content")
        sync(handle)

    def replaced(self: Path, target: Path) -> Path:
        done.append("replaced")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    replace_file(path, b"content", "result", durable=durable)
    assert done == (["file", "replaced", "folder"] if durable else ["replaced"])


def test_a_private_folder_is_made_with_those_above_it(tmp_path: Path) -> None:
    for _ in range(2):
        private_folder(tmp_path / "a" / "b", "state folder")
    modes = [(tmp_path / each).stat().st_mode & 0o777 for each in ("a", "a/b")]
    assert modes == [0o700, 0o700]
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DataError, match=r"state folder \S*/file cannot be made: File exists"):
        private_folder(tmp_path / "file" / "c", "state folder")


def test_a_write_that_stops_halfway_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    path = tmp_path / "file"
    replace_file(path, b"old", "result")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(DataError, match=r"result .*file cannot be written: File too large"):
            replace_file(path, bytes(2 << 20), "result")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_where_the_folder_should_be_is_reported(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"")
    with pytest.raises(DataError, match=r"result .*cannot be written"):
        replace_file(tmp_path / "plain" / "file", b"x", "result")


def test_a_folder_where_the_file_should_be_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file" / "inside").mkdir(parents=True)
    with pytest.raises(DataError, match=r"result .*file cannot be written: Is a directory"):
        replace_file(tmp_path / "file", b"x", "result")
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_an_interrupt_while_writing_leaves_the_old_file_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    replace_file(path, b"old", "result")

    def interrupted(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        replace_file(path, b"new", "result")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_only_one_reads_and_replaces_a_record_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "new" / "record"

    def add(_: int) -> None:
        with only_one(path, "record"):
            count = int(path.read_bytes()) if path.exists() else 0
            time.sleep(0.001)
            replace_file(path, str(count + 1).encode(), "record")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(40)))
    assert path.read_bytes() == b"40"


def test_a_record_that_another_job_holds_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "PATIENCE_SECONDS", 0.05)
    with (
        only_one(tmp_path / "record", "record"),
        pytest.raises(DataError, match="another job holds it"),
        only_one(tmp_path / "record", "record"),
    ):
        pytest.fail("two hold it")


def test_a_record_whose_folder_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(DataError, match=r"record .*cannot be written: File exists"),
        only_one(tmp_path / "file" / "record", "record"),
    ):
        pytest.fail("nobody can hold it")


def test_a_record_is_free_again_after_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "PATIENCE_SECONDS", 0.0)
    locks = []

    # A lock that nothing refers to any more frees itself; nothing may count on that.
    def kept(path: Path) -> FileLock:
        locks.append(FileLock(path))
        return locks[-1]

    with monkeypatch.context() as patch:
        patch.setattr(filelock, "FileLock", kept)
        with pytest.raises(ValueError, match="half of it"), only_one(tmp_path / "record", "record"):
            raise ValueError("half of it")
    assert len(locks) == 1
    with only_one(tmp_path / "record", "record"):
        pass


def test_gzip_is_opened_by_its_content_whatever_the_name(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(gzip.compress(b"text"))
    (tmp_path / "b.gz").write_bytes(b"text")
    assert read_content(tmp_path / "a") == read_content(tmp_path / "b.gz") == b"text"


def test_an_archive_is_not_opened(tmp_path: Path) -> None:
    archive = gzip.compress(b"tar")
    (tmp_path / "a.tar.gz").write_bytes(archive)
    assert read_content(tmp_path / "a.tar.gz") == archive


@pytest.mark.parametrize("damage", ["cut", "flip"])
def test_damaged_gzip_is_refused(tmp_path: Path, damage: str) -> None:
    data = bytearray(gzip.compress(b"text" * 99))
    if damage == "cut":
        data = data[:-9]
    else:
        data[-6] ^= 1
    (tmp_path / "a.gz").write_bytes(data)
    with pytest.raises(DataError, match=r"a\.gz: damaged gzip"):
        read_content(tmp_path / "a.gz")


def test_a_file_that_cannot_be_read_is_a_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        read_content(tmp_path)
    with pytest.raises(DataError, match="No such file"):
        read_content(tmp_path / "none")


def test_room_is_asked_for_before_work(tmp_path: Path) -> None:
    require_room({tmp_path / "new" / "result": 1000}, "result folder")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(DataError, match=r"MB will be written and .* MB are free"):
        require_room({tmp_path / "result": 1 << 60}, "result folder")
    with pytest.raises(DataError, match=f"result folder {tmp_path} is a folder"):
        require_room({tmp_path: 1}, "result folder")


def test_a_folder_has_the_hash_of_its_files_alone(tmp_path: Path) -> None:
    """File managers and editors leave folders in it."""
    for name in ("b", "a"):
        (tmp_path / name).write_text(name)
    alone = sha256(tmp_path)
    assert alone == hashlib.sha256(b"ab").hexdigest()
    (tmp_path / ".hidden").mkdir()
    assert sha256(tmp_path) == alone
    with pytest.raises(DataError, match=r"gone cannot be read: No such file"):
        sha256(tmp_path / "gone")

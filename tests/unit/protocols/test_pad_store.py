"""Pads at rest: for their owner and job alone, given out once, and the same of all parties."""

import gc
import os
import shutil
import stat
import tracemalloc
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
from numpy.typing import NDArray

from securevfl.errors import ConfigError, DataError, PeerViolation
from securevfl.models.losses import loss_for
from securevfl.protocols.session import pad_store
from securevfl.protocols.session.gathering import Party
from securevfl.protocols.session.pad_store import (
    MAGIC,
    NamePads,
    Pads,
    PadsHeader,
    PadStore,
    agree_on_pads,
)
from securevfl.runtime.channel import Channel
from securevfl.runtime.costs import Costs
from securevfl.runtime.line import PRESETS
from securevfl.runtime.simulation import Tamper, simulate
from tests.tampering import changed

JOB, OTHER_JOB = "ab" * 32, "cd" * 32
BATCH, OTHER_BATCH = "01" * 16, "02" * 16
PARTIES = ("bank", "shop")
DATA = "rows and columns"


class Killed(BaseException):
    """As good as kill -9: nothing may catch it."""


COSTS = {"correlated_randomness": 1.5}
RECORDS: list[dict[str, NDArray[Any]]] = [
    {"w": np.arange(12, dtype=np.uint64).reshape(3, 4) + np.uint64(2**63)},
    {"empty": np.zeros((0, 4), np.uint64), "sine": np.full((2, 3, 4), 7, np.uint64)},
    {"w": np.arange(7, dtype=np.int64), "x": np.arange(3.0)},
]


def header_of(batch: str = BATCH) -> PadsHeader:
    return PadsHeader(
        batch=batch, job_hash=JOB, party="bank", parties=PARTIES, first_round=0, rounds=3
    )


def keep(store: PadStore, batch: str = BATCH) -> None:
    with store.keep(header_of(batch), DATA, lambda: COSTS) as add:
        for each in RECORDS:
            add(each)


class Place:
    """A folder, its keys elsewhere, and the stores of the parties in it."""

    def __init__(self, root: Path) -> None:
        self.folder, self.keys = root / "models" / "pads", root / "state" / "pad-keys"

    def store(self, party: str = "bank") -> PadStore:
        return PadStore(self.folder, self.keys, party)

    def take(self, party: str = "bank", batch: str = BATCH, data: str = DATA) -> Pads:
        return self.store(party).take(batch, JOB, PARTIES, data)

    @property
    def key(self) -> Path:
        return self.keys / "bank" / f"{BATCH}.key"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def kept(place: Place) -> Place:
    keep(place.store())
    return place


def test_they_come_back_as_they_were(kept: Place) -> None:
    assert kept.store().usable(JOB, PARTIES) == header_of()
    taken = kept.take()
    assert taken.header == header_of()
    assert taken.costs == COSTS
    for given, found in zip(RECORDS, taken.records, strict=True):
        assert found.keys() == given.keys()
        for name, values in given.items():
            assert found[name].dtype == values.dtype
            np.testing.assert_array_equal(found[name], values)


def test_one_record_is_in_memory_at_a_time(place: Place) -> None:
    size, rounds = 1 << 21, 20
    tracemalloc.start()
    with place.store().keep(header_of(), DATA, lambda: COSTS) as add:
        for each in range(rounds):
            add({"w": np.full(size >> 3, each)})
    found = [int(each["w"][0]) for each in place.take().records]
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found == list(range(rounds))
    assert most < 8 * size


def test_none_are_there_before_the_last_is_written(place: Place) -> None:
    with place.store().keep(header_of(), DATA, lambda: COSTS) as add:
        add(RECORDS[0])
        assert not place.store().there
        assert not place.key.exists()
    assert place.store().there


def test_pads_whose_making_fails_leave_nothing(place: Place, tmp_path: Path) -> None:
    def die() -> dict[str, float]:
        raise Killed

    with pytest.raises(Killed), place.store().keep(header_of(), DATA, die) as add:
        add(RECORDS[0])
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_what_a_dead_process_left_half_written_goes(kept: Place) -> None:
    kept.take()
    kept.folder.mkdir(exist_ok=True)
    left = kept.folder / ".bank.pads-abc"
    left.write_bytes(b"sealed")
    keep(kept.store(), OTHER_BATCH)
    assert not left.exists()


def pieces_of(place: Place) -> tuple[bytes, list[bytes]]:
    """What stands before the records of a file of pads, and these with their lengths."""
    whole = place.store().path.read_bytes()
    at = start = len(MAGIC) + 4 + int.from_bytes(whole[len(MAGIC) :][:4], "little")
    found = []
    while at < len(whole):
        end = at + 8 + int.from_bytes(whole[at:][:8], "little")
        found.append(whole[at:end])
        at = end
    return whole[:start], found


def damaged_orders(count: int) -> Iterator[list[int]]:
    """Records swapped, repeated, left out, and cut off."""
    every = list(range(count))
    for at in range(count):
        yield from ([*every[:at], other, *every[at + 1 :]] for other in every if other != at)
        yield [*every[:at], at, *every[at:]]
        yield [*every[:at], *every[at + 1 :]]
        yield every[:at]
    yield from ([*every[:at], at + 1, at, *every[at + 2 :]] for at in range(count - 1))


def test_records_moved_repeated_or_cut_are_refused_before_the_key_goes(kept: Place) -> None:
    start, records = pieces_of(kept)
    assert len(records) == len(RECORDS) + 1
    for order in damaged_orders(len(records)):
        kept.store().path.write_bytes(start + b"".join(records[each] for each in order))
        with pytest.raises(DataError, match="cut off"):
            kept.take()
    kept.store().path.write_bytes(start + b"".join(records))
    kept.take()


def test_records_of_another_file_are_refused(kept: Place) -> None:
    path = kept.store().path
    start, records = pieces_of(kept)
    key = kept.key.read_bytes()
    path.unlink()
    keep(kept.store())
    kept.key.write_bytes(key)
    other_start, others = pieces_of(kept)
    assert other_start == start
    for at in range(len(records)):
        path.write_bytes(start + b"".join([*records[:at], others[at], *records[at + 1 :]]))
        with pytest.raises(DataError, match="another key"):
            kept.take()


def test_records_that_change_after_they_were_taken_are_never_given_out(place: Place) -> None:
    with place.store().keep(header_of(), DATA, lambda: COSTS) as add:
        add(RECORDS[0])
        add({"w": np.zeros(1 << 19)})
    with place.store().path.open("r+b") as file:
        taken = place.take()
        np.testing.assert_array_equal(next(taken.records)["w"], RECORDS[0]["w"])
        file.seek(3 << 20)
        file.write(bytes(8))
    with pytest.raises(DataError, match="damaged"):
        next(taken.records)


def test_file_and_key_are_apart_and_for_their_owner_alone(kept: Place) -> None:
    for path in (kept.store().path, kept.key):
        assert stat.S_IMODE(path.stat().st_mode) == stat.S_IRUSR | stat.S_IWUSR
    key, sealed = kept.key.read_bytes(), kept.store().path.read_bytes()
    assert key not in sealed
    assert RECORDS[0]["w"].tobytes()[:16] not in sealed
    assert DATA.encode() not in sealed


def test_keys_within_the_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not within"):
        PadStore(tmp_path / "pads", tmp_path / "pads" / "keys", "bank")
    (tmp_path / "pads").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "pads")
    with pytest.raises(ConfigError, match="not within"):
        PadStore(tmp_path / "pads", tmp_path / "link", "bank")


def test_every_file_has_a_key_of_its_own(kept: Place) -> None:
    other = Place(kept.folder.parent / "elsewhere")
    keep(other.store())
    assert other.key.read_bytes() != kept.key.read_bytes()


def test_they_are_taken_once(kept: Place) -> None:
    kept.take()
    assert not kept.store().path.exists()
    assert not kept.key.exists()
    assert not any(b"".join(path.read_bytes() for path in kept.key.parent.iterdir()))
    with pytest.raises(DataError, match="no such file"):
        kept.take()


def test_copies_put_back_are_refused(kept: Place, tmp_path: Path) -> None:
    path = kept.store().path
    shutil.copy(path, tmp_path / "pads copy")
    shutil.copy(kept.key, tmp_path / "key copy")
    kept.take()
    path.parent.mkdir(exist_ok=True)
    shutil.copy(tmp_path / "pads copy", path)
    with pytest.raises(DataError, match="taken already"):
        kept.take()
    shutil.copy(tmp_path / "key copy", kept.key)
    with pytest.raises(DataError, match="taken already"):
        kept.take()
    with pytest.raises(DataError, match="taken already"):
        kept.store().usable(JOB, PARTIES)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    ("module", "dies_in"),
    [(pad_store, "wipe_file"), (Path, "rename"), (pad_store, "sync_folder"), (Path, "unlink")],
)
def test_killed_while_taking_nobody_has_them_twice(
    kept: Place, monkeypatch: pytest.MonkeyPatch, module: object, dies_in: str, *, after: bool
) -> None:
    """Killed before and after each of the steps in which a key and a file go."""
    step = getattr(module, dies_in)

    def die(*args: object, **kwargs: object) -> None:
        if after:
            step(*args, **kwargs)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(module, dies_in, die)
        with pytest.raises(Killed):
            kept.take()
    assert kept.store().path.exists() is not ((dies_in, after) == ("unlink", True))
    if (dies_in, after) == ("wipe_file", False):
        kept.take()  # nothing had happened yet
        return
    with pytest.raises(DataError, match=r"taken already|no such file"):
        kept.take()
    kept.store().discard()
    keep(kept.store(), OTHER_BATCH)
    kept.take(batch=OTHER_BATCH)


def test_the_key_is_gone_on_disk_before_pads_are_given_out(
    kept: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def noted(module: object, name: str) -> None:
        step: Callable[..., object] = getattr(module, name)

        def note(*args: object, **kwargs: object) -> object:
            done.append(name)
            return step(*args, **kwargs)

        monkeypatch.setattr(module, name, note)

    noted(os, "fsync")
    noted(Path, "rename")
    noted(Path, "unlink")
    kept.take()
    assert done == ["fsync", "rename", "fsync", "unlink"]


def test_of_two_at_once_one_has_them(kept: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have read key and file before either destroys the key."""
    first, check = kept.store(), PadStore._check

    def checked(store: PadStore, file: BinaryIO, key: bytes, data: str) -> Mapping[str, float]:
        costs = check(store, file, key, data)
        if store is not first:
            monkeypatch.setattr(PadStore, "_check", check)
            first.take(BATCH, JOB, PARTIES, DATA)
        return costs

    monkeypatch.setattr(PadStore, "_check", checked)
    with pytest.raises(DataError, match="just taken"):
        kept.take()
    assert not kept.store().path.exists()


def test_only_their_own_job_party_batch_and_data_may_take_them(kept: Place) -> None:
    store = kept.store()
    with pytest.raises(DataError, match=r"of another job, abab.* this one is cdcd"):
        store.take(BATCH, OTHER_JOB, PARTIES, DATA)
    with pytest.raises(DataError, match="other parties: bank, shop"):
        store.take(BATCH, JOB, ("shop", "bank"), DATA)
    with pytest.raises(DataError, match="batch 01010101, and the parties have agreed on 0202"):
        kept.take(batch=OTHER_BATCH)
    with pytest.raises(DataError, match="other rows or other inputs"):
        kept.take(data="other columns")
    store.path.rename(kept.folder / "shop.pads")
    with pytest.raises(DataError, match="they are 'bank''s"):
        kept.take("shop")
    (kept.folder / "shop.pads").rename(store.path)
    kept.take()  # no refusal has used them up


def test_another_machine_or_key_has_no_use_for_them(kept: Place) -> None:
    key = kept.key.read_bytes()
    kept.key.unlink()
    with pytest.raises(DataError, match="no key for them"):
        kept.take()
    for other, why in ((key[::-1], "another key"), (key[:31], "31 bytes"), (bytes(32), "taken")):
        kept.key.write_bytes(other)
        with pytest.raises(DataError, match=why):
            kept.take()
    kept.key.write_bytes(key)
    kept.take()


def test_a_damaged_or_shortened_file_is_refused_and_uses_nothing_up(kept: Place) -> None:
    path = kept.store().path
    whole = path.read_bytes()
    places = {0, len(MAGIC), len(MAGIC) + 4, len(MAGIC) + 20, len(whole) // 2, len(whole) - 1}
    damaged = [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in sorted(places)]
    shortened = [whole[:end] for end in (0, 5, len(MAGIC) + 2, 40, 300, len(whole) - 1)]
    for data in (*damaged, *shortened, whole + b"\0"):
        path.write_bytes(data)
        with pytest.raises(DataError, match=f"pads {path}"):
            kept.take()
    path.write_bytes(whole)
    kept.take()


@pytest.mark.parametrize(
    ("one", "other"), [(b'"first_round":0', b'"first_round":1'), (b'"rounds":3', b'"rounds":4')]
)
def test_a_header_that_somebody_changed_is_refused(kept: Place, one: bytes, other: bytes) -> None:
    path = kept.store().path
    whole = path.read_bytes()
    path.write_bytes(whole.replace(one, other))
    assert kept.store().header() != header_of()
    with pytest.raises(DataError, match="another key"):
        kept.take()
    path.write_bytes(whole)
    kept.take()


def test_a_header_of_hostile_size_or_text_is_refused(kept: Place) -> None:
    path = kept.store().path
    text = header_of().model_dump_json().encode()
    for hostile in (
        MAGIC + b"\xff\xff\xff\xff" + text,
        MAGIC + (1 << 17).to_bytes(4, "little") + bytes(1 << 18),
        *(
            MAGIC + len(other).to_bytes(4, "little") + other
            for other in (
                b"",
                b"[]",
                text.replace(BATCH.encode(), b"../../../../../../etc/passwd00000"),
                text.replace(b'"rounds":3', b'"rounds":0'),
                text.replace(b"}", b',"more":1}'),
            )
        ),
    ):
        path.write_bytes(hostile)
        with pytest.raises(DataError, match="pads"):
            kept.store().header()


def test_none_are_written_over(kept: Place) -> None:
    with pytest.raises(DataError, match="there are some already"):
        keep(kept.store(), OTHER_BATCH)
    kept.take()


def test_a_place_that_cannot_be_written_is_reported_before_work(
    place: Place, tmp_path: Path
) -> None:
    place.store().require_room(1000)
    assert not list(tmp_path.iterdir())
    with pytest.raises(DataError, match="MB are free"):
        place.store().require_room(10**18)
    (tmp_path / "state").write_bytes(b"")
    with pytest.raises(DataError, match="cannot be written"):
        place.store().require_room(1000)


def test_a_write_that_fails_leaves_no_key(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    replace = Path.replace

    def full(path: Path, target: Path) -> Path:
        if target.suffix == ".pads":
            raise OSError(28, os.strerror(28))
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(DataError, match="No space"):
        keep(place.store())
    assert not place.key.exists()
    assert place.store().header() is None


def test_a_key_that_cannot_be_destroyed_gives_nothing_out(
    kept: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(*args: object) -> None:
        raise OSError(30, os.strerror(30))

    with monkeypatch.context() as patch:
        patch.setattr(pad_store, "wipe_file", read_only)
        with pytest.raises(DataError, match="cannot be destroyed"):
            kept.take()
    kept.take()


def test_a_key_or_a_file_that_is_a_folder_is_reported(kept: Place) -> None:
    kept.key.unlink()
    kept.key.mkdir()
    with pytest.raises(DataError, match=r"key of pads .* cannot be read: Is a directory"):
        kept.take()
    path = kept.store().path
    path.unlink()
    path.mkdir()
    with pytest.raises(DataError, match="cannot be deleted"):
        kept.store().discard()


STATE = {"own": np.arange(6, dtype=np.uint64).reshape(2, 3), "into": np.eye(3)}


def test_states_are_sealed_for_their_party_job_and_session(place: Place) -> None:
    seal = place.store().state_seal(JOB)
    seal.renew()
    sealed = seal.seal(STATE)
    assert not any(values.tobytes() in sealed["sealed"].tobytes() for values in STATE.values())
    opened = seal.open(sealed)
    assert all(np.array_equal(opened[name], values) for name, values in STATE.items())
    (key,) = place.keys.rglob("*.state-key")
    for party, job in (("shop", JOB), ("bank", JOB[:32] + OTHER_JOB[32:])):
        other = place.keys / party / key.name
        other.parent.mkdir(exist_ok=True)
        other.write_bytes(key.read_bytes())
        with pytest.raises(DataError, match="damaged, or another party's"):
            place.store(party).state_seal(job).open(sealed)
    before = key.read_bytes()
    seal.renew()
    assert key.read_bytes() != before
    with pytest.raises(DataError, match="damaged, or another party's"):
        seal.open(sealed)


def test_the_key_of_states_is_wiped_and_gone(place: Place, tmp_path: Path) -> None:
    seal = place.store().state_seal(JOB)
    seal.renew()
    (key,) = place.keys.rglob("*.state-key")
    (tmp_path / "link").hardlink_to(key)
    seal.destroy()
    assert not any((tmp_path / "link").read_bytes())
    assert not key.exists()
    seal.destroy()
    with pytest.raises(DataError, match="no key of its shares"):
        seal.seal(STATE)
    key.mkdir()
    with pytest.raises(DataError, match=r"key of states .*: Is a directory"):
        seal.destroy()


def test_discarded_pads_are_gone_with_their_key(kept: Place, tmp_path: Path) -> None:
    path = kept.store().path
    shutil.copy(path, tmp_path / "copy")
    assert kept.store().discard()
    assert not kept.store().discard()
    assert not path.exists()
    path.parent.mkdir(exist_ok=True)
    shutil.copy(tmp_path / "copy", path)
    with pytest.raises(DataError, match="taken already"):
        kept.take()
    path.write_bytes(b"something else")
    assert kept.store().discard()


NAMES = ("bank", "shop", "club")


def agreed(*held: str | None, tamper: Tamper | None = None) -> dict[str, str]:
    """What every party gets, from what each holds."""
    names = NAMES[: len(held)]

    async def program(name: str, channel: Channel, costs: Costs) -> str:
        party = Party(channel, costs, names, "bank", loss_for("logistic", 2))
        return await agree_on_pads(party, dict(zip(names, held, strict=True))[name])

    programs = {name: partial(program, name) for name in names}
    return simulate(programs, PRESETS["lan"], tamper=tamper).results


def test_new_pads_have_a_new_name_that_all_know() -> None:
    names = [agreed(None, None, None) for _ in range(2)]
    assert all(len(set(each.values())) == 1 for each in names)
    assert names[0] != names[1]
    assert len(bytes.fromhex(names[0]["bank"])) == 16


@pytest.mark.parametrize("name", NAMES)
def test_the_new_name_follows_from_every_partys_word(name: str) -> None:
    """Who hears another word of a party than that party said has another name."""
    lies = changed(NamePads, lambda _: NamePads(made=False, name=bytes(16)), name)
    found = agreed(None, None, None, tamper=lies)
    assert all(found[name] != found[other] for other in NAMES if other != name)


def test_pads_made_offline_keep_their_name() -> None:
    assert set(agreed(BATCH, BATCH).values()) == {BATCH}


@pytest.mark.parametrize(
    ("held", "why"),
    [
        ((BATCH, None), r"(bank|this party) holds pads made offline and \w+( party)? none"),
        (
            (None, OTHER_BATCH),
            r"(shop|this party) holds pads made offline and (bank|this party) none",
        ),
        ((BATCH, OTHER_BATCH), r"holds pads 0[12]0[12]0[12]0[12], made offline, and this party 0"),
        ((BATCH, BATCH, OTHER_BATCH), "holds pads 0"),
    ],
)
def test_halves_of_different_pads_are_refused(held: tuple[str | None, ...], why: str) -> None:
    with pytest.raises(PeerViolation, match=why):
        agreed(*held)


@pytest.mark.parametrize("name", [b"", b"\1" * 15, b"\1" * 17])
def test_a_name_of_another_length_is_refused(name: bytes) -> None:
    with pytest.raises(PeerViolation, match="expected 16"):
        agreed(None, None, tamper=changed(NamePads, lambda _: NamePads(made=False, name=name)))


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="descriptors are counted on Linux")
@pytest.mark.parametrize("read", [0, 1, len(RECORDS)])
def test_pads_that_nobody_reads_on_hold_no_file_open(place: Place, read: int) -> None:
    """Nor does Python warn of the file, in whatever order it collects them."""
    keep(place.store())
    pads: list[Any] = [place.take()]
    pads += [pads, *islice(pads[0].records, read)]  # a cycle, as an exception's frames make
    assert open_files_in(place.folder) == 1
    del pads
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gc.collect()
    assert open_files_in(place.folder) == 0


def open_files_in(place: Path) -> int:
    """Descriptors of this process that lead there, also to deleted files."""
    folder, found = "/proc/self/fd", 0
    for each in os.listdir(folder):
        with suppress(FileNotFoundError):  # that of the listing itself
            found += os.readlink(f"{folder}/{each}").startswith(str(place.resolve()))
    return found

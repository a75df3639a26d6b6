import hashlib
import io
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from securevfl.data import load
from securevfl.data.catalog import CATALOG, SourceFile, load_arrays
from securevfl.data.icu2012 import (
    PARAMETERS,
    SETS,
    SUMMARY_COLUMNS,
    WINDOW_COLUMNS,
    Events,
    cached,
    fill_and_clip,
    parse_archives,
    read_events,
    summary_table,
    window_table,
)
from securevfl.errors import DataError

DESCRIPTORS = "00:00,Age,54\n00:00,Gender,0\n00:00,Height,-1\n00:00,ICUType,4\n00:00,Weight,{}\n"


def record(stay: int, lines: str = "", weight: str = "-1") -> str:
    head = f"Time,Parameter,Value\n00:00,RecordID,{stay}\n{DESCRIPTORS.format(weight)}"
    return head + lines


def tar(records: dict[str, str]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as files:
        folder = tarfile.TarInfo("set-a")
        folder.type = tarfile.DIRTYPE
        files.addfile(folder)
        for name, text in records.items():
            info = tarfile.TarInfo(f"set-a/{name}.txt")
            info.size = len(text)
            files.addfile(info, io.BytesIO(text.encode()))
    return stream.getvalue()


def zipped(records: dict[str, str]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as files:
        for name, text in records.items():
            files.writestr(f"set-a/{name}.txt", text)
    return stream.getvalue()


def outcomes(**died: int) -> bytes:
    rows = [f"{stay[1:]},6,1,5,-1,{value}\n" for stay, value in died.items()]
    header = "RecordID,SAPS-I,SOFA,Length_of_stay,Survival,In-hospital_death\n"
    return (header + "".join(rows)).encode()


def parse(text: str) -> Events:
    return parse_archives({"a": tar({"7": text})}, {"a": outcomes(r7=0)})


@pytest.mark.parametrize("pack", [tar, zipped])
def test_records_of_the_publisher_become_events(pack: Callable[[dict[str, str]], bytes]) -> None:
    archive = pack(
        {
            "9": record(9, "00:07,HR,73\n00:37,HR,77.5\n48:00,pH,7.4\n", weight="80.6"),
            "8": record(8, "00:10,,5\n00:11,,\n01:00,Urine,0\n"),
        }
    )
    events = parse_archives({"a": archive}, {"a": outcomes(r9=1, r8=0, r99=1)})
    assert events.record_id.tolist() == [8, 9]
    assert events.died.tolist() == [0, 1]
    assert events.set_index.tolist() == [0, 0]
    assert events.offsets.tolist() == [0, 6, 14]
    names = [PARAMETERS[code] for code in events.parameter[6:]]
    assert names == ["Age", "Gender", "Height", "ICUType", "Weight", "HR", "HR", "pH"]
    assert events.minute[6:].tolist() == [0, 0, 0, 0, 0, 7, 37, 2880]
    assert events.value[10:].tolist() == np.array([80.6, 73, 77.5, 7.4], dtype=np.float32).tolist()
    assert events.value[:6].tolist() == [54, 0, -1, 4, -1, 0]


def test_sets_follow_each_other() -> None:
    events = parse_archives(
        {"b": tar({"1": record(1)}), "a": tar({"2": record(2)})},
        {"a": outcomes(r2=0), "b": outcomes(r1=1)},
    )
    assert events.set_index.tolist() == [0, 1]
    assert events.record_id.tolist() == [2, 1]
    assert events.offsets.tolist() == [0, 5, 10]


@pytest.mark.parametrize(
    "line",
    [
        *("00:07", "00:07,HR", "00:07,HR,7,3", "7,HR,73", "00:61,HR,73", "48:01,HR,73"),
        *("00:07,Pulse,73", "00:07,HR,x", "00:07,HR,", "00:07,HR,nan"),
    ],
)
def test_a_malformed_line_is_named_with_its_file(line: str) -> None:
    archive = tar({"6": record(6, "00:01,HR,1\n"), "7": record(7, f"00:06,HR,1\n{line}\n")})
    with pytest.raises(DataError, match=r"^set-a/7\.txt, line 9: expected Time,Parameter,Value"):
        parse_archives({"a": archive}, {"a": outcomes(r6=0, r7=0)})


def npz(**changes: np.ndarray) -> bytes:
    arrays = {
        "record_id": np.array([7]),
        "set": np.array([0], dtype=np.uint8),
        "y": np.array([1], dtype=np.uint8),
        "offsets": np.array([0, 1]),
        "minute": np.array([5], dtype=np.int16),
        "parameter": np.array([14], dtype=np.uint8),
        "value": np.array([73], dtype=np.float32),
        "parameter_names": np.array(PARAMETERS),
    }
    stream = io.BytesIO()
    # The object array of one test can only be written as a pickle.
    np.savez(stream, allow_pickle=True, **(arrays | changes))
    return stream.getvalue()


def test_events_are_read_from_npz() -> None:
    events = read_events(npz(), "f")
    assert (events.record_id.tolist(), events.died.tolist()) == ([7], [1])
    assert PARAMETERS[events.parameter[0]] == "HR"


@pytest.mark.parametrize("damaged", [b"", b"PK", npz()[:-30]])
def test_a_damaged_npz_is_refused(damaged: bytes) -> None:
    with pytest.raises(DataError, match="f: damaged npz"):
        load_arrays(damaged, "f")


def test_pickled_objects_in_an_npz_are_refused() -> None:
    with pytest.raises(DataError, match="damaged npz"):
        load_arrays(npz(value=np.array([{"a": 1}], dtype=object)), "f")


def test_a_summary_has_first_last_min_max_mean_and_count() -> None:
    lines = "00:05,HR,70\n00:06,HR,90\n00:07,HR,50\n00:08,HR,66\n01:00,Weight,-1\n02:00,Weight,81\n"
    table = summary_table(parse(record(7, lines)))
    row = dict(zip(SUMMARY_COLUMNS, table[0].tolist(), strict=True))
    kinds = ("first", "last", "min", "max", "mean", "count")
    assert [row[f"HR_{kind}"] for kind in kinds] == [70, 66, 50, 90, 69, 4]
    assert [row[f"Weight_{kind}"] for kind in kinds] == [81, 81, 81, 81, 81, 1]
    assert (row["Age"], row["ICUType"]) == (54, 4)
    assert np.isnan([row["Height"], row["Weight"], row["pH_mean"]]).all()
    assert row["pH_count"] == 0
    assert table.shape == (1, 227)


def test_windows_have_the_statistics_of_scipy() -> None:
    rng = np.random.default_rng(1)
    minutes = np.sort(rng.integers(0, 2881, 40))
    values = rng.integers(40, 120, 40)
    lines = "".join(
        f"{m // 60:02}:{m % 60:02},HR,{v}\n" for m, v in zip(minutes, values, strict=True)
    )
    table = window_table(parse(record(7, lines)))
    row = dict(zip(WINDOW_COLUMNS, table[0].tolist(), strict=True))
    assert len(WINDOW_COLUMNS) == len(row) == table.shape[1] == 714
    for start, end in ((0, 2881), (0, 288), (0, 720), (0, 1440), (2592, 2881), (2160, 2881)):
        inside = values[(minutes >= start) & (minutes < end)].astype(float)
        expected = [
            inside.mean(),
            inside.min(),
            inside.max(),
            inside.std(),
            stats.skew(inside),
            inside.size,
        ]
        names = [f"HR_{start}-{end}_{s}" for s in ("mean", "min", "max", "std", "skew", "count")]
        assert np.allclose([row[name] for name in names], expected, rtol=1e-6)


def test_a_constant_series_has_no_deviation_and_no_skew_and_an_empty_window_no_values() -> None:
    table = window_table(parse(record(7, "00:05,Temp,36.6\n00:06,Temp,36.6\n00:07,Temp,36.6\n")))
    row = dict(zip(WINDOW_COLUMNS, table[0].tolist(), strict=True))
    assert (row["Temp_0-2881_std"], row["Temp_0-2881_skew"], row["Temp_0-2881_count"]) == (0, 0, 3)
    assert row["Temp_2592-2881_count"] == 0
    statistics = ("mean", "min", "max", "std", "skew")
    assert np.isnan([row[f"Temp_2592-2881_{each}"] for each in statistics]).all()


def test_a_built_table_is_kept_and_follows_its_sources(no_places: Path) -> None:
    built = []

    def build() -> dict[str, np.ndarray]:
        built.append(1)
        return {"X": np.arange(3.0)}

    for _ in range(2):
        assert cached("t", ["hash"], build)["X"].tolist() == [0, 1, 2]
    assert len(built) == 1
    cached("t", ["other"], build)
    cached("u", ["hash"], build)
    assert len(built) == 3
    assert [path.suffix for path in (no_places / "built").iterdir()] == [".npz"] * 3


def test_a_damaged_cache_file_is_named(no_places: Path) -> None:
    cached("t", ["hash"], lambda: {"X": np.zeros(1)})
    (path,) = (no_places / "built").iterdir()
    path.write_bytes(b"PK")
    with pytest.raises(DataError, match=f"{path.name}: damaged npz"):
        cached("t", ["hash"], lambda: {"X": np.zeros(1)})


def test_a_cache_that_cannot_be_written_is_no_error(no_places: Path) -> None:
    no_places.write_text("a file, not a folder")
    assert cached("t", ["hash"], lambda: {"X": np.zeros(1)})["X"].size == 1


def test_missing_values_become_the_training_median() -> None:
    values = np.array([[1.0], [2.0], [np.nan], [3.0], [np.nan], [2.5]])
    filled = fill_and_clip(values, np.arange(6) > 3)
    assert filled[[2, 4, 5], 0].tolist() == [2.0, 2.0, 2.5]


def test_a_column_never_measured_in_training_is_zero() -> None:
    values = np.array([[np.nan], [np.nan], [np.nan], [7.0], [np.nan]])
    assert fill_and_clip(values, np.arange(5) > 2).tolist() == [[0.0]] * 5


def test_values_are_clipped_to_the_training_percentiles() -> None:
    values = np.array([*np.arange(1001.0), -9.0, 500.0, 1e9])[:, None]
    clipped = fill_and_clip(values, np.arange(1004) > 1000)[:, 0]
    assert clipped[1001:].tolist() == [5.0, 500.0, 995.0]
    assert (clipped[:1001].min(), clipped[:1001].max()) == (5.0, 995.0)


def archives_of(events: Events, stays: np.ndarray) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """The publisher's archives and outcomes of some stays, written from their events."""
    archives, deaths = {}, {}
    for number, letter in enumerate(SETS):
        chosen = stays[events.set_index[stays] == number]
        texts = {}
        for i in chosen[::-1]:
            rows = range(events.offsets[i], events.offsets[i + 1])
            lines = [
                f"{events.minute[j] // 60:02}:{events.minute[j] % 60:02},"
                f"{PARAMETERS[events.parameter[j]]},{events.value[j]}"
                for j in rows
            ]
            stay = events.record_id[i]
            texts[str(stay)] = "\n".join(
                ["Time,Parameter,Value", f"00:00,RecordID,{stay}", *lines, ""]
            )
        archives[letter] = tar(texts)
        died = {f"r{events.record_id[i]}": int(events.died[i]) for i in chosen}
        deaths[letter] = outcomes(**died)
    return archives, deaths


def test_real_stays_come_back_from_the_publishers_format_and_give_the_summary_file(
    real_file: Callable[[str], Path], no_places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = read_events(real_file("icu2012/icu2012_events.npz").read_bytes(), "events")
    summary = load_arrays(real_file("icu2012/icu2012_summary.npz").read_bytes(), "summary")
    assert tuple(summary["feature_names"].tolist()) == SUMMARY_COLUMNS
    stays = np.arange(0, 12000, 40)
    archives, deaths = archives_of(events, stays)
    parsed = parse_archives(archives, deaths)
    rows = np.concatenate([np.arange(*events.offsets[i : i + 2]) for i in stays])
    for name in ("minute", "parameter", "value"):
        assert np.array_equal(getattr(parsed, name), getattr(events, name)[rows])
    for name in ("record_id", "set_index", "died"):
        assert np.array_equal(getattr(parsed, name), getattr(events, name)[stays])
    assert np.array_equal(summary_table(parsed), summary["X"][stays], equal_nan=True)

    files = []
    for letter in SETS:
        contents = {f"set-{letter}.tar.gz": archives, f"Outcomes-{letter}.txt": deaths}
        for file, by_set in contents.items():
            path = no_places / "data" / "icu2012" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(by_set[letter])
            pin = hashlib.sha256(by_set[letter]).hexdigest()
            files.append(SourceFile(f"icu2012/{file}", pin))
    for name, shapes in (("icu2012", [95, 132]), ("icu2012-714", [336, 378])):
        entry = replace(CATALOG[name], file_sets=(*CATALOG[name].file_sets[:-1], tuple(files)))
        monkeypatch.setitem(CATALOG, name, entry)
        first, again = load(name), load(name)
        assert [party.train.shape for party in first.parties] == [(200, size) for size in shapes]
        assert first.test_labels.tolist() == events.died[stays[200:]].tolist()
        for party, twin in zip(first.parties, again.parties, strict=True):
            assert np.array_equal(party.train, twin.train)

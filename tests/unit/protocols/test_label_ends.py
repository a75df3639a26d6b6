"""How final models are counted against the entropy of labels."""

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from securevfl.errors import LabelLeakRefused
from securevfl.protocols.blind.fixed_point import REVEALED_BITS
from securevfl.protocols.guards.label_ends import BITS, label_bits, visited
from securevfl.protocols.guards.person_record import RUNS, PersonRecord
from securevfl.protocols.plan import Plan
from tests.plans import plan_of
from tests.unit.protocols.test_label_guard import COMMITTED, counted, guarded

OTHER = COMMITTED[::-1]


def blind(rows: int = 4000, parties: int = 2, **job: Any) -> Plan:  # noqa: ANN401
    return plan_of(
        parties=parties, rows=rows, job={"rounds": 2, **job}, exchange={"scheme": "blind"}
    )


def numbers(directory: Path, plan: Plan, commitment: bytes = COMMITTED, /, **more: Any) -> float:  # noqa: ANN401
    """The most that have been told of anybody, once the job is counted, times its rows."""
    record = counted(directory, plan, {"shop": commitment}, **more)
    return float(record.ends.max() * plan.facts.rows)


def test_the_entropy_of_labels_is_that_of_whether_they_are_the_commonest() -> None:
    assert label_bits(np.repeat([0, 1], 5)) == 1
    assert label_bits(np.repeat([0, 1], [114, 6])) == pytest.approx(0.2864, abs=1e-4)
    assert label_bits(np.repeat([1, 0], [114, 6])) == pytest.approx(0.2864, abs=1e-4)
    assert label_bits(np.repeat([0, 1, 2], [60, 30, 10])) == pytest.approx(0.971, abs=1e-3)
    assert label_bits(np.zeros(5, np.int64)) == 0
    targets = np.arange(120.0)
    assert label_bits(targets) == 1
    assert label_bits(np.where(targets < 114, 0, targets)) == pytest.approx(0.2864, abs=1e-4)


def test_numbers_may_have_as_many_bits_as_labels_and_no_more(tmp_path: Path) -> None:
    assert numbers(tmp_path / "a", blind(2 * BITS), columns=2) == pytest.approx(2)
    with pytest.raises(
        LabelLeakRefused, match=r"at most 1 of peers pass.*, or 40 rows as balanced"
    ):
        numbers(tmp_path / "b", blind(2 * BITS - 2), columns=2)
    with pytest.raises(LabelLeakRefused, match=r"have 18, and could be read; take more rows"):
        numbers(tmp_path / "c", blind(18))
    rare = (np.arange(2 * BITS) < 4).astype(np.int64)
    with pytest.raises(LabelLeakRefused, match="have 19, and could be read"):
        numbers(tmp_path / "d", blind(2 * BITS), targets=rare)
    assert not list(tmp_path.glob("[bcd]/*.safetensors"))


def test_a_job_that_allows_the_leak_is_remembered(tmp_path: Path) -> None:
    few = blind(2 * BITS - 2, allow_label_leak=True)
    assert numbers(tmp_path, few, columns=2) == pytest.approx(2)
    with pytest.raises(LabelLeakRefused, match="an earlier job as it was"):
        numbers(tmp_path, blind(2 * BITS - 2), columns=1)


def test_only_rows_that_some_round_takes_count(tmp_path: Path) -> None:
    half: dict[str, Any] = {"batch_size": 2000, "local_steps": 2, "learning_rate": 0.1}
    for rounds, rows in ((1, visited(blind(rounds=1, **half))), (10, np.arange(4000))):
        plan = blind(rounds=rounds, **half)
        record = counted(tmp_path / str(rounds), plan, {"shop": COMMITTED}, columns=4)
        assert np.count_nonzero(record.ends) == len(rows)
        assert record.ends.max() == pytest.approx(4 / len(rows))
    with pytest.raises(LabelLeakRefused, match=r"labels of (19|20)\d\d rows"):
        numbers(tmp_path, blind(rounds=1, **half), columns=110)
    numbers(tmp_path, blind(rounds=10, **half), columns=110)


def test_ten_jobs_of_other_settings_on_many_people_pass(tmp_path: Path) -> None:
    """14 columns and one of the label party: fifteen numbers fix all ends of the same labels."""
    for place in range(10):
        found = numbers(tmp_path, blind(5000, l2=0.1 + place), columns=14)
        assert found == pytest.approx(14 if place == 0 else 15)


@pytest.mark.parametrize(
    "change", ["columns of a peer", "own columns", "scaling", "labels", "people", "peers"]
)
def test_what_an_end_follows_from_names_it(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but the job's hash would tell the second from the first, which is the same here."""
    monkeypatch.setattr(Plan, "hash", b"0" * 32)
    labels = np.arange(4000) % 2
    first = numbers(tmp_path, blind(), targets=labels, columns=4)
    assert first == numbers(tmp_path, blind(), targets=labels, columns=4) == pytest.approx(4)
    if change == "peers":
        record = counted(tmp_path, blind(parties=3), {"shop": COMMITTED, "lab": OTHER}, columns=4)
        assert record.ends.max() * 4000 == pytest.approx(12)
        return
    later: dict[str, tuple[Plan, bytes, dict[str, Any]]] = {
        "columns of a peer": (blind(), OTHER, {"targets": labels}),
        "own columns": (blind(), COMMITTED, {"targets": labels, "values": np.arange(4000.0) / 3}),
        "scaling": (blind(standardize=False), COMMITTED, {"targets": labels}),
        "labels": (blind(), COMMITTED, {"targets": np.where(np.arange(4000) < 100, 1, labels)}),
        "people": (blind(3800), COMMITTED, {"targets": labels[:3800]}),
    }
    plan, commitment, more = later[change]
    found = numbers(tmp_path, plan, commitment, **more, columns=4)
    assert found == pytest.approx(4 + 4 * plan.facts.rows / 4000)


def test_other_batches_of_the_same_people_are_other_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many, whose columns at the label party are all alike."""
    monkeypatch.setattr(Plan, "hash", b"0" * 32)
    one: dict[str, Any] = {"batch_size": 100, "local_steps": 2, "learning_rate": 0.1, "rounds": 1}
    plans = [blind(seed=seed, **one) for seed in range(20)]
    first, second = next(
        (plan, other)
        for plan, other in combinations(plans, 2)
        if len(visited(plan)) == len(visited(other)) and (visited(plan) != visited(other)).any()
    )
    numbers(tmp_path, first, values=np.zeros(4000))
    record = counted(tmp_path, second, {"shop": COMMITTED}, values=np.zeros(4000))
    assert np.count_nonzero(record.ends) == 2 * len(visited(first))


def test_without_commitments_every_run_counts_but_one_that_goes_on(tmp_path: Path) -> None:
    assert numbers(tmp_path, blind(), b"", columns=4) == pytest.approx(4)
    assert numbers(tmp_path, blind(), b"", columns=4, resumes=True) == pytest.approx(4)
    assert [numbers(tmp_path, blind(), b"", columns=4) for _ in range(2)] == pytest.approx([8, 12])


def test_so_many_runs_of_a_job_count_as_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert REVEALED_BITS + np.log2(RUNS) <= BITS
    monkeypatch.setattr("securevfl.protocols.guards.person_record.RUNS", 3)
    found = [numbers(tmp_path, blind(), columns=4) for _ in range(7)]
    assert found == pytest.approx([4, 4, 8, 8, 8, 12, 12])


def test_what_is_forgotten_counts_again(tmp_path: Path) -> None:
    for _ in range(2):
        assert numbers(tmp_path, blind(), columns=4) == pytest.approx(4)
        with PersonRecord.changed(tmp_path / "labels.safetensors") as record:
            record.forget("people")


def test_a_record_from_before_ends_were_counted_has_none(tmp_path: Path) -> None:
    path = tmp_path / "labels.safetensors"
    counted(tmp_path, guarded(), {"shop": COMMITTED})
    with safe_open(path, "np") as file:
        header = json.loads(file.metadata()["seen"])
    arrays = load_file(path)
    del arrays["ends"], arrays["visits"], header["told"], header["visited"]
    save_file(arrays, path, {"seen": json.dumps(header)})
    assert numbers(tmp_path, blind(), columns=4) == pytest.approx(4)


def test_blind_is_named_only_where_it_passes(tmp_path: Path) -> None:
    batches = guarded(4000, batch_size=2000, rounds=10)
    with pytest.raises(LabelLeakRefused, match="scheme = 'blind' reveals no gradient"):
        counted(tmp_path, batches, {"shop": b""}, columns=200)
    with pytest.raises(LabelLeakRefused) as refused:
        counted(tmp_path, batches, {"shop": b""}, columns=201)
    assert "blind" not in str(refused.value)


def test_columns_without_commitments_are_others_in_another_job(tmp_path: Path) -> None:
    counted(tmp_path, blind(l2=0.1), {"shop": b""}, columns=4)
    record = counted(tmp_path, blind(l2=0.2), {"shop": b""}, columns=4)
    assert sorted(record.columns["shop"].values()) == [4, 4]

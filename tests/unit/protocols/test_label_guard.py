from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from securevfl.data.tables import PartyTable
from securevfl.errors import DataError, LabelLeakRefused
from securevfl.models.local_model import Network
from securevfl.protocols.guards.label_guard import commitments, require_guard
from securevfl.protocols.guards.person_record import PersonRecord
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.agreement import COMMITMENT_BYTES
from securevfl.protocols.session.privacy_account import LeakageCount, batch_digest
from tests.plans import agreement_of, plan_of


def rows(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


def count(outputs: int = 1, **more: Any) -> LeakageCount:  # noqa: ANN401
    return LeakageCount(160, outputs, {"shop": 10, "bank": 5}, **more)


NETWORK: dict[str, Any] = {"nonlinear": frozenset({"shop"})}
Visits = list[tuple[str, np.ndarray]]
COUNTED: dict[str, tuple[LeakageCount, Visits, float]] = {
    "a batch once, whatever the order of its rows": (
        count(),
        [("shop", rows(0, 1, 2)), ("shop", rows(2, 0, 1)), ("shop", rows(0, 1, 2))],
        10 / 160,
    ),
    "every distinct batch": (count(), [("shop", rows(0, 1, 2)), ("shop", rows(3, 4, 5))], 20 / 160),
    "peers may collude": (count(), [("shop", rows(0, 1)), ("bank", rows(0, 1))], 15 / 160),
    "ten class probabilities sum to one": (count(10), [("shop", rows(0))], 10 * 10 / (160 * 9)),
    "every visit of a network": (
        count(**NETWORK),
        [("shop", rows(0, 1)), ("bank", rows(0, 1))] * 3,
        (3 * 10 + 5) / 160,
    ),
}


@pytest.mark.parametrize("case", COUNTED)
def test_what_counts_as_revealed(case: str) -> None:
    leakage, visits, ratio = COUNTED[case]
    for peer, batch in visits:
        leakage.add(peer, batch)
    assert leakage.ratio == ratio


def test_a_batch_is_counted_by_its_rows() -> None:
    leakage = count()
    for _ in range(2):
        leakage.add("shop", rows(0, 1))
    assert leakage.revealed == {"shop": {batch_digest(rows(0, 1)): 10}}


def test_different_rows_have_different_names() -> None:
    names = {batch_digest(rows(*numbers)) for numbers in [(0,), (1,), (0, 1), (0, 256), ()]}
    assert len(names) == 5


def counted(
    directory: Path,
    plan: Plan,
    peers: dict[str, bytes],
    *,
    columns: int = 1,
    labels: bool = True,
    targets: np.ndarray | None = None,
    values: np.ndarray | None = None,
    party: str = "bank",
    resumes: bool = False,
) -> PersonRecord:
    """The record after a job whose peers have committed to so many columns each."""
    member: Any = SimpleNamespace(name=party, others=tuple(peers))
    agreement = replace(agreement_of(1), columns=dict.fromkeys(peers, columns), commitments=peers)
    truth = (np.arange(plan.facts.rows) % 2 if targets is None else targets) if labels else None
    own = (np.arange(plan.facts.rows, dtype=np.float64) if values is None else values)[:, None]
    data: Any = SimpleNamespace(table=PartyTable(party, ("x",), own, own, source="people"))
    place: Any = SimpleNamespace(data=data, guard_directory=directory, answer=None, session="")
    require_guard(member, plan, agreement, truth, place, resumes=resumes)
    name = "labels.safetensors" if labels else f"{party}/predictions.safetensors"
    return PersonRecord.load(directory / name)


def guarded(rows: int = 4000, **job: Any) -> Plan:  # noqa: ANN401
    parties, networks = job.pop("parties", 2), job.pop("networks", {})
    plan = plan_of(parties=parties, rows=rows, job={"rounds": 2, **job}, exchange={"scheme": "bfv"})
    return replace(plan, networks=networks)


COMMITTED = b"1234567890123456"


def test_every_visit_counts_where_nobody_has_committed_to_columns(tmp_path: Path) -> None:
    once = counted(tmp_path / "known", guarded(), {"shop": COMMITTED})
    twice = counted(tmp_path / "unknown", guarded(), {"shop": b""})
    assert once.model["shop"].max() == 1 / 4000
    assert twice.model["shop"].max() == 2 / 4000


def test_the_gradients_of_a_network_are_none_of_one_model(tmp_path: Path) -> None:
    plan = guarded(networks={"shop": Network("mlp", (2,), "tanh")})
    record = counted(tmp_path, plan, {"shop": b"", "lab": COMMITTED})
    assert not record.model["shop"].any()
    assert record.others["shop"].max() == 2 / 4000
    assert record.model["lab"].any()


def test_the_same_job_started_afresh_counts_again_and_one_that_goes_on_does_not(
    tmp_path: Path,
) -> None:
    first = counted(tmp_path, guarded(), {"shop": b""})
    resumed = counted(tmp_path, guarded(), {"shop": b""}, resumes=True)
    np.testing.assert_array_equal(resumed.model["shop"], first.model["shop"])
    afresh = counted(tmp_path, guarded(), {"shop": b""})
    np.testing.assert_array_equal(afresh.model["shop"], 2 * first.model["shop"])


def test_company_is_counted_for_the_columns_of_all_peers_together(tmp_path: Path) -> None:
    """1,000 rows that stay away are enough for one column at a variance of ¼, not for two."""
    peers = {"shop": b"", "lab": b""}
    for peer in peers:
        counted(tmp_path / peer, guarded(rounds=1), {peer: b""})
        counted(tmp_path / peer, guarded(3000, rounds=1), {peer: b""})
    counted(tmp_path, guarded(rounds=1), peers)
    with pytest.raises(LabelLeakRefused, match=r"1000 rows .* fewer than 1600"):
        counted(tmp_path, guarded(3000, rounds=1), peers)


def test_without_the_key_nobody_sees_whose_labels_are_the_same(tmp_path: Path) -> None:
    records = [counted(tmp_path / name, guarded(), {"shop": COMMITTED}) for name in "ab"]
    first, second = (record.labels[..., 0] for record in records)
    assert len(np.unique(first)) == 4000
    assert not np.isin(second, first).any()


def test_one_huge_target_hides_nobody(tmp_path: Path, generator: np.random.Generator) -> None:
    targets = generator.standard_normal(4000)
    targets[7] = 1e9
    counted(tmp_path, guarded(), {"shop": COMMITTED}, targets=targets)
    counted(tmp_path, guarded(), {"shop": COMMITTED}, targets=targets + 1e-9)
    targets[3] += 0.5
    with pytest.raises(LabelLeakRefused, match="over jobs: 1;"):
        counted(tmp_path, guarded(), {"shop": COMMITTED}, targets=targets)


@pytest.mark.parametrize("unit", [1e-30, 1.0, 1e30])
def test_targets_are_known_again_in_any_unit(
    unit: float, tmp_path: Path, generator: np.random.Generator
) -> None:
    targets = unit * generator.standard_normal(4000)
    counted(tmp_path, guarded(), {"shop": COMMITTED}, targets=targets)
    targets[3] += 0.5 * unit
    with pytest.raises(LabelLeakRefused, match="over jobs: 1;"):
        counted(tmp_path, guarded(), {"shop": COMMITTED}, targets=targets)


@pytest.mark.parametrize(
    ("unit", "outlier"), [(1e-40, 1.0), (1e40, 1.0), (1e-30, 1e40), (1.0, 1e39)]
)
def test_targets_that_float32_does_not_tell_apart_are_refused(
    unit: float, outlier: float, tmp_path: Path, generator: np.random.Generator
) -> None:
    targets = unit * generator.standard_normal(4000)
    targets[3] *= outlier
    with pytest.raises(DataError, match="label guard: targets are too small, too large or too far"):
        counted(tmp_path, guarded(), {"shop": COMMITTED}, targets=targets)


def test_feature_parties_that_decrypt_have_records_of_their_own(tmp_path: Path) -> None:
    for party in ("shop", "lab"):
        record = counted(tmp_path, guarded(), {"bank": COMMITTED}, labels=False, party=party)
        assert record.model["bank"].max() == 1 / 4000
    assert len(list(tmp_path.rglob("predictions.safetensors"))) == 2


def test_a_commitment_is_to_the_columns_of_these_people_in_any_order(
    tmp_path: Path, generator: np.random.Generator
) -> None:
    plan, inputs = guarded(200), generator.standard_normal((200, 3))
    order = generator.permutation(200)

    def committed(people: np.ndarray, columns: np.ndarray) -> bytes:
        facts = replace(plan.facts, row_digests=people)
        return commitments(replace(plan, facts=facts), "shop", columns, tmp_path)

    people = plan.facts.row_digests
    first = committed(people, inputs)
    assert len(first) == COMMITMENT_BYTES
    assert committed(people[order], inputs[order]) == first
    assert committed(people, inputs[order]) != first
    # Not by their order alone: other people with the same columns are others.
    assert committed(people + np.uint64(1), inputs) != first


def test_a_key_of_commitments_of_another_length_is_refused(tmp_path: Path) -> None:
    plan, inputs = guarded(200), np.zeros((200, 3))
    assert commitments(plan, "shop", inputs, tmp_path)
    (tmp_path / "shop" / "commitment.key").write_bytes(bytes(31))
    with pytest.raises(DataError, match="31 bytes, expected 32"):
        commitments(plan, "shop", inputs, tmp_path)


def test_a_key_of_commitments_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    (tmp_path / "shop" / "commitment.key").mkdir(parents=True)
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        commitments(guarded(200), "shop", np.zeros((200, 3)), tmp_path)

"""Two jobs that differ by one person's label: the guard refuses the second, or it shows who."""

from pathlib import Path

import pytest

from securevfl.auditing.judging import NotRun
from securevfl.auditing.measures.changed_labels import changed_labels
from securevfl.auditing.measuring import Measurement
from securevfl.auditing.subject import Recording, Subject
from securevfl.data.tables import VerticalDataset
from securevfl.errors import FeatureLeakRefused
from securevfl.job import Job
from tests.unit.auditing.cells import cells_of, finding
from tests.unit.auditing.test_labels_across_jobs import people


def measured(scheme: str, **settings: object) -> dict[str, Measurement]:
    job = Job.of(job={"rounds": 20, **settings}, exchange={"scheme": scheme})
    return cells_of(changed_labels(Subject(job, people(), 0)))


def test_one_changed_label_is_found_without_the_guard_and_never_trained_with_it() -> None:
    cells = measured("bfv")
    assert list(cells) == [
        "first gradients",
        "first gradients, no guard",
        "ends",
        "ends, no guard",
    ]
    for way in ("first gradients", "ends"):
        assert finding(cells[way]).value == 0
        assert "over jobs: 1;" in finding(cells[way]).detail["refused"]
        assert cells[f"{way}, no guard"].what_if
    assert finding(cells["first gradients, no guard"]).value == 1


def test_ends_of_blind_training_are_guarded_as_well() -> None:
    cells = measured("blind")
    assert list(cells) == ["ends", "ends, no guard"]
    assert "over jobs: 1;" in finding(cells["ends"]).detail["refused"]
    assert finding(cells["ends, no guard"]).value > 0


@pytest.mark.parametrize("permitted", [0, 2])
def test_a_refusal_by_the_held_out_guard_keeps_what_was_permitted_before(
    monkeypatch: pytest.MonkeyPatch, permitted: int
) -> None:
    ran = iter(range(99))

    def recorded(self: Subject, _: Path, dataset: VerticalDataset) -> Recording:
        if next(ran) > permitted:
            raise FeatureLeakRefused("held-out guard: enough")
        return Subject(self.job.without_protection, dataset, self.seed).record()

    monkeypatch.setattr(Subject, "record_guarded", recorded)
    cell = measured("bfv")["first gradients"]
    if not permitted:
        assert cell.outcome == NotRun("held-out guard: enough")
        return
    assert finding(cell).value == 1
    assert finding(cell).detail["people"] == permitted
    assert finding(cell).detail["refused"] == "held-out guard: enough"


@pytest.mark.parametrize("settings", [{"batch_size": 96}, {"model": "mlp", "hidden": [2]}])
def test_what_the_attack_does_not_support_is_not_run(settings: dict[str, object]) -> None:
    (only,) = measured("bfv", **settings).values()
    assert isinstance(only.outcome, NotRun)
    assert "full batches" in only.outcome.reason

import pytest

from bench.rounds.__main__ import loss_curves
from securevfl.errors import DataError


def test_curves_stand_beside_one_another_at_every_doubling() -> None:
    curve = [{"rounds": 3 * i, "training_loss": 1 / i, "auc": i / 100} for i in range(1, 12)]
    unseen = [{**point, "training_loss": None} for point in curve]
    rows = [
        {"algorithm": "fedsgd", "local_steps": 1, "runs": [{"curve": curve}, {"curve": unseen}]},
        {"algorithm": "fedbcd-s", "local_steps": 5, "runs": [{"curve": unseen}]},
    ]
    headings, *lines = loss_curves(rows)
    assert headings == ["rounds", "fedsgd, Q = 1", "fedbcd-s, Q = 5"]
    assert [line[0] for line in lines] == ["3", "6", "12", "24", "33"]
    assert lines[1] == ["6", "0.5000, 0.0200", "-, 0.0200"]
    shorter = {**rows[1], "runs": [{"curve": unseen[:5]}]}
    with pytest.raises(DataError, match="not scored after the same rounds"):
        loss_curves([rows[0], shorter])

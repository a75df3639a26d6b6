import pytest

from bench.engines.evaluator import BFV, RING, bfv, in_ring, measure
from securevfl.crypto import native
from securevfl.crypto.native_products import why_not


def test_the_evaluators_side_is_measured_for_each_engine(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "found", native.found)  # is put back even after an error
    measure("bfv", list(bfv(*BFV[0])), 1)
    measure("blind", list(in_ring(*RING[0])), 1)
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()]
    engines = ["seal, 1"] if why_not() else ["seal, 1", "native, 1", "native, 2"]
    assert [row[:2] for row in rows] == [[name, by] for name in ("bfv", "blind") for by in engines]
    assert all(len(row) == 5 and min(map(float, row[2:])) >= 0 for row in rows)

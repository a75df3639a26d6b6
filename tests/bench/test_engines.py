import pytest

from bench.engines.products import BFV, RING, SLOTS, main
from securevfl.crypto import native
from securevfl.crypto.native_products import why_not


def test_both_ends_are_measured_for_each_engine(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "found", native.found)  # is put back even after an error
    main(1, BFV[:1], RING[:1], SLOTS)
    lines = capsys.readouterr().out.splitlines()
    head, _, *rows = ([each.strip() for each in line.strip("|").split("|")] for line in lines)
    engines = ["seal, 1"] if why_not() else ["seal, 1", "native, 1", "native, 2"]
    assert [row[1] for row in rows] == 3 * engines
    assert len({row[0] for row in rows}) == 3
    assert all(len(row) == len(head) and min(map(float, row[2:])) >= 0 for row in rows)

"""Faults that are planted in a copy of the package: a test notices each of them."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests import plant_faults
from tests.plant_faults import ROOT, Copy, Fault, FaultError, all_faults, caught, main

LONGER = Fault(
    id="longer",
    what="facts are one line, however long",
    file="securevfl/shown.py",
    old=("ONE_LINE = 100",),
    new=("ONE_LINE = 1000",),
    tests=("tests/unit/test_shown.py::test_few_facts_are_one_line_and_more_are_a_line_each",),
)
# What a docstring says is no fault.
EQUIVALENT = replace(LONGER, id="equivalent", old=("or its type if",), new=("or its type where",))


def test_every_fault_fits_the_code() -> None:
    faults = all_faults()
    assert len({fault.id for fault in faults}) == len(faults)
    for fault in faults:
        text = (ROOT / fault.file).read_text("utf-8")
        assert fault.planted(text) != text
        assert fault.tests
        for test in fault.tests:
            file, _, name = test.partition("[")[0].partition("::")
            assert f"def {name}(" in (ROOT / file).read_text("utf-8") or not name, test


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("ONE_LINE = 99", "", "0 times in securevfl/shown.py, expected once: 'ONE_LINE = 99'"),
        ("ONE_LINE", "", "2 times in securevfl/shown.py"),
        ("ONE_LINE = 100", "ONE_LINE =", "invalid syntax"),
    ],
)
def test_an_entry_that_does_not_fit_the_code_is_refused(old: str, new: str, told: str) -> None:
    text = (ROOT / LONGER.file).read_text("utf-8")
    with pytest.raises(FaultError, match=told):
        replace(LONGER, old=(old,), new=(new,)).planted(text)


@pytest.mark.slow
def test_what_no_test_notices_survives(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plant_faults, "all_faults", lambda: [LONGER, EQUIVALENT])
    assert main([]) == 1
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()] == [
        ["caught", "longer"],
        ["SURVIVED", "equivalent"],
    ]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("ONE_LINE = 100", "ONE_LINE = missing"),
        ("name = type(self).__name__", "name = missing"),
    ],
    ids=["on import", "in a test"],
)
def test_code_that_cannot_run_is_not_caught(tmp_path: Path, old: str, new: str) -> None:
    copy = Copy(tmp_path)
    with (
        copy.having(replace(LONGER, old=(old,), new=(new,))),
        pytest.raises(FaultError, match="name 'missing' is not defined"),
    ):
        copy.failure(LONGER.tests)


@pytest.mark.slow
def test_every_fault_is_caught() -> None:
    assert [fault.id for fault, is_caught in caught(all_faults()) if not is_caught] == []

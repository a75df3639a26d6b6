import threading
from pathlib import Path

import numpy as np
import pytest

from securevfl.errors import DataError
from securevfl.files import replace_file
from securevfl.protocols.session import checkpoints as module
from securevfl.protocols.session.checkpoints import Checkpoints, SessionState, last_session


def keep(folder: Path, party: str, *rounds: int) -> Checkpoints:
    checkpoints = Checkpoints(folder, party)
    for each in rounds:
        checkpoints.keep(SessionState("ab", party, each, np.full((2, 1), float(each))))
    return checkpoints


def test_the_last_two_are_kept(tmp_path: Path) -> None:
    checkpoints = keep(tmp_path, "bank", 0, 10, 20, 30)
    assert {rounds: state.weights[0, 0] for rounds, state in checkpoints.load().items()} == {
        20: 20.0,
        30: 30.0,
    }
    assert len(list(tmp_path.iterdir())) == 2


def test_states_that_outlive_a_power_cut_are_written_beside_the_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on, written, write = threading.Event(), list[bool](), replace_file

    def slow(path: Path, data: bytes, what: str, *, durable: bool) -> None:
        on.wait(60)
        written.append(durable)
        write(path, data, what, durable=durable)

    monkeypatch.setattr(module, "replace_file", slow)
    with Checkpoints(tmp_path, "bank", durable=True) as checkpoints:
        checkpoints.keep(SessionState("ab", "bank", 0, np.zeros((2, 1))))
        assert written == []
        on.set()
        checkpoints.settle()
        assert written == [True]
        assert set(checkpoints.load()) == {0}
        checkpoints.keep(SessionState("ab", "bank", 10, np.zeros((2, 1))))
    assert set(checkpoints.load()) == {0, 10}
    (tmp_path / "file").write_bytes(b"")
    nowhere = Checkpoints(tmp_path / "file", "bank", durable=True)
    nowhere.keep(SessionState("ab", "bank", 10, np.zeros((2, 1))))
    with pytest.raises(DataError, match="session state"):
        nowhere.settle()


def test_round_0_begins_another_session(tmp_path: Path) -> None:
    assert set(keep(tmp_path, "bank", 0, 10, 20, 0).load()) == {0}


@pytest.mark.parametrize(
    ("bank", "shop", "common"),
    [((0, 10), (0, 10), 10), ((0, 10, 20), (0, 10), 10), ((0,), (0, 10), 0), ((0,), (), None)],
)
def test_all_go_on_from_the_newest_round_that_all_have(
    tmp_path: Path, bank: tuple[int, ...], shop: tuple[int, ...], common: int | None
) -> None:
    keep(tmp_path, "bank", *bank)
    keep(tmp_path, "shop", *shop)
    session = last_session(tmp_path, ["bank", "shop"])
    assert {state.rounds for state in session.values()} == ({common} - {None})


def test_a_crash_between_the_two_files_loses_the_newest_alone(tmp_path: Path) -> None:
    checkpoints = keep(tmp_path, "bank", 0, 10)
    checkpoints.newest.replace(checkpoints.before)
    assert set(checkpoints.load()) == {10}


def test_clearing_takes_what_a_killed_process_was_writing(tmp_path: Path) -> None:
    checkpoints = keep(tmp_path, "bank", 0, 10)
    (tmp_path / ".bank.state-x1y2").write_bytes(b"half")
    others = keep(tmp_path, "shop", 0)
    checkpoints.clear()
    assert list(tmp_path.iterdir()) == [others.newest]


def test_a_folder_that_is_gone_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DataError, match="session state"):
        keep(tmp_path / "file", "bank", 10)

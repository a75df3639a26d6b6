"""`securevfl train --offline`: pads made before a job, used once, by that job and nobody else."""

import shutil
from pathlib import Path

import numpy as np
import platformdirs
import pytest

from securevfl.files import replace_file
from securevfl.protocols.session import pad_store
from securevfl.protocols.session.pad_store import PadStore
from tests.end_to_end import commands
from tests.end_to_end.commands import killed_after, rows_of, run, two_organizations, weights
from tests.jobs import Killed

Capture = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("clean_place")

PARTIES = ("bank", "shop")
PADS = Path("models/pads")
ROUNDS = 6
# Steps and weights are rounded at random; see docs/decisions/0032-blind.md.
ROUNDING = 0.01


def job(scheme: str = "blind", **settings: object) -> str:
    given = {"rounds": ROUNDS, "batch_size": "full", "eval_every": "never", **settings}
    output = {"checkpoint_every": 2}
    return two_organizations({"allow_label_leak": True, **given}, scheme, output=output)


def keys() -> Path:
    return platformdirs.user_state_path("securevfl") / "pad-keys"


def refused(capsys: Capture, *arguments: str) -> str:
    """The one line that a command line is refused with."""
    lines = commands.refused(capsys, *arguments, "--quiet").splitlines()
    (line,) = [each for each in lines if not each.startswith(("party '", "securevfl: warning"))]
    return line


@pytest.fixture(scope="module")
def unaided(tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("unaided")
        patch.chdir(folder)
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        assert run("train", job(), "--quiet") == 0
        return weights()


def test_the_next_run_uses_them_and_counts_what_they_cost(
    capsys: Capture, unaided: np.ndarray
) -> None:
    path = job()
    assert run("train", path, "--offline") == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert f"pads for {ROUNDS} rounds: bank 0." in printed
    assert "MB sent; the job that uses them counts all of it" in printed
    assert {each.name for each in PADS.iterdir()} == {f"{name}.pads" for name in PARTIES}
    assert not list(Path("models").glob("*.safetensors"))
    assert run("train", path, "--json", "out.json") == 0
    assert f"uses up the pads that were made offline for {ROUNDS} rounds" in capsys.readouterr().err
    np.testing.assert_allclose(weights(), unaided, atol=ROUNDING)
    assert {each.name for each in Path("models").iterdir()} == {
        *(f"{name}.safetensors" for name in PARTIES),
        "manifest.json",
    }
    assert not list(keys().rglob("*.key"))
    (row,) = rows_of("out.json", "train")
    sent = float(printed.split("computation), ")[1].split(" MB")[0]) * 1e6
    assert row["offline_bytes"] == pytest.approx(sent, rel=0.01)
    # Whatever is encrypted was sent by the run before.
    assert row["offline_messages"] >= 2 * 3  # of each link, and those of phases
    assert row["offline_ciphertext_bytes"] == row["ciphertext_bytes"] > 0
    assert row["offline_compute_s"] == row["compute_by_phase_s"]["correlated_randomness"] > 0
    assert row["total_s"] > row["offline_compute_s"] + row["offline_communication_s"]


@pytest.mark.parametrize(
    ("scheme", "options", "why"),
    [
        ("plain", (), "exchange 'plain' has no offline phase"),
        ("blind", ("--resume",), "--offline makes pads for a new job"),
        ("blind", ("--json", "out.json"), "--offline does not train"),
        ("blind", ("--html", "out.html"), "--offline does not train"),
    ],
)
def test_it_says_why_it_has_nothing_to_make(
    capsys: Capture, scheme: str, options: tuple[str, ...], why: str
) -> None:
    assert why in refused(capsys, "train", job(scheme), "--offline", *options)
    assert not PADS.exists()


def test_none_are_replaced_unasked(capsys: Capture) -> None:
    path = job()
    assert run("train", path, "--offline", "--quiet") == 0
    first = (PADS / "bank.pads").read_bytes()
    assert "pads are there already" in refused(capsys, "train", path, "--offline")
    assert (PADS / "bank.pads").read_bytes() == first
    assert run("train", path, "--offline", "--force", "--quiet") == 0
    assert (PADS / "bank.pads").read_bytes() != first
    assert len(list(keys().rglob("*.key"))) == 2
    assert run("train", path, "--force") == 0
    assert "uses up the pads that were made offline" in capsys.readouterr().err
    assert "would be overwritten" in refused(capsys, "train", path, "--offline")


def put_back(copy: Path) -> None:
    shutil.copytree(copy, "models", dirs_exist_ok=True)
    for each in Path("models").glob("*.safetensors"):
        each.unlink()


def test_copies_put_back_are_refused_and_dropped_when_asked(
    capsys: Capture, tmp_path: Path
) -> None:
    path = job()
    assert run("train", path, "--offline", "--quiet") == 0
    shutil.copytree("models", tmp_path / "copy")
    assert run("train", path, "--quiet") == 0
    put_back(tmp_path / "copy")
    assert "taken already, and no pad is used twice; --force trains without them" in refused(
        capsys, "train", path
    )
    assert run("train", path, "--force") == 0
    assert "discards the pads: pads models" in capsys.readouterr().err
    assert not PADS.exists()


def changed_shop() -> None:
    lines = Path("shop.csv").read_text(encoding="utf-8").splitlines()
    first = lines[1].split(",")
    lines[1] = ",".join([first[0], "1.25", *first[2:]])
    Path("shop.csv").write_text("\n".join(lines), encoding="utf-8")


def test_another_job_or_other_data_have_no_use_for_them(capsys: Capture) -> None:
    path = job()
    assert run("train", path, "--offline", "--quiet") == 0
    job(rounds=ROUNDS + 1)
    assert "of another job" in refused(capsys, "train", path)
    job()
    changed_shop()
    why = "pads models/pads/shop.pads: made for other rows or other inputs"
    assert why in refused(capsys, "train", path)
    # Nobody's have been used up by that.
    assert why in refused(capsys, "train", path)
    job()
    assert run("train", path, "--quiet") == 0
    assert not PADS.exists()


def test_a_half_of_other_pads_is_refused(capsys: Capture, tmp_path: Path) -> None:
    path = job()
    assert run("train", path, "--offline", "--quiet") == 0
    shutil.copy(PADS / "bank.pads", tmp_path / "bank.pads")
    (PADS / "bank.pads").rename(PADS / "other")
    (PADS / "shop.pads").rename(PADS / "bank.pads")
    (PADS / "other").rename(PADS / "shop.pads")
    assert "they are 'shop''s" in refused(capsys, "train", path)
    shutil.rmtree("models")
    assert run("train", path, "--offline", "--quiet") == 0
    shutil.copy(tmp_path / "bank.pads", PADS)
    assert "not made together with" in refused(capsys, "train", path)
    (PADS / "bank.pads").unlink()
    assert "bank.pads: no such file" in refused(capsys, "train", path)


@pytest.mark.parametrize("taken", [1, 2])
def test_killed_when_pads_were_taken_they_are_not_used_again(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, taken: int, unaided: np.ndarray
) -> None:
    """Between the two parties' taking, and between the last key's end and its file's."""
    path, delete = job(), PadStore._delete_file
    assert run("train", path, "--offline", "--quiet") == 0
    left = [taken]

    def die(store: PadStore) -> None:
        left[0] -= 1
        if not left[0]:
            raise Killed
        delete(store)

    with monkeypatch.context() as patch:
        patch.setattr(PadStore, "_delete_file", die)
        with pytest.raises(Killed):
            run("train", path, "--quiet")
    assert "taken already" in refused(capsys, "train", path) or taken == 2
    assert run("train", path, "--force", "--quiet") == 0
    np.testing.assert_allclose(weights(), unaided, atol=ROUNDING)


def test_a_job_that_goes_on_makes_new_pads(
    capsys: Capture, tmp_path: Path, unaided: np.ndarray
) -> None:
    path = job()
    assert run("train", path, "--offline", "--quiet") == 0
    shutil.copytree("models", tmp_path / "copy")
    killed_after(5, "train", path, "--quiet")
    assert not PADS.exists()
    shutil.copytree(tmp_path / "copy", "models", dirs_exist_ok=True)
    shutil.copytree("models", tmp_path / "session")
    capsys.readouterr()
    assert run("train", path, "--resume", "--json", "out.json") == 0
    printed = capsys.readouterr().err
    assert "resumes after 4 rounds, with new keys and masks" in printed
    assert "discards the pads that were made offline: a resumed job makes new ones" in printed
    np.testing.assert_allclose(weights(), unaided, atol=ROUNDING)
    (row,) = rows_of("out.json", "train")
    assert (row["rounds"], row["rounds_before"]) == (ROUNDS, 4)
    assert row["offline_messages"] >= 2 * 3
    assert not PADS.exists()
    assert not list(keys().rglob("*key"))
    for each in Path("models").iterdir():
        each.unlink()
    for each in (tmp_path / "session").glob("*.state"):
        shutil.copy(each, "models")
    assert "no key of its shares" in refused(capsys, "train", path, "--resume")


def test_pads_killed_while_being_made_are_nobodys(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """When one party's are all there, and the other's lack their key."""
    path, written = job(), list[Path]()

    def die(path: Path, data: bytes, what: str) -> None:
        written.append(path)
        if len(written) == 2:
            raise Killed
        replace_file(path, data, what)

    with monkeypatch.context() as patch:
        patch.setattr(pad_store, "replace_file", die)
        with pytest.raises(Killed):
            run("train", path, "--offline", "--quiet")
    assert not list(keys().rglob("*.key"))
    assert not PADS.exists()
    assert run("train", path, "--offline", "--quiet") == 0

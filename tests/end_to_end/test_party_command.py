"""Organizations as processes of their own, each with its folder, from `init` to a model."""

import contextlib
import hashlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from typing_extensions import override

from securevfl.crypto import native_products
from securevfl.errors import DataError
from securevfl.models.storage import load_model
from securevfl.protocols.session.checkpoints import Checkpoints
from tests.end_to_end.commands import LONG, refused, run, started, wait_until
from tests.link_parties import free_address
from tests.organizations import Organizations


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "guards"))
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")


def ends(process: "subprocess.Popen[str]", status: int = 0) -> str:
    """What a party has said by its end, with this status."""
    out, err = process.communicate(timeout=LONG)
    assert process.returncode == status, out + err
    return out + err


@contextlib.contextmanager
def running(who: Organizations, job: str, *names: str) -> Iterator[list["subprocess.Popen[str]"]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(started("party", "run", job, *who.own(name))) for name in names]


def trained(who: Organizations) -> list[bytes]:
    """The models of `train`, with all files in one place."""
    assert run("train", who.together(), "--quiet") in (0, 3, 4)
    return [Path(f"models/{name}.safetensors").read_bytes() for name in who.names]


class Weighing(Organizations):
    """The bank's rows have weights, in a column that no job names."""

    @override
    def write_data(self) -> None:
        super().write_data()
        lines = Path("bank/bank.csv").read_text().splitlines()
        columns = ["w", *(f"{1 + n % 7}.5" for n in range(len(lines) - 1))]
        text = "\n".join(f"{line},{each}" for line, each in zip(lines, columns, strict=True))
        Path("bank/bank.csv").write_text(text)

    @override
    def data(self, name: str) -> dict[str, str]:
        return super().data(name) | ({"weight_column": "w"} if name == "bank" else {})


def test_organizations_train_with_weights_that_one_of_them_has() -> None:
    who = Weighing()
    job = who.agree()
    with running(who, job, "shop") as (shop,):
        assert run("party", "run", job, *who.own("bank")) == 0
        ends(shop)
    assert [who.model(name) for name in who.names] == trained(who)
    told = json.loads(Path("shop/models/result.json").read_text())["who_learned_what"]
    assert any(each.startswith("every party learned: the mean weight of rows") for each in told)


@pytest.mark.parametrize(
    ("names", "scheme"), [("bank shop", "plain"), ("bank shop", "bfv"), ("bank club shop", "plain")]
)
def test_organizations_train_what_one_operator_would(
    names: str, scheme: str, capsys: pytest.CaptureFixture[str]
) -> None:
    who = Organizations(names, scheme)
    job = who.agree()
    first, *others = reversed(who.names)  # whoever waits for the others starts first
    with running(who, job, first, *others[1:]) as processes:
        assert run("party", "run", job, *who.own(others[0])) == 0
        for process in processes:
            assert "finished: 10 rounds" in ends(process)
    assert run("party", "status", *who.own("bank")) == 0
    assert "finished, round 10 of 10, with " in capsys.readouterr().out
    assert [who.model(name) for name in who.names] == trained(who)
    bank, shop = (
        json.loads(Path(f"{name}/models/result.json").read_text(encoding="utf-8"))
        for name in (who.names[0], who.names[-1])
    )
    assert bank["scores"]["auc"] > 0.9
    assert shop["scores"] is None
    assert bank["ranking"]["auc_gain_interval"][0] > 0
    assert bank["ranking"]["auc_gain"] == pytest.approx(
        bank["scores"]["auc"] - bank["alone"]["auc"]
    )
    assert "ranking" not in shop
    for name, found in ((who.names[0], bank), (who.names[-1], shop)):
        model = hashlib.sha256(Path(f"{name}/models/{name}.safetensors").read_bytes())
        assert found["manifest"]["models"] == {f"{name}.safetensors": model.hexdigest()}
        assert set(found["manifest"]["data"]) == {f"{name} data"}  # no other party's
        assert found["manifest"]["started"] <= found["manifest"]["ended"]
    assert bank["rows_in_common"] == shop["rows_in_common"]
    assert sum(bank["rows_in_common"].values()) == 380
    assert (bank["own_rows"], shop["own_rows"]) == (400, 380)
    assert bank["costs"]["bytes_sent"] > 0 < bank["alignment"]["bytes_sent"]


@pytest.mark.parametrize("complete", [True, False])
def test_who_has_its_model_ends_well_although_nobody_comes(
    complete: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    who = Organizations()
    job = who.agree()
    with running(who, job, "shop") as (shop,):
        assert run("party", "run", job, *who.own("bank")) == 0
        ends(shop)
    (diary,) = Path("bank/state").glob("*/diary.json")
    if not complete:  # it has not heard that the shop has finished
        diary.write_text(diary.read_text("utf-8").replace('"complete":true', '"complete":false'))
    before = who.model("bank")
    assert run("party", "run", job, *who.own("bank"), "--patience", "0.0001") == 0
    assert "bank: the job has finished before: " in capsys.readouterr().out
    assert who.model("bank") == before


def test_the_label_party_ends_with_the_status_of_its_model(
    capsys: pytest.CaptureFixture[str],
) -> None:
    who = Organizations(rounds=2, learning_rate=1e-9, local_steps=1, batch_size=10)
    job = who.agree()
    with running(who, job, "shop") as (shop,):
        assert run("party", "run", job, *who.own("bank")) == 3
        ends(shop)
    assert "status 3" in capsys.readouterr().err
    bank, shops = (
        json.loads(Path(f"{name}/models/result.json").read_text(encoding="utf-8"))
        for name in who.names
    )
    assert (bank["status"], bank["warnings"][0]["kind"]) == (3, "learned nothing")
    assert 0.5 < bank["alone"]["auc"] < 1
    assert (shops["status"], shops["warnings"], shops["alone"]) == (0, [], None)


HANGS = """
import time
from securevfl.cli import app, party_run
party_run.Run.save = lambda *_: time.sleep(600)
app.main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_only_waits_for_a_peer_may_be_interrupted_and_ends_as_its_model_does(
    number: int,
) -> None:
    who = Organizations(rounds=2, learning_rate=1e-9, local_steps=1, batch_size=10)
    job, result = who.agree(), Path("bank/models/result.json")
    hanging = started("party", "run", job, *who.own("shop"), program=("-c", HANGS))
    with hanging, running(who, job, "bank") as (bank,):
        wait_until(bank, result.exists)
        bank.send_signal(number)
        said = " ".join(ends(bank, 3).split())
    assert "interrupted: this party has its result" in said
    assert "finished: 2 rounds" in said
    assert json.loads(result.read_text(encoding="utf-8"))["status"] == 3
    assert load_model(Path("bank/models/bank.safetensors")).header.rounds == 2
    (status,) = Path("bank/state").glob("*/status.json")
    assert json.loads(status.read_text(encoding="utf-8"))["phase"] == "finished"


def test_parties_that_nobody_reaches_meet_at_a_relay() -> None:
    at = free_address()
    who = Organizations("bank club shop", relay=at)  # the bank listens, the others meet there
    job = who.agree()
    with started("relay", "--listen", at), running(who, job, "club", "shop") as processes:
        assert run("party", "run", job, *who.own("bank")) == 0
        for process in processes:
            ends(process)
    assert [who.model(name) for name in who.names] == trained(who)


@pytest.mark.slow
def test_seventeen_organizations_train_what_one_operator_would() -> None:
    who = Organizations("bank " + " ".join(f"shop{number}" for number in range(16)), "masked")
    for name in who.names:
        who.write_own_file(name, exchanges=["masked"])
    with running(who, who.agree(), *who.names) as processes:
        for process in processes:
            assert "finished: 10 rounds" in ends(process)
    assert [who.model(name) for name in who.names] == trained(who)


def test_an_invitation_leads_to_a_model(capfd: pytest.CaptureFixture[str]) -> None:
    who = Organizations()
    with started("party", "invite", who.draft(), *who.own("bank"), "--yes") as inviter:
        assert inviter.stdout is not None
        code = inviter.stdout.readline().split()[-1]
        wrong = f"{code[:6]}one-two-three-four{code[code.index('@') :]}"
        assert refused(capfd, "party", "join", wrong, *who.own("shop"), "--yes").splitlines() == [
            "securevfl: error: the inviter: the code is wrong"
        ]
        assert run("party", "join", code, *who.own("shop"), "--yes") == 0
        words = capfd.readouterr().out.split("read aloud with bank: ")[1].splitlines()[0]
        assert f"read aloud with shop: {words}" in ends(inviter)
        again = refused(capfd, "party", "join", code, *who.own("shop"), "--yes")
        assert len(again.splitlines()) == 1
        assert "has expired, has been used" in again
    assert Path("draft.toml").read_bytes() == Path("loans.toml").read_bytes()
    assert "# a draft" in Path("loans.toml").read_text(encoding="utf-8")
    with running(who, "loans.toml", "shop") as (shop,):
        assert run("party", "run", "draft.toml", *who.own("bank")) == 0
        ends(shop)
    assert [who.model(name) for name in who.names] == trained(who)


def test_no_code_is_told_where_nobody_listens(capsys: pytest.CaptureFixture[str]) -> None:
    who = Organizations()
    host, port = who.listen["bank"].split(":")
    with socket.create_server((host, int(port))):
        assert run("party", "invite", who.draft(), *who.own("bank"), "--yes") == 2
    printed = capsys.readouterr()
    assert "cannot listen" in printed.err
    assert "within ten minutes" not in printed.out
    assert run("party", "invite", "nowhere.toml", *who.own("bank"), "--yes") == 2
    assert "no draft nowhere.toml: write one first" in capsys.readouterr().err


def trains(name: str) -> bool:
    """Whether a party has gone so far that all parties hold a state after some rounds."""
    with contextlib.suppress(DataError, StopIteration):  # it is just being replaced
        folder = next(Path(f"{name}/state").glob(f"*/{name}.state")).parent
        return max(Checkpoints(folder, name).load(), default=0) >= 30
    return False


def test_parties_that_end_go_on_with_the_same_command() -> None:
    who = Organizations(rounds=1000, tolerance=0)
    job = who.agree()
    with running(who, job, "bank", "shop") as (bank, shop):
        wait_until(shop, lambda: trains("shop"))
        shop.send_signal(signal.SIGTERM)
        bank.kill()
        assert ends(shop, 130).endswith("the same command goes on\n")
        bank.wait()
        with running(who, job, "shop") as (again,):
            assert run("party", "run", job, *who.own("bank")) == 0
            said = ends(again)
    assert "goes on after" in said
    found = json.loads(Path("shop/models/result.json").read_text(encoding="utf-8"))
    assert found["attempts"] == 2
    assert found["rounds_before"] >= 25
    covered = f"times and bytes cover the rounds after {found['rounds_before']}"
    assert covered in " ".join(said.split())
    assert [who.model(name) for name in who.names] == trained(who)


def test_a_stopped_job_is_refused_by_all_from_then_on(capsys: pytest.CaptureFixture[str]) -> None:
    who = Organizations(rounds=10_000, tolerance=0)
    job = who.agree()
    with running(who, job, "bank", "shop") as (bank, shop):
        wait_until(shop, lambda: trains("shop"))
        assert run("party", "stop", job, *who.own("shop"), "--yes") == 0
        for process in (bank, shop):
            said = ends(process, 2)
            assert said.splitlines()[-1].startswith("securevfl: error: the job is stopped by shop")
    for name in who.names:
        assert "is stopped by shop on" in refused(capsys, "party", "run", job, *who.own(name))
        assert not Path(f"{name}/models").exists()


def test_a_stop_without_a_running_party_is_told_by_its_next_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    who = Organizations()
    job = who.agree()
    assert run("party", "stop", job, *who.own("shop"), "--yes") == 0
    with running(who, job, "bank") as (bank,):
        assert "stopped by shop" in refused(capsys, "party", "run", job, *who.own("shop"))
        assert "stopped by shop" in ends(bank, 2)
    who.top["patience_hours"] = 0.0005
    who.write_own_file("bank")
    assert "stopped by shop" in refused(capsys, "party", "run", job, *who.own("bank"))


def one_line(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    lines = refused(capsys, *arguments).splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("securevfl: error: ")
    return lines[0]


def test_a_check_says_what_is_ready_at_whoever_checks_or_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    who = Organizations()
    job, words = who.agree(), "shop: reachable, is who it says, securevfl "
    with started("party", "check", job, *who.own("shop"), "--wait", "100") as shop:
        capsys.readouterr()
        assert run("party", "check", job, *who.own("bank"), "--wait", "100") == 0
        said = " ".join(capsys.readouterr().out.split())
        assert "bank: reachable, is who it says" in ends(shop)
    for each in (words, "the same agreement", "ms round trip", "Mbit/s", "400 rows, 2 columns"):
        assert each in said
    assert "policy: accepts this job" in said
    with running(who, job, "shop") as (shop,):
        assert run("party", "check", job, *who.own("bank"), "--wait", "100") == 0
        said = " ".join(capsys.readouterr().out.split())
        assert words in said
        assert "ms round trip" in said
        assert run("party", "run", job, *who.own("bank")) == 0  # the check has cost it nothing
        ends(shop)
    assert run("party", "check", job, *who.own("bank"), "--wait", "0.1") == 1
    assert "NOT READY shop: not reached" in " ".join(capsys.readouterr().out.split())
    monkeypatch.setattr(native_products, "why_not", lambda: "no C compiler")
    who.exchange["scheme"] = "bfv"
    job = who.agree(sign=False)
    assert run("party", "check", job, *who.own("bank"), "--wait", "0.1") == 1
    slower = "products are SEAL's, and slower than native ones: no C compiler"
    assert slower in " ".join(capsys.readouterr().out.split())


def test_likely_mistakes_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    who = Organizations()
    who.top["patience_hours"] = 0.0005  # what is not refused ends, in another line
    who.write_own_file("bank")
    job, bank = who.agree(sign=False), who.own("bank")
    assert "has an identity already" in one_line(
        capsys, "party", "init", "bank", "--folder", "bank"
    )
    assert "an agreement is for `securevfl party run`" in one_line(capsys, "train", job)
    assert "party sign" in one_line(capsys, "party", "run", job, *bank, "--quiet")
    assert run("party", "sign", job, *bank, "--yes") == 0
    (state,) = Path("bank/state").iterdir()
    who.write_own_file("bank", exchanges=["bfv"])
    for command in ("sign", "run"):
        assert "policy.exchanges" in one_line(capsys, "party", command, job, *bank)
    who.write_own_file("bank")
    key = Path("bank/bank.key").read_bytes()
    Path("bank/bank.key").write_bytes(Path("shop/shop.key").read_bytes())
    assert "the agreement has identity" in one_line(capsys, "party", "run", job, *bank)
    Path("bank/bank.key").write_bytes(key)
    text = Path(job).read_text(encoding="utf-8")
    apart = "\n".join(line for line in text.splitlines() if not line.startswith("address"))
    Path("apart.toml").write_text(apart, encoding="utf-8")
    assert "cannot reach each other" in one_line(capsys, "party", "run", "apart.toml", *bank)
    host, port = who.listen["bank"].split(":")
    with socket.create_server((host, int(port))):
        assert "cannot listen there" in one_line(capsys, "party", "run", job, *bank, "--quiet")
    Path("bank/models").write_text("", encoding="utf-8")
    assert "output folder bank/models" in one_line(capsys, "party", "run", job, *bank, "--quiet")
    Path("bank/models").unlink()
    Path("bank/bank.csv").unlink()
    assert "bank.csv" in one_line(capsys, "party", "run", job, *bank, "--quiet")
    assert "no code" in one_line(capsys, "party", "join", "12345", *bank)
    assert "no job has run" not in one_line(capsys, "party", "status", "none.toml", *bank)
    (state / "diary.json").write_text("{", encoding="utf-8")
    assert "diary.json is damaged" in one_line(capsys, "party", "stop", job, *bank, "--yes")


def test_a_column_that_cannot_be_scaled_is_named_where_it_is_and_nowhere_else(
    capsys: pytest.CaptureFixture[str],
) -> None:
    who = Organizations()
    job, file = who.agree(), Path("shop/shop.csv")
    head, first, *rest = file.read_text(encoding="utf-8").splitlines()
    first = f"{first.rpartition(',')[0]},1e308"
    file.write_text("\n".join([head, first, *rest]), encoding="utf-8")
    with running(who, job, "shop") as (shop,):
        said = one_line(capsys, "party", "run", job, *who.own("bank"), "--quiet")
        assert "party 'shop': column 'shop_b' has n" in ends(shop, 2).splitlines()[-1]
    assert "shop" in said
    assert "shop_b" not in said


def test_agreements_that_differ_say_in_which_key(capsys: pytest.CaptureFixture[str]) -> None:
    who = Organizations()
    ours, theirs = who.agree("ours.toml"), who.agree("theirs.toml", rounds=11)
    with running(who, theirs, "shop") as (shop,):
        said = refused(capsys, "party", "run", ours, *who.own("bank"), "--quiet")
        assert said.splitlines() == [
            "securevfl: error: shop has another agreement: job.rounds: 10 here, 11 there"
        ]
        ends(shop, 2)


def test_ids_of_another_format_and_a_party_twice(capsys: pytest.CaptureFixture[str]) -> None:
    who = Organizations()
    who.ids["shop"] = "C-"
    who.write_data()
    job = who.agree()
    with running(who, job, "shop") as (shop,):
        wait_until(shop, lambda: bool(list(Path("shop/state").glob("*/status.json"))))
        twice = one_line(capsys, "party", "run", job, *who.own("shop"), "--quiet")
        assert "is running already" in twice
        assert "common" in one_line(capsys, "party", "run", job, *who.own("bank"), "--quiet")
        ends(shop, 2)
    who.write_own_file("bank", alignments_per_peer_per_year=1)
    with running(who, job, "shop") as (shop,):
        once_more = one_line(capsys, "party", "run", job, *who.own("bank"), "--quiet")
        assert "(policy.alignments_per_peer_per_year)" in once_more
        ends(shop, 2)


def test_a_new_identity_is_taken_over_by_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    who = Organizations()
    job = who.agree()
    capsys.readouterr()
    assert run("party", "rotate", *who.own("shop")) == 0
    line = capsys.readouterr().out.split("--confirm ")[1].splitlines()[0]
    forged = line.replace(line.split(":")[2], line.split(":")[1])
    assert "no valid signature" in one_line(capsys, "party", "rotate", job, "--confirm", forged)
    with_names = Path(job).read_text("utf-8")
    Path("other.toml").write_text(with_names.replace('"shop"', '"club"'), encoding="utf-8")
    assert "not that of 'shop'" in one_line(
        capsys, "party", "rotate", "other.toml", "--confirm", line
    )
    assert run("party", "rotate", job, "--confirm", line) == 0
    os.replace("shop/shop.key.new", "shop/shop.key")
    assert run("party", "sign", job, *who.own("shop"), "--yes") == 0


def test_a_passphrase_comes_by_a_file_descriptor(capsys: pytest.CaptureFixture[str]) -> None:
    def typed(*arguments: str, secret: bytes = b"correct horse\n") -> tuple[str, ...]:
        reads, writes = os.pipe()
        os.write(writes, secret)
        os.close(writes)
        return "party", *arguments, "--passphrase-fd", str(reads)

    who = Organizations()
    Path("bank/bank.key").unlink()
    Path("bank/party.toml").unlink()
    assert run(*typed("init", "bank", "--folder", "bank")) == 0
    assert "`securevfl party invite JOB.toml`" in capsys.readouterr().out
    who.write_own_file("bank")
    job, bank = who.agree(sign=False, keys={"bank": b"correct horse"}), who.own("bank")
    assert "needs a passphrase" in one_line(capsys, "party", "sign", job, *bank, "--yes")
    wrong = typed("sign", job, *bank, "--yes", secret=b"wrong")
    assert "the passphrase is wrong" in one_line(capsys, *wrong)
    assert run(*typed("sign", job, *bank, "--yes")) == 0
    assert run(*typed("rotate", *bank)) == 0
    assert b"ENCRYPTED" in Path("bank/bank.key.new").read_bytes()

"""Command lines as tests type them."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securevfl.arrays import FloatArray
from securevfl.cli.app import main
from securevfl.models.storage import load_model
from securevfl.reports.training import Forecast
from tests.jobs import Killed

LONG = 300.0  # seconds after which a test that waits has failed, on the busiest machine


def run(*arguments: str) -> int:
    """The exit status of a command line."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["securevfl", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
    return int(ended.value.code or 0)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a command line says on standard error that ends with status 2."""
    capsys.readouterr()
    assert run(*arguments) == 2
    return capsys.readouterr().err


@contextlib.contextmanager
def started(
    *arguments: str, program: Sequence[str] = ("-m", "securevfl")
) -> "Iterator[subprocess.Popen[str]]":
    """A command line as a process with a group of its own; nothing of it outlives the test."""
    command = [sys.executable, *program, *arguments]
    with subprocess.Popen(  # noqa: S603
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def killed_after(rounds: int, *arguments: str) -> None:
    def kill(_: Forecast, done: int, now: float) -> None:
        if done == rounds:
            raise Killed(now)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Forecast, "after", kill)
        with pytest.raises(Killed):
            run(*arguments)


def weights() -> FloatArray:
    parts = [load_model(Path(f"models/{name}.safetensors")) for name in ("bank", "shop")]
    return np.concatenate([part.weights for part in parts])


def wait_until(process: "subprocess.Popen[str] | None", happened: Callable[[], bool]) -> None:
    """Wait for what happens, while a process runs or after all of it: long, and not for ever."""
    deadline = time.monotonic() + LONG
    while not happened():
        assert process is None or process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)


def command_of(process: int) -> str:
    """The command line of a process; a process that has ended has none."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_text(encoding="utf-8").replace("\0", " ")
    return ""


def children(parent: int) -> list[int]:
    own = Path(f"/proc/{parent}/task/{parent}/children").read_text(encoding="ascii")
    return list(map(int, own.split()))


def living(group: int) -> list[str]:
    """The command lines of a process group, without those that ended already."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.getpgid(int(entry.name)) == group:
                found.append(command_of(int(entry.name)))
    return list(filter(None, found))


def result_in(path: str = "out.json") -> dict[str, Any]:
    result: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    return result


def rows_of(path: str, command: str) -> list[dict[str, Any]]:
    """The rows of a result file that has everything a result file has."""
    result = result_in(path)
    assert set(result) == {
        *("command", "argv", "version", "commit", "date"),
        *("seed", "settings", "machine", "rows"),
    }
    assert result["command"] == command
    rows: list[dict[str, Any]] = result["rows"]
    return rows


def rows_from(command: str, *arguments: str, status: int = 0) -> list[dict[str, Any]]:
    assert run(*command.split(), *arguments, "--json", "out.json") == status
    return rows_of("out.json", command.split(" job.toml", maxsplit=1)[0])


def settings_in(path: str = "out.json") -> dict[str, Any]:
    settings: dict[str, Any] = result_in(path)["settings"]
    return settings


def example(*changes: tuple[str, str]) -> str:
    """The path of the example job with some text replaced."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert run("train", "--example") == 0
    text = printed.getvalue()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    Path("job.toml").write_text(text, encoding="utf-8")
    return "job.toml"


def write_job(
    job: Mapping[str, object], id_column: str = "customer", /, **sections: Mapping[str, object]
) -> str:
    """The path of a job on a bank's file with labels and a shop's, with some sections more."""
    parties: list[dict[str, object]] = [
        {"name": "bank", "role": "label", "data": "bank.csv", "label_column": "default"},
        {"name": "shop", "role": "feature", "data": "shop.csv", "id_column": id_column},
    ]
    lines = []
    for header, section in (
        ("[job]", job),
        *(("[[party]]", party) for party in parties),
        *((f"[{name}]", section) for name, section in sections.items()),
    ):
        lines += [header, *(f"{key} = {json.dumps(value)}" for key, value in section.items())]
    Path("job.toml").write_text("\n".join([*lines, ""]), encoding="utf-8")
    return "job.toml"


def two_organizations(
    job: Mapping[str, object] | None = None, scheme: str = "ckks", **sections: Mapping[str, object]
) -> str:
    """The path of a job on files of two columns each, 20 of whose rows the bank alone has."""
    generator = np.random.default_rng(0)
    ids = np.arange(400)
    values = generator.standard_normal((400, 4))
    labels = (values.sum(axis=1) > 0).astype(int)
    bank = ["id,income,debt,default"]
    bank += [f"{i},{values[i, 0]},{values[i, 1]},{labels[i]}" for i in ids]
    shop = ["customer,visits,spent"]
    shop += [f"{i},{values[i, 2]},{values[i, 3]}" for i in generator.permutation(ids)[:380]]
    Path("bank.csv").write_text("\n".join(bank), encoding="utf-8")
    Path("shop.csv").write_text("\n".join(shop), encoding="utf-8")
    return write_job(job or {"rounds": 30}, exchange={"scheme": scheme}, **sections)

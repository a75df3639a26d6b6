"""Organizations in folders of their own, with keys, own files and an agreement, for tests."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from securevfl.parties.identity import Identity, public_text
from tests.end_to_end.commands import run
from tests.link_parties import free_address

POLICY: Mapping[str, Any] = {
    "exchanges": ["plain", "bfv"],
    "residuals": "clear",
    "allow_seeded_start": True,
}


def toml(**sections: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> str:
    """Sections as TOML; a list makes [[…]]."""
    lines: list[str] = []
    for name, section in sections.items():
        many = [section] if isinstance(section, Mapping) else section
        for each in many:
            lines.append(f"[{name}]" if isinstance(section, Mapping) else f"[[{name}]]")
            lines += [f"{key} = {json.dumps(value)}" for key, value in each.items()]
    return "\n".join([*lines, ""])


class Organizations:
    """A bank with the labels and others with columns, each in a folder of its name.

    Args:
        names: the bank first; all but the last listen, or only the bank if there is a relay.
        scheme: of the job.
        relay: HOST:PORT of one.
        job: its settings.
    """

    def __init__(
        self, names: str = "bank shop", scheme: str = "plain", relay: str = "", **job: object
    ) -> None:
        self.names = names.split()
        self.links = {"relay": f"ws://{relay}"} if relay else {}
        self.listen = {name: free_address() for name in self.names[: 1 if relay else -1]}
        self.job = {"name": "loans", "rounds": 10, "start": "seeded", **job}
        self.exchange = {"scheme": scheme}
        self.top: dict[str, object] = {}
        self.reached: dict[str, str] = {}  # where the others reach a party, if not where it listens
        self.ids = dict.fromkeys(self.names, "c")
        for name in self.names:
            assert run("party", "init", name, "--folder", name) == 0
            self.write_own_file(name)
        self.write_data()

    def write_data(self) -> None:
        """Two columns each; the last lacks twenty of the bank's people."""
        generator, count = np.random.default_rng(0), 400
        values = {name: generator.standard_normal((count, 2)) for name in self.names}
        label = sum(each.sum(axis=1) for each in values.values()) > 0
        for name in self.names:
            order = np.arange(count) if name == self.names[0] else generator.permutation(380)
            lines = [f"id,{name}_a,{name}_b" + (",default" if name == self.names[0] else "")]
            for row in order:
                cells = [f"{self.ids[name]}{row}", *map(repr, map(float, values[name][row]))]
                cells += [str(int(label[row]))] if name == self.names[0] else []
                lines.append(",".join(cells))
            Path(f"{name}/{name}.csv").write_text("\n".join(lines), encoding="utf-8")

    def data(self, name: str) -> dict[str, str]:
        labels = {"label_column": "default"} if name == self.names[0] else {}
        return {"data": f"{name}.csv", **labels}

    def write_own_file(self, name: str, **policy: object) -> None:
        top = {"name": name, "key": f"{name}.key", "guard_directory": "guards", **self.top}
        if name in self.listen:
            top["listen"] = self.listen[name]
        head = "".join(f"{key} = {json.dumps(value)}\n" for key, value in top.items())
        rest = toml(data=self.data(name), policy={**POLICY, **policy})
        Path(f"{name}/party.toml").write_text(head + rest, encoding="utf-8")

    def party(self, name: str, **more: object) -> dict[str, Any]:
        role = "label" if name == self.names[0] else "feature"
        return {"name": name, "role": role, **more}

    def agree(
        self,
        path: str = "job.toml",
        *,
        sign: bool = True,
        keys: Mapping[str, bytes] = {},
        **job: object,
    ) -> str:
        """The path of an agreement that all have signed; `keys` are passphrases by party."""
        parties = []
        for name in self.names:
            public = Identity.load(Path(f"{name}/{name}.key"), keys.get(name)).public
            where = self.reached.get(name, self.listen.get(name))
            at = {"address": f"ws://{where}"} if where else {}
            parties.append(self.party(name, identity=public_text(public), **at))
        output = {"checkpoint_every": 5}
        text = toml(
            job=self.job | job,
            exchange=self.exchange,
            output=output,
            links=self.links,
            party=parties,
        )
        Path(path).write_text(text, encoding="utf-8")
        for name in self.names if sign else ():
            assert run("party", "sign", path, *self.own(name), "--yes") == 0
        return path

    def draft(self, path: str = "draft.toml") -> str:
        """The path of a draft without identities."""
        parties = [self.party(name) for name in self.names]
        text = toml(job=self.job, exchange=self.exchange, party=parties)
        Path(path).write_text(f"# a draft\n{text}", encoding="utf-8")
        return path

    def together(self) -> str:
        """The path of the same job for one operator who has all files."""
        parties = [
            self.party(name, **self.data(name) | {"data": f"{name}/{name}.csv"})
            for name in self.names
        ]
        Path("train.toml").write_text(
            toml(job=self.job, exchange=self.exchange, party=parties), encoding="utf-8"
        )
        return "train.toml"

    def model(self, name: str) -> bytes:
        return Path(f"{name}/models/{name}.safetensors").read_bytes()

    @staticmethod
    def own(name: str) -> tuple[str, str]:
        return "--party", f"{name}/party.toml"

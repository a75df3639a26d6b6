"""The exchange and the algorithm that the how-tos add, as somebody outside the package would."""

import sys
from pathlib import Path
from types import ModuleType

from securevfl.protocols.catalogue import ALGORITHMS, EXCHANGES
from tests.docs.examples import blocks

HOW_TO = Path(__file__).parents[1] / "docs" / "how-to"


def module_of(page: str, file: str) -> ModuleType:
    text = (HOW_TO / page).read_text(encoding="utf-8")
    module = ModuleType(file.removesuffix(".py"))
    sys.modules[module.__name__] = module
    code = next(block.text for block in blocks(text) if block.title == file)
    exec(compile(code, file, "exec"), vars(module))  # noqa: S102  # the pages are ours
    return module


def write_files(page: str, folder: Path) -> None:
    for block in blocks((HOW_TO / page).read_text(encoding="utf-8")):
        if block.title.endswith((".py", ".toml")):
            (folder / block.title).write_text(block.text, encoding="utf-8")


def uninstall() -> None:
    EXCHANGES.remove(ROUNDED8.name)
    ALGORITHMS.remove(HEAVY_BALL.name)


def install() -> None:
    EXCHANGES.add(ROUNDED8)
    ALGORITHMS.add(HEAVY_BALL)


module_of("add-an-exchange.md", "rounded8.py")
module_of("add-an-algorithm.md", "heavy_ball.py")
ROUNDED8, HEAVY_BALL = EXCHANGES["rounded8"], ALGORITHMS["heavy-ball"]
uninstall()

"""How objects show themselves: a line or a few in a terminal, a small table in a notebook."""

from collections.abc import Mapping
from html import escape

from typing_extensions import override

ONE_LINE = 100


class Shown:
    """Says what it is in a few facts, whatever its arrays hold."""

    def shown(self) -> Mapping[str, object]:
        """What to show, by name."""
        raise NotImplementedError

    @override
    def __repr__(self) -> str:
        name = type(self).__name__
        facts = [f"{fact}: {value}" for fact, value in self.shown().items()]
        line = f"{name}({', '.join(facts)})"
        return line if len(line) <= ONE_LINE else "\n  ".join([name, *facts])

    @override
    def __str__(self) -> str:
        return repr(self)

    def _repr_html_(self) -> str:
        rows = "".join(
            f'<tr><th scope="row" style="text-align: left">{escape(fact)}</th>'
            f'<td style="text-align: left">{escape(str(value))}</td></tr>'
            for fact, value in self.shown().items()
        )
        return f"<table><caption>{escape(type(self).__name__)}</caption>{rows}</table>"


def first_line(error: Exception) -> str:
    """What an error says in one line; its kind where it says nothing."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__

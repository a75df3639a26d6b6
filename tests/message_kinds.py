"""Every kind of message of the package, found where it is declared."""

from collections.abc import Mapping
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

import securevfl
from securevfl.wire.codec import Message, kinds

PACKAGE = Path(securevfl.__file__).parent
for _path in sorted(PACKAGE.rglob("*.py")):
    if "\n@message_kind(" in _path.read_text(encoding="utf-8"):
        import_module(".".join(["securevfl", *_path.relative_to(PACKAGE).with_suffix("").parts]))
KINDS = tuple(kind for kind in kinds() if kind.number < 128)


def fields_of(kind: type[Message], by_type: Mapping[Any, Any]) -> dict[str, Any]:
    """What stands in for each field of a kind, by the field's type."""
    return {field.name: by_type[field.type] for field in fields(kind)}

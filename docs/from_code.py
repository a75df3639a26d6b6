"""Pages of the site from outside docs/: those of the code, of the top folder and of bench/.

MkDocs calls `on_config`, `on_files` and `on_page_markdown`. Links in the pages are those that work
in the repository; here they are turned into links within the site.
"""

import inspect
import os
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

import typer.main
from griffe import Docstring, DocstringSectionAttributes
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pydantic import BaseModel

import securevfl
from securevfl.cli import app
from securevfl.job import OWN_SECTIONS, Job
from securevfl.parties.own_file import SECTIONS, OwnFile

DOCS = Path(__file__).parent
ROOT = DOCS.parent
TOP = ("SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md")
LISTED = {"decisions": "Decisions"}
"""Folders of docs/ whose index is a list of their files."""
TOP_NAMES = "<!-- from securevfl import -->"
LINK = re.compile(r"(?<=\]\()(?!https?:|#)([^)\s]+)")
KINDS = {
    "integer": "whole number",
    "number": "number",
    "boolean": "`true`, `false`",
    "string": "text",
}
LIMITS = {
    "minimum": "from",
    "exclusiveMinimum": "above",
    "maximum": "to",
    "exclusiveMaximum": "below",
}
Schema = Mapping[str, Any]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put every page of a folder where the navigation names the folder."""
    config.nav = [_filled(entry) for entry in config.nav or []]
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add what is not in docs/."""
    outside = [*TOP, *(page.relative_to(ROOT).as_posix() for page in _experiments())]
    written = {
        "reference/command-line.md": command_line(),
        "reference/job-file.md": job_file(),
        "reference/party-file.md": party_file(),
        **{f"{folder}/index.md": _listing(folder) for folder in LISTED},
        **{name: (ROOT / name).read_text(encoding="utf-8") for name in outside},
    }
    for path, text in written.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links of the repository into links of the site."""
    source = page.file.src_uri
    outside = source in TOP or source.startswith("bench/")
    here = (ROOT if outside else DOCS) / source

    def link(found: re.Match[str]) -> str:
        name, hash_sign, anchor = found[1].partition("#")
        target = (here.parent / name).resolve()
        if target.is_relative_to(DOCS):
            place = target.relative_to(DOCS).as_posix()
        elif target.is_relative_to(ROOT):
            place = target.relative_to(ROOT).as_posix()
        else:
            return found[1]
        if place in LISTED:
            place += "/index.md"
        return os.path.relpath(place, Path(source).parent) + hash_sign + anchor

    return LINK.sub(link, markdown.replace(TOP_NAMES, top_names()))


def top_names() -> str:
    """What `from securevfl import` gives, for mkdocstrings."""
    found = [getattr(securevfl, name) for name in securevfl.__all__ if name[0] != "_"]
    return "\n\n".join(f"::: {each.__module__}.{each.__name__}" for each in found)


def command_line() -> str:
    """Every command's own help."""
    parts = ["# Command line", "What `--help` says."]
    for name, command in _commands(typer.main.get_command(app.command_line()), "securevfl"):
        with command.make_context(name, [], resilient_parsing=True, terminal_width=80) as context:
            parts += [f"## {name}", f"```text\n{command.get_help(context).strip()}\n```"]
    return "\n\n".join(parts) + "\n"


def _commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:  # noqa: ANN401
    below = getattr(command, "commands", None)
    if below is None:
        yield name, command
        return
    for word, each in sorted(below.items()):
        yield from _commands(each, f"{name} {word}")


def job_file() -> str:
    """Every section of a job file and its keys, from what validates them."""
    parts = [
        "# Job file",
        "TOML. An unknown key is an error that names the nearest known one; "
        "`securevfl train --example` prints a job that runs as it is. Letters are those of the "
        "[design](../explanation/design.md#symbols).",
    ]
    fields = {name: field.annotation for name, field in Job.model_fields.items()}
    for name, annotation in {**fields, **OWN_SECTIONS}.items():
        section = _section(annotation)
        if section is not None:
            several = get_origin(annotation) is tuple
            parts += [f"## {f'[[{name}]]' if several else f'[{name}]'}", _keys(section)]
    return "\n\n".join(parts) + "\n"


def party_file() -> str:
    """Every key of a party's own file."""
    parts = ["# A party's own file", _keys(OwnFile, without=SECTIONS)]
    for name, section in SECTIONS.items():
        parts += [f"## [{name}]", _keys(section)]
    return "\n\n".join(parts) + "\n"


def _section(annotation: Any) -> type[BaseModel] | None:  # noqa: ANN401
    if get_origin(annotation) is dict or get_origin(annotation) is Mapping:
        return None
    for each in (annotation, *get_args(annotation)):
        if inspect.isclass(each) and issubclass(each, BaseModel):
            return each
    return None


def _keys(section: type[BaseModel], without: Collection[str] = ()) -> str:
    text: list[str] = []
    told: dict[str, str] = {}
    for each in reversed(section.__mro__):  # a section has the keys of those it extends
        text = []
        for part in Docstring(inspect.cleandoc(vars(each).get("__doc__") or "")).parse("google"):
            if isinstance(part, DocstringSectionAttributes):
                told |= {key.name: key.description for key in part.value}
            elif part.kind.value == "text":
                text.append(part.value)
    schema = section.model_json_schema()
    rows = [
        f"| `{key}` | {_values(found, schema)} | {_default(key, found, schema)} | "
        f"{_cell(told.get(key, ''))} |"
        for key, found in sorted(  # what is needed comes first
            schema["properties"].items(), key=lambda each: each[0] not in schema.get("required", ())
        )
        if key not in without
    ]
    heading = ["| key | values | default | |", "| --- | --- | --- | --- |"]
    # The first line names the section, which the heading does.
    prose = re.sub(r"^`\[+\w+\]+`[:.]\s*", "", "\n\n".join(text))
    return "\n\n".join(filter(None, [prose[:1].upper() + prose[1:], "\n".join(heading + rows)]))


def _values(found: Schema, schema: Schema) -> str:
    if "$ref" in found:
        return _values(schema["$defs"][found["$ref"].rsplit("/", 1)[1]], schema)
    if "properties" in found:
        return "keys as in the section of that name"
    if "anyOf" in found:
        parts = [_values(each, schema) for each in found["anyOf"] if each.get("type") != "null"]
        return ", or ".join(dict.fromkeys(parts))
    if words := found.get("enum", [found["const"]] if "const" in found else []):
        return ", ".join(f"`{_toml(each)}`" for each in words)
    if each := found.get("items") or found.get("additionalProperties"):
        return f"{'list' if 'items' in found else 'table'}, each {_values(each, schema)}"
    kind = found.get("type", "")
    name = "path" if found.get("format") == "path" else KINDS.get(kind, "")
    bounds = [f"{word} {found[key]:g}" for key, word in LIMITS.items() if key in found]
    return " ".join([name, *bounds])


def _default(key: str, found: Schema, schema: Schema) -> str:
    if key in schema.get("required", ()):
        return "needed"
    default = found.get("default")
    return "" if default is None else f"`{_toml(default)}`"


def _toml(value: Any) -> str:  # noqa: ANN401
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _filled(entry: Any) -> Any:  # noqa: ANN401
    if isinstance(entry, list):
        return [_filled(each) for each in entry]
    if not isinstance(entry, dict):
        return entry
    ((title, below),) = entry.items()
    if not isinstance(below, str) or not below.endswith("/"):
        return {title: _filled(below)}
    pages = [page.relative_to(ROOT).as_posix() for page in _experiments()]
    if below != "bench/":
        found = sorted((DOCS / below).glob("*.md"))
        pages = [f"{below}index.md", *(page.relative_to(DOCS).as_posix() for page in found)]
    return {title: pages}


def _experiments() -> list[Path]:
    """The overview of bench/, then the page of each experiment."""
    return [ROOT / "bench" / "README.md", *sorted((ROOT / "bench").glob("*/README.md"))]


def _listing(folder: str) -> str:
    lines = []
    for path in sorted((DOCS / folder).glob("*.md")):
        heading = path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        lines.append(f"- [{heading}]({path.name})")
    return f"# {LISTED[folder]}\n\n" + "\n".join(lines) + "\n"

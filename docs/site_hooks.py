"""Pages that the site generates: the front page, the settings and the commands.

Links to files outside docs/, which the site does not have, become their names.
"""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import click
from mkdocs.structure.files import File, Files
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from a2cap.pipeline.cli.main import cli
from a2cap.pipeline.config import Config

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    pages = {
        "index.md": LINK.sub(lambda found: _link(found, ""), readme).replace("](docs/", "]("),
        "reference/settings.md": settings(),
        "reference/commands.md": commands(),
    }
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, **others: Any) -> str:
    """Replace links that leave docs/ by their text."""
    if page.file.generated_by is not None:
        return markdown
    folder = posixpath.join("docs", posixpath.dirname(page.file.src_uri))
    return LINK.sub(lambda found: _link(found, folder), markdown)


def _link(found: re.Match[str], folder: str) -> str:
    """Return the link, or its text where it leads out of docs/; folder: of its page."""
    _, text, target = found.groups()
    if "://" in target or target.startswith("#"):
        return found[0]
    path = posixpath.normpath(posixpath.join(folder, target.partition("#")[0]))
    return found[0] if path.startswith("docs/") else text


def settings() -> str:
    """Return the page of all configuration fields: type, default and meaning."""
    lines = ["# Settings", "", "Every field can be set in YAML or by `--set section.field=value`."]
    for name, section in Config.model_fields.items():
        lines += ["", f"## {name}", "", section.description or ""]
        models = list(_models(section.annotation))
        for model in models:
            if len(models) > 1:
                lines += ["", f"### {name}.kind={model.model_fields['kind'].default}"]
            lines += ["", "| field | type | default | meaning |", "|---|---|---|---|"]
            lines += [_row(path, field) for path, field in _fields(name, model)]
    return "\n".join(lines) + "\n"


def _row(path: str, field: FieldInfo) -> str:
    kind = field.annotation.__name__ if isinstance(field.annotation, type) else field.annotation
    default = "" if field.is_required() else f"`{field.get_default(call_default_factory=True)!r}`"
    plain = re.sub(r"[\w.]+\.(\w+)", r"\1", str(kind)).replace("|", "or")
    cells = (f"`{path}`", f"`{plain}`", default, field.description or "")
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"


def _fields(path: str, model: type[BaseModel]) -> Iterator[tuple[str, FieldInfo]]:
    """Yield the plain fields of a model, those of nested models by their dotted paths."""
    for name, field in model.model_fields.items():
        inner = list(_models(field.annotation))
        if inner:
            yield from _fields(f"{path}.{name}", inner[0])
        else:
            yield f"{path}.{name}", field


def _models(annotation: object) -> Iterator[type[BaseModel]]:
    """Yield the models in an annotation, such as the kinds of a union."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)


def commands() -> str:
    """Return the page of the help of every command."""
    lines = ["# Commands"]
    for name, command in _commands("a2", cli):
        context = click.Context(command, info_name=name, max_content_width=90)
        lines += ["", f"## {name}", "", "```", command.get_help(context), "```"]
    return "\n".join(lines) + "\n"


def _commands(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        for below in sorted(command.commands):
            yield from _commands(f"{name} {below}", command.commands[below])

"""Pages that the site generates: the settings and the commands.

Links to files outside docs/, which the site does not have, become their names.
"""

import posixpath
import re
from collections.abc import Iterator
from typing import Any

import click
from mkdocs.structure.files import File, Files
from pydantic.fields import FieldInfo

from a2cap.pipeline.cli.main import cli
from a2cap.pipeline.config_fields import field_paths, is_section, section_models, valid_values
from a2cap.pipeline.configuration import Config

LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages."""
    pages = {
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
    return LINK.sub(lambda link: _link(link, folder), markdown)


def _link(match: re.Match[str], folder: str) -> str:
    """Return the link, or its text if the target is not in docs/; folder: of its page."""
    _, text, target = match.groups()
    if "://" in target or target.startswith("#"):
        return match[0]
    path = posixpath.normpath(posixpath.join(folder, target.partition("#")[0]))
    return match[0] if path.startswith("docs/") else text


def settings() -> str:
    """Return the page of all configuration fields: valid values, default and meaning."""
    lines = ["# Settings", "", "Every field can be set in YAML or by `--set section.field=value`."]
    for name, section in Config.model_fields.items():
        lines += ["", f"## {name}", "", section.description or ""]
        for model in section_models(name, Config):
            if name == "model":
                lines += ["", f"### model.kind={model.model_fields['kind'].default}"]
            lines += ["", "| field | valid | default | meaning |", "|---|---|---|---|"]
            lines += [
                _row(f"{name}.{path}", valid_values(path, model), field)
                for path, field in field_paths(model)
                if not is_section(field)
            ]
    return "\n".join(lines) + "\n"


def _row(path: str, valid: str, field: FieldInfo) -> str:
    cells = (f"`{path}`", valid, f"`{field.default!r}`", field.description or "")
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"


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
        context = click.Context(command)
        for below in sorted(command.list_commands(context)):
            inner = command.get_command(context, below)
            assert inner is not None
            yield from _commands(f"{name} {below}", inner)

"""HTML pages in one file: they open from disk and ask no network for anything.

A content security policy forbids every request, so that a caption or a title cannot cause one
either. Equal values give equal bytes: there is no time, no path and no host in a page.
"""

import json
import math
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup


def write_page(path: Path, template: str, **values: object) -> None:
    """Writes the page that a template of `templates/` makes of some values, piece by piece."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["embedded"] = embedded
    pieces = environment.get_template(template).stream(**values)
    pieces.enable_buffering(64)
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(pieces)


def embedded(value: object) -> Markup:
    """A value as JSON that can stand in a script element, whatever text it holds."""
    text = json.dumps(_finite(value), separators=(",", ":"), ensure_ascii=False)
    return Markup(text.replace("<", "\\u003c"))


def _finite(value: object) -> object:
    """The value with null for numbers that JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value

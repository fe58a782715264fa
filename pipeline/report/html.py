"""Self-contained HTML pages that open from disk without network access.

A content security policy forbids every request, so text from outside cannot cause one either.
Equal values give equal bytes: a page contains no time or host name, and paths only as a user named
them.
"""

import json
import math
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from html import unescape
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

_CARD = re.compile(r'<script type="application/json" class="detail" data-id="(.*?)">(.*)</script>')


def write_page(path: Path, template: str, **values: object) -> None:
    """Render a template of `templates/` with these values and write it piece by piece."""
    # Streamed: the images of a report need not be in memory together.
    pieces = load_template(template).stream(**values)
    pieces.enable_buffering(64)
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(pieces)


@cache
def load_template(name: str) -> Template:
    """Return a template of `templates/`, which has `embedded` as a filter."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["embedded"] = embedded
    return environment.get_template(name)


def embedded(value: object) -> Markup:
    """Return a value as JSON that is safe inside a script element."""
    text = json.dumps(_finite(value), separators=(",", ":"), ensure_ascii=False)
    # "</script>" and "<!--" would end or change the element, even inside a string.
    return Markup(text.replace("<", "\\u003c"))


def read_cards(report: Path) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield image id and card of each image that a page embeds.

    A page that is missing or damaged ends it: its images are then shown without attention.
    """
    with suppress(OSError, ValueError):
        for line in report.read_text(encoding="utf-8").split("\n"):
            if card := _CARD.fullmatch(line):
                yield unescape(card[1]), json.loads(card[2])


def _finite(value: object) -> object:
    """Return the value with null instead of NaN and infinity, which JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value

"""Cells of CSV files, which people open in spreadsheets."""

import re

_FORMULA = re.compile(r"[\s\x00-\x1f\ufeff\u200b]*[=+\-@＝＋－＠]|[\t\r\n]")


def looks_like_formula(cell: str) -> bool:
    """Return True for a text that a spreadsheet would compute, also after white space."""
    return _FORMULA.match(cell) is not None


def as_text(cell: object) -> object:
    """Return a cell that no spreadsheet computes: an apostrophe before a text like a formula.

    Numbers stay as they are, also negative ones.
    """
    return f"'{cell}" if isinstance(cell, str) and looks_like_formula(cell) else cell

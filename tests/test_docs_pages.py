"""README and docs/: length, links, commands and the tour of the code."""

import re

import pytest

from a2cap.pipeline.cli.main import cli
from tests.test_structure import MAY_IMPORT, ROOT, named

README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def anchors(page):
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_the_readme_has_at_most_130_lines():
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 130


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_link_leads_to_a_file_and_a_heading(page):
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


def test_every_guide_page_is_in_the_index():
    index = (ROOT / "docs" / "guide" / "README.md").read_text(encoding="utf-8")
    pages = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "guide").glob("*.md")]
    assert [page.name for page in pages if f"{page.name})" not in index] == ["README.md"]


@pytest.mark.parametrize("name", cli.commands)
def test_every_command_is_in_the_readme_and_in_the_guide(name):
    assert f"`a2 {name}`" in README.read_text(encoding="utf-8")
    guide = (ROOT / "docs" / "guide" / "README.md").read_text(encoding="utf-8")
    assert f"| `a2 {name}` |" in guide


def test_the_tour_of_the_code_has_every_folder():
    tour = README.read_text(encoding="utf-8")
    for top in MAY_IMPORT:
        for folder in (ROOT / top).iterdir():
            if (folder / "__init__.py").is_file():
                assert f"─ {folder.name}/" in tour, f"{top}/{folder.name}"

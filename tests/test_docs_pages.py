"""README and docs/: length, links, commands and the tour of the code."""

import re

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


def leads_somewhere(page, target):
    """Return whether a link of a page has a file and a heading, or is to another site."""
    path, _, anchor = target.partition("#")
    file = (page.parent / path).resolve() if path else page
    return "://" in target or (file.exists() and (not anchor or anchor in anchors(file)))


def test_every_link_leads_to_a_file_and_a_heading():
    links = re.compile(r"\]\(([^)]+)\)")
    found = [(page, link) for page in PAGES for link in links.findall(page.read_text("utf-8"))]
    assert [(named(page), link) for page, link in found if not leads_somewhere(page, link)] == []


def test_every_guide_page_is_in_the_index():
    index = (ROOT / "docs" / "guide" / "README.md").read_text(encoding="utf-8")
    pages = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "guide").glob("*.md")]
    assert [page.name for page in pages if f"{page.name})" not in index] == ["README.md"]


def test_every_command_is_in_the_readme_and_in_the_guide():
    readme, guide = (
        page.read_text(encoding="utf-8") for page in (README, ROOT / "docs" / "guide" / "README.md")
    )
    assert [name for name in cli.commands if f"`a2 {name}`" not in readme] == []
    assert [name for name in cli.commands if f"| `a2 {name}` |" not in guide] == []


def test_the_tour_of_the_code_has_every_folder():
    tour = README.read_text(encoding="utf-8")
    for top in MAY_IMPORT:
        for folder in (ROOT / top).iterdir():
            if (folder / "__init__.py").is_file():
                assert f"─ {folder.name}/" in tour, f"{top}/{folder.name}"

"""README and docs/: length, links, commands and the tour of the code."""

import re
import shlex

import click

from a2cap.data.errors import ConfigError
from a2cap.model.alignment_config import FUSIONS
from a2cap.model.captioners.kinds import KINDS
from a2cap.pipeline.cli.main import cli
from a2cap.pipeline.config_fields import explain_field
from a2cap.pipeline.configuration import Config, load_config
from a2cap.pipeline.search import corners, search_space
from a2cap.pipeline.sweep import grid
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
    pairs = [(page, link) for page in PAGES for link in links.findall(page.read_text("utf-8"))]
    assert [(named(page), link) for page, link in pairs if not leads_somewhere(page, link)] == []


def test_every_page_is_in_the_navigation_and_in_the_guide():
    index = (ROOT / "docs" / "guide" / "README.md").read_text(encoding="utf-8")
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").as_posix()
        assert len(re.findall(rf" {name}$", site, re.MULTILINE)) == 1, name
        assert page.name in ("README.md", "index.md") or f"{page.name})" in index, name


def test_the_home_page_has_a_picture_three_commands_and_four_lines_of_python():
    home = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    shell, python = re.findall(r"^```\w+\n(.*?)^```", home, re.MULTILINE | re.DOTALL)
    assert home.count("![") == 1
    assert len(shell.splitlines()) == 3
    assert len(python.splitlines()) == 4


def test_a_page_of_a_task_is_a_screen():
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    tasks = site.partition("  - Caption my images")[2].partition("reproduce.md")[0] + "reproduce.md"
    pages = [ROOT / "docs" / path for path in re.findall(r"- (\S+\.md)$", tasks, re.MULTILINE)]
    pages.append(ROOT / "docs" / "guide" / "extend.md")
    lengths = {named(page): len(page.read_text("utf-8").split()) for page in pages}
    assert len(lengths) == 10
    assert {page: words for page, words in lengths.items() if words > 330} == {}


def test_every_command_is_in_the_readme():
    readme = README.read_text(encoding="utf-8")
    assert [name for name in cli.list_commands(None) if f"`a2 {name}`" not in readme] == []


def test_the_tour_of_the_code_has_every_folder():
    tour = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for top in MAY_IMPORT:
        for folder in (ROOT / top).iterdir():
            if (folder / "__init__.py").is_file():
                assert f"─ {folder.name}/" in tour, f"{top}/{folder.name}"


def commands(page):
    """Yield the words of each a2 command of a page, and whether it is complete: in a code block."""
    text = page.read_text(encoding="utf-8")
    for written in re.findall(r" > (\S+\.yaml)$", text, re.MULTILINE):
        text = text.replace(f"-c {written}", "-c a2-gate")  # a file that the page itself writes
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    for line in "".join(blocks).replace("\\\n", " ").splitlines():
        words = shlex.split(line.replace(" DIR", " .").partition(" > ")[0], comments=True)
        program = [
            n for n, word in enumerate(words) if re.fullmatch(r"(.*/)?a2|a2cap.pipeline", word)
        ]
        if program:
            yield words[program[0] + 1 :], True
    for inline in re.findall(r"`a2 ([^`]*)`", text):
        yield shlex.split(inline), False


def problem_of(words, *, complete):
    """Return what the command line or the configuration has against a command, None if nothing."""
    command, context = cli, click.Context(cli, **cli.context_settings)
    while isinstance(command, click.Group) and words and words[0].islower() and words[0][0] != "-":
        name, *words = words
        command = command.get_command(context, name)
        if command is None:
            return f"no command {name!r}"
    options = {option for parameter in command.get_params(context) for option in parameter.opts}
    unknown = [word for word in words if word.startswith("--") and word not in options]
    if unknown or not complete:
        return f"no option {unknown}" if unknown else None
    try:
        parsed = command.make_context(command.name, words, parent=context).params
        overrides = parsed.get("overrides", ())  # of a2 sweep with lists and ranges
        rows = [point.overrides for point in grid(overrides)] if not parsed.get("trials") else []
        for row in rows or corners(search_space(overrides)):
            load_config(parsed.get("config_file"), row)
    except (click.UsageError, ConfigError) as error:
        return str(error)
    return None


def test_the_guide_has_the_equation_of_every_fusion():
    rows = [f"| `{fusion.name}` | {fusion.equation} |" for fusion in FUSIONS.values()]
    assert "\n".join(rows) in (ROOT / "docs" / "captioners.md").read_text(encoding="utf-8")


def unknown_fields(page):
    """Yield what is wrong with each field of the configuration that a page names."""
    of_kinds = {f"model.{name}" for kind in KINDS.values() for name in kind.settings.model_fields}
    fields = rf"`((?:{'|'.join(Config.model_fields)})\.[a-z_.]+)(?:=[^`]*)?`"
    for field in re.findall(fields, page.read_text(encoding="utf-8")):
        try:
            explain_field(field, Config)
        except ConfigError as error:
            if field not in of_kinds and not field.endswith((".json", ".safetensors", ".txt")):
                yield str(error)


def test_commands_options_and_settings_of_the_pages_exist(monkeypatch):
    monkeypatch.chdir(ROOT)
    printed = [(page, *command) for page in PAGES for command in commands(page)]
    assert len(printed) > 100
    problems = [
        f"{named(page)}: a2 {shlex.join(words)}: {problem}"
        for page, words, complete in printed
        if (problem := problem_of(words, complete=complete))
    ]
    fields = [f"{named(page)}: {problem}" for page in PAGES for problem in unknown_fields(page)]
    assert problems + fields == []

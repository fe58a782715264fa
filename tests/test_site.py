"""The site of docs/ builds, a broken link stops it, and its reference is complete."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from a2cap.pipeline.cli.main import cli
from tests.pipeline.config_fields import config_fields
from tests.test_structure import ROOT


def build(checkout, site):
    """Build the site of a checkout; return exit code and output."""
    command = [sys.executable, "-m", "mkdocs", "build", "-f", checkout / "mkdocs.yml", "-d", site]
    # the theme otherwise prints an advertisement
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        command, capture_output=True, check=False, text=True, cwd=checkout, env=environment
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def checkout(tmp_path):
    """Copy what the site is made of."""
    shutil.copytree(ROOT / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copyfile(ROOT / "mkdocs.yml", tmp_path / "mkdocs.yml")
    return tmp_path


@pytest.mark.slow
def test_the_site_has_every_page_setting_and_command(checkout):
    code, output = build(checkout, checkout / "site")
    assert code == 0, output
    pages = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "guide").glob("*.md")]
    for page in pages:
        below = page.relative_to(ROOT / "docs").with_suffix("").as_posix()
        below = below.removesuffix("README").removesuffix("index")
        assert (checkout / "site" / below / "index.html").is_file(), page
    settings = (checkout / "site" / "reference" / "settings" / "index.html").read_text()
    assert [path for path in config_fields() if f"<code>{path}</code>" not in settings] == []
    commands = (checkout / "site" / "reference" / "commands" / "index.html").read_text()
    assert [name for name in cli.list_commands(None) if f">a2 {name}<" not in commands] == []
    assert "photo.jpg" in (checkout / "site" / "index.html").read_text()
    index = json.loads((checkout / "site" / "search" / "search_index.json").read_text())
    paths = {e["location"].partition("#")[0] for e in index["docs"] if "CIDEr" in e["text"]}
    assert "guide/metrics/" in paths


@pytest.mark.slow
def test_broken_links_stop_the_site(checkout):
    with (checkout / "docs" / "guide" / "python.md").open("a") as page:
        page.write("\n[x](no-such.md) [x](data.md#no-such-heading)\n")
    code, output = build(checkout, checkout / "site")
    assert code == 1
    assert "no-such.md" in output
    assert "#no-such-heading" in output
    assert "Aborted with 2 warnings in strict mode!" in output

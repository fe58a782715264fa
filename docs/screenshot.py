"""Screenshot of the first screen of a report, for the README.

    make demo
    .venv/bin/python docs/screenshot.py artifacts/demo/evaluate/KEY/report.html docs/report.png

The demo prints KEY in its last lines. Needs Debian's chromium.
"""

import shutil
from pathlib import Path

import click
from playwright.sync_api import sync_playwright


@click.command(help=__doc__)
@click.argument("report", type=click.Path(path_type=Path, exists=True))
@click.argument("image", type=click.Path(path_type=Path))
@click.option("--width", default=1200, show_default=True, help="Width in pixels.")
@click.option("--height", default=800, show_default=True, help="Height in pixels.")
@click.option("--dark", is_flag=True, help="Use the dark colours.")
def main(report: Path, image: Path, width: int, height: int, dark: bool) -> None:
    """Open the report and save what it shows at first."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        page = browser.new_page(
            viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light"
        )
        page.goto(report.resolve().as_uri())
        page.screenshot(path=image)
        browser.close()


if __name__ == "__main__":
    main()

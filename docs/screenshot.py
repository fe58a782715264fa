"""Screenshot of the demo's report for the README, with a word of a caption selected.

    make demo
    .venv/bin/python docs/screenshot.py artifacts/demo/evaluate/KEY/report.html docs/report.png

The demo prints KEY in its last line. Needs Debian's chromium.
"""

import shutil
from pathlib import Path

import click
from playwright.sync_api import sync_playwright


@click.command(help=__doc__)
@click.argument("report", type=click.Path(path_type=Path, exists=True))
@click.argument("image", type=click.Path(path_type=Path))
@click.option("--search", default="", help="Show only captions with these words.")
@click.option("--word", default="", help="Select this word; the last word of a caption without it.")
@click.option("--height", default=1480, show_default=True, help="Height in pixels.")
def main(report: Path, image: Path, search: str, word: str, height: int) -> None:
    """Open the report, best captions first, and select a word of the first three images."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        page = browser.new_page(viewport={"width": 1200, "height": height})
        page.goto(report.resolve().as_uri())
        page.select_option("#direction", label="highest first")
        page.fill("#search", search)
        for card in page.locator(".card").all()[:3]:
            tokens = card.locator(".token")
            texts = tokens.all_inner_texts()
            tokens.nth(texts.index(word) if word in texts else len(texts) - 1).click()
        page.mouse.move(0, 0)
        page.evaluate("document.activeElement.blur()")
        page.evaluate("document.querySelector('.card').scrollIntoView()")
        page.screenshot(path=image)
        browser.close()


if __name__ == "__main__":
    main()

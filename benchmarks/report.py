"""Time to write reports of 500 and 5,000 images, their size, and the time until they are usable.

Captions and images are generated scenes with 36 regions and random attention. Chromium measures
the times of the page from the start of navigation.
"""

import shutil
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import cast

import click
import cv2
import numpy as np

from a2cap.data.captions.attention_file import CaptionAttention
from a2cap.data.scenes.scene import draw, make_scene, raw_text
from a2cap.pipeline.captioning.decoding import Beam
from a2cap.pipeline.metrics.all_metrics import Scores
from a2cap.pipeline.metrics.metric_table import DEFAULTS
from a2cap.pipeline.report.image_card import ImageCard
from a2cap.pipeline.report.report import ScoreReport, write_report
from benchmarks.measure import print_machine, print_table

SIDE, REGIONS = 640, 36

READY = "performance.getEntriesByName('a2-ready')[0].startTime"
PAINT = """new Promise((done) => new PerformanceObserver((found) =>
    done(found.getEntries()[0].startTime)).observe({ type: "paint", buffered: true }))"""
TIMED = """(change) => { const started = performance.now(); change();
    document.body.offsetHeight; return performance.now() - started; }"""
SORTING = f"""({TIMED})(() => {{ const key = document.getElementById("order");
    key.value = "6 -1"; key.dispatchEvent(new Event("change")); }})"""
SEARCHING = f"""({TIMED})(() => {{ const search = document.getElementById("search");
    search.value = "red"; search.dispatchEvent(new Event("input")); }})"""
SCRIPTS = {"first paint": PAINT, "ready": READY, "sort": SORTING, "search": SEARCHING}


def make_evaluation(count: int) -> ScoreReport:
    """Return scenes with their captions as references and as beams, and random scores."""
    rng = np.random.default_rng(0)
    scenes = [make_scene(index, seed=0, side=160) for index in range(count)]
    references = {s.image_id: [raw_text(caption) for caption in s.captions] for s in scenes}
    per_image = {
        image_id: dict(zip(DEFAULTS, rng.random(len(DEFAULTS)).tolist(), strict=True))
        for image_id in references
    }
    return ScoreReport(
        title="Captions of generated scenes",
        captions={image_id: group[0] for image_id, group in references.items()},
        references=references,
        scores=Scores(dict.fromkeys(DEFAULTS, 0.5), per_image, {}),
        beams={
            image_id: [Beam(text, -float(rank)) for rank, text in enumerate(group)]
            for image_id, group in references.items()
        },
    )


def make_cards(captions: dict[str, str], folder: Path) -> Iterator[tuple[str, ImageCard]]:
    """Yield each image with a drawn file, random regions and attention."""
    rng = np.random.default_rng(1)
    for index, (image_id, caption) in enumerate(captions.items()):
        path = folder / f"{image_id}.jpg"
        cv2.imwrite(str(path), draw(make_scene(index, seed=0, side=SIDE)))
        corners = np.sort(rng.random((REGIONS, 2, 2)) * SIDE, axis=1).reshape(-1, 4)
        words = len(caption.split())
        original = rng.dirichlet(np.ones(REGIONS), words).astype(np.float32)
        keep = rng.random((words, REGIONS), dtype=np.float32)
        attention = CaptionAttention(original, original * np.exp(1 - keep), keep, keep[:, 0])
        names, scores = ["some object"] * REGIONS, rng.random(REGIONS)
        yield (
            image_id,
            ImageCard(path, SIDE, SIDE, corners, names, scores, attention),
        )


def write(path: Path, *, count: int, embedded: int) -> float:
    """Write the report; return the seconds without drawing the images."""
    evaluation = make_evaluation(count)
    shown = list(make_cards(dict(islice(evaluation.captions.items(), embedded)), path.parent))
    started = time.perf_counter()
    write_report(path, evaluation, shown)
    return time.perf_counter() - started


def open_in_chromium(path: Path, rounds: int) -> list[list[str]]:
    """Return medians of the milliseconds until the page is loaded, of sorting and searching."""
    from playwright.sync_api import sync_playwright

    spans: dict[str, list[float]] = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        for _ in range(rounds):
            page = browser.new_page()
            metrics = page.context.new_cdp_session(page)
            metrics.send("Performance.enable")
            page.goto(path.as_uri(), timeout=0)
            spent = {
                metric["name"]: metric["value"]
                for metric in metrics.send("Performance.getMetrics")["metrics"]
            }
            spans.setdefault("CPU of the page", []).append(1000 * spent["ProcessTime"])
            for name, script in SCRIPTS.items():
                spans.setdefault(name, []).append(cast("float", page.evaluate(script)))
            page.close()
        browser.close()
    return [
        [f"{name}, ms", f"{np.median(times):.0f}", f"{min(times):.0f}-{max(times):.0f}"]
        for name, times in spans.items()
    ]


@click.command()
@click.option("--quick", is_flag=True, help="Use a few images, only to check that it runs.")
def main(quick: bool) -> None:
    """Write a report, and open it in Chromium if that is installed."""
    print_machine()
    for count, embedded, rounds in ((50, 5, 1),) if quick else ((500, 500, 5), (5000, 500, 5)):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "report.html"
            seconds = write(path, count=count, embedded=embedded)
            rows = [["writing, s", f"{seconds:.1f}", ""]]
            rows.append(["size, MB", f"{path.stat().st_size / 1e6:.1f}", ""])
            rows += open_in_chromium(path, rounds) if shutil.which("chromium") else []
        print_table(f"report of {count} images, {embedded} embedded", ["", "", "of rounds"], rows)


if __name__ == "__main__":
    main()

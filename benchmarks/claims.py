"""Figures of docs/claims.md: their measurement, and the page with them.

Without options it writes the page from `results/claims.csv`. `--measure PART` measures a part first
and replaces the row of each captioner there; `--measure all` measures every part. A stopped
measurement resumes. A captioner that fails or diverges is named in each figure that lacks it, as is
one whose value is not defined.
"""

import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, takewhile
from pathlib import Path
from statistics import fmean

import click
import torch

from a2cap.pipeline.analysis.t_interval import t_interval
from benchmarks import captioners
from benchmarks.alignment_study import QUICK, QUICK_EXTENT, QUICK_FIELDS, measured
from benchmarks.measure import machine, print_machine
from benchmarks.study import gru, photo_masks, updates
from benchmarks.study.claim_figures import draw_claims
from benchmarks.study.grid import CLAIMED, DEEP_PHOTOGRAPHED, Extent, trials
from benchmarks.study.measuring import ALIGNED, CONTROL
from benchmarks.study.page import DOCS, with_figures
from benchmarks.study.results import Results, Row, keep
from benchmarks.study.running import Study
from benchmarks.study.worlds import Images

RESULTS = Path(__file__).parent / "results"
PAGE = DOCS / "claims.md"
BOXES = Path(__file__).with_name("photo_boxes.json")
ROWS = "claims.csv"

_LEFT_OUT = re.compile(
    r"companions/|errors/|grounding/(?!all/)|erasure/[^/]+/(deletion|insertion|shares|of_images)/"
)
"""Values that only the tables of the study show."""

DEPTH_IMAGES = Images(drawn=1500, train=1200, validate=50, test=100)
"""Fewer than in the other parts of the study, as six layers take three times as long."""


PHOTO_IMAGES = Images(drawn=0, train=1000, validate=50, test=100)
PHOTO_ERASED = 20
"""Photographs of erasure, whose 49 cells take long."""


@dataclass(frozen=True)
class Measurement:
    """What a part is measured with.

    folder: of what is trained; quick: True for tiny sizes; seeds: of each captioner; photographs:
    folder of captions.csv and images/, for the parts that read them.
    """

    folder: Path
    quick: bool
    seeds: tuple[int, ...]
    photographs: Path | None = None

    @property
    def captions(self) -> Path:
        """Captions of the photographs; in a quick form of scenes, which an earlier part drew."""
        if self.photographs is None:
            return self.folder / "plain-scenes" / "dataset_coco.json"
        return self.photographs / "captions.csv"


def measure_study(part: str, measurement: Measurement) -> Iterator[Row]:
    """Train and measure the captioners of a part of the study."""
    quick, folder = measurement.quick, measurement.folder
    full = PHOTO_IMAGES if part == DEEP_PHOTOGRAPHED else DEPTH_IMAGES
    images, fields = (QUICK, QUICK_FIELDS) if quick else (full, ())
    study = Study(
        *(folder, "scenes", images, 4 if quick else 100, fields),
        photographs=measurement.captions,
        erased=PHOTO_ERASED if part == DEEP_PHOTOGRAPHED and not quick else None,
    )
    extent = QUICK_EXTENT if quick else Extent(other_seeds=max(measurement.seeds) + 1)
    planned = [trial for trial in trials(extent, [part]) if trial.seed in measurement.seeds]
    for results, news in measured(study, planned, processes=1):
        yield from (replace(row, values=shown(row.values)) for row in results.rows)
        click.echo(news)


def shown(values: Mapping[str, float]) -> dict[str, float]:
    """Return the values that a page may show, with contrasts; a row has more than a thousand."""
    kept = {name: value for name, value in values.items() if not _LEFT_OUT.match(name)}
    return {**kept, **contrasts(values)}


def contrasts(values: Mapping[str, float]) -> dict[str, float]:
    """Return what Fig. 2, 5 and 6 compare within a captioner, as far as it has masks.

    "mean tau NAME": over layers; "evidence - attention": of these means; "upper - lower
    millinats": mean divergence of the upper half of the layers minus that of the lower half;
    "removed evidence - attention": comprehensiveness per word, a mean over images of the
    differences, and "half width over images" its interval; "NAME, masks - random masks": CIDEr and
    grounding with the captioner's masks minus those with random ones.
    """

    def of_layers(name: str) -> list[float]:
        names = (f"layers/{number}/{name}" for number in count(1))
        return [values[layer] for layer in takewhile(values.__contains__, names)]

    compared = {}
    for name in ("attention", "aligned", "evidence"):
        if taus := of_layers(f"tau {name}"):
            compared[f"mean tau {name}"] = fmean(taus)
    if "mean tau evidence" in compared:
        difference = compared["mean tau evidence"] - compared["mean tau attention"]
        compared["evidence - attention"] = difference
    if moved := of_layers("millinats"):
        half = len(moved) // 2
        compared["upper - lower millinats"] = fmean(moved[half:]) - fmean(moved[:half])
    for name, own, control in (
        ("CIDEr", "CIDEr", f"{CONTROL}/CIDEr"),
        ("grounding", f"grounding/all/{ALIGNED}", f"grounding/all/{CONTROL}"),
    ):
        if control in values:
            compared[f"{name}, masks - random masks"] = values[own] - values[control]
    evidence, attention = (_removed(values, order) for order in ("evidence", "attention"))
    if evidence:
        mean = t_interval([e - a for e, a in zip(evidence, attention, strict=True)])
        compared["removed evidence - attention"] = mean.mean
        compared["half width over images"] = mean.half_width
    return compared


def _removed(values: Mapping[str, float], order: str) -> list[float]:
    """Return the comprehensiveness per word of each image."""
    images = (f"erasure/{order}/of_images/{number}" for number in count(1))
    named = takewhile(lambda image: f"{image}/1" in values, images)
    return [values[f"{image}/2"] / values[f"{image}/1"] for image in named]


def measure_gru(measurement: Measurement) -> Iterator[Row]:
    """Train and evaluate the GRU captioner with each score."""
    quick, folder = measurement.quick, measurement.folder
    compared = captioners.Comparison(folder / gru.PART, *((40, 1, 8) if quick else (1000, 12, 64)))
    captioners.prepare(compared, ())
    for row in gru.gru_rows(compared, measurement.seeds):
        yield row
        click.echo(f"{row.part} {row.label} {row.seed} {row.failure}".rstrip())


def measure_masks(measurement: Measurement) -> list[Row]:
    """Ground the bundled captioner in the drawn boxes, with its masks and with permuted ones."""
    images = QUICK if measurement.quick else Images(drawn=0, train=20, validate=140, test=0)
    folder = measurement.folder / photo_masks.PART
    study = Study(folder, "scenes", images, 0, photographs=measurement.captions)
    scenes = measurement.captions.with_name("instances.json")
    rows = photo_masks.permuted_rows(study, scenes if measurement.quick else BOXES)
    click.echo(f"{photo_masks.PART}: {', '.join(row.label for row in rows)}")
    return rows


def measure_updates(measurement: Measurement) -> list[Row]:
    """Time an update of each older captioner, which has no folder and no seeds."""
    quick = measurement.quick
    return updates.update_rows(quick=quick, rounds=2 if quick else 5)


PARTS: Mapping[str, Callable[[Measurement], Iterable[Row]]] = {
    **{part: partial(measure_study, part) for part in CLAIMED},
    gru.PART: measure_gru,
    updates.PART: measure_updates,
    photo_masks.PART: measure_masks,
}
ALL = "all"
OF_PHOTOGRAPHS = {DEEP_PHOTOGRAPHED: "flickr8k", photo_masks.PART: "photos"}
"""Part -> the option with its photographs."""
_PHOTOS = click.Path(path_type=Path, file_okay=False, exists=True)


@click.command()
@click.option(
    "--quick", is_flag=True, help="Measure all on tiny sizes, only to check that it runs."
)
@click.option("--measure", "parts", multiple=True, type=click.Choice([ALL, *PARTS]))
@click.option(
    "--seed", "seeds", multiple=True, type=click.IntRange(0), default=(0, 1, 2), show_default=True
)
@click.option("--flickr8k", type=_PHOTOS, help="Flickr8k: folder of captions.csv and images/.")
@click.option("--photos", type=_PHOTOS, help="Photographs of COCO: folder of the same.")
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("claims"),
    show_default=True,
    help="Folder of what is trained; with --quick a temporary one.",
)
def main(
    quick: bool,
    parts: tuple[str, ...],
    seeds: tuple[int, ...],
    flickr8k: Path | None,
    photos: Path | None,
    output: Path,
) -> None:
    """Measure parts of docs/claims.md, and write the page and its pictures."""
    folders = {"flickr8k": flickr8k, "photos": photos}
    measured_parts = [part for part in PARTS if quick or {part, ALL} & {*parts}]
    for part in () if quick else measured_parts:
        if (option := OF_PHOTOGRAPHS.get(part)) and folders[option] is None:
            raise click.UsageError(f"no photographs for {part!r}; name them with --{option}")
    if measured_parts:
        torch.set_num_threads(1)  # as in the processes that train
        print_machine()
    with tempfile.TemporaryDirectory() as temporary:
        folder, saved = (Path(temporary),) * 2 if quick else (output.resolve(), RESULTS)
        for part in measured_parts:
            about = ", ".join([time.strftime("%Y-%m-%d", time.gmtime()), *machine()])
            photographs = None if quick else folders.get(OF_PHOTOGRAPHS.get(part, ""))
            measurement = Measurement(folder, quick, (0,) if quick else seeds, photographs)
            for row in PARTS[part](measurement):
                keep(saved / ROWS, row, about)
        results = Results.read(saved / ROWS)
        page = with_figures(PAGE.read_text(encoding="utf-8"), results, is_quick=quick)
        tables = (DOCS / "alignment-study-tables.md").read_text(encoding="utf-8")
        draw_claims(results, tables, saved if quick else DOCS)
    if quick:
        click.echo(page)
    else:
        PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()

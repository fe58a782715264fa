"""Speed of all parts: `results/cpu.json`, and the tables of README and docs.

`--only GROUP --rounds N` measures one part more often. A time is compared with that of a reference
which alternates with it, and its operations or bytes per second with the machine's measured peak.
Figures whose ratio moved by more than a tenth since the last results are named. `--pages` copies
the results into README and docs/performance.md.
"""

import copy
import json
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch

from a2cap.data.files.sealed_folder import installed_versions
from a2cap.data.scenes.generate import write_scenes
from a2cap.extract.detector.proposal_precision import has_bfloat16
from a2cap.model.alignment_config import AlignmentConfig
from a2cap.model.captioners.transformer.transformer_config import TransformerConfig
from a2cap.pipeline.demo import run_demo
from benchmarks import extract, self_critical, store, train
from benchmarks.bart import Bart, bart_gradients, bart_search, mixed_bart_gradients
from benchmarks.measure import (
    Form,
    Timing,
    floating_operations,
    interleaved,
    machine,
    print_machine,
    print_profile,
    print_table,
    print_timings,
)

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = {ROOT / "README.md": True, ROOT / "docs" / "performance.md": False}
"""Page with a table of results -> True if it has the times alone."""
MOVED = 0.1
SCENES = 20_000
"""Number of scenes whose time is reported; the goal is five minutes."""

FP32, BF16, MEMORY = "fp32 matrix products", "bf16 matrix products", "memory bandwidth"
TRANSFORMERS, ARRAYS = "transformers", "HDF5 arrays"
DEFAULT = "transformers in fp32"
"""What it computes by default, beside captioners in bfloat16."""
Peaks = Mapping[str, float]
"""Operations or bytes per second, by name."""


@dataclass(frozen=True)
class Figure:
    """A measured time; `what` is the start of its row on a page, if it has one.

    ratio: how many times as fast as `reference`, a plain form of the same; share: of the peak named
    `peak`. Both are None where there is nothing to compare with. others: how many times as fast as
    what people would use instead, by its name.
    """

    what: str
    seconds: float
    ratio: float | None = None
    reference: str = ""
    share: float | None = None
    peak: str = ""
    others: Mapping[str, float] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The time and what it is compared with, as docs/performance.md states it."""
        compared = []
        if self.ratio is not None:
            compared.append(f"{_two_digits(self.ratio)} times as fast as {self.reference}")
        if self.share is not None:
            compared.append(f"{self.share:.0%} of {self.peak}")
        for name, times in self.others.items():
            compared.append(f"{_two_digits(times)} times as fast as {name}")
        return ": ".join(filter(None, [duration(self.seconds), ", ".join(compared)]))


def duration(seconds: float) -> str:
    """Format as milliseconds, seconds, or minutes and seconds."""
    if seconds >= 60:
        return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{_two_digits(seconds * 1e3)} ms"


def _two_digits(number: float) -> str:
    return f"{number:.1f}" if number < 10 else f"{number:,.0f}"


def measured_peaks(*, quick: bool) -> dict[str, float]:
    """Measure square matrix products in two precisions, and a copy in memory, at their fastest."""
    side = 64 if quick else 2048

    def rate(form: Form, amount: float) -> float:
        return amount / min(interleaved({"": form}, rounds=5)[""].rounds)

    peaks = {}
    for name, dtype in ((FP32, torch.float32), (BF16, torch.bfloat16)):
        # emulated bfloat16 takes long for large matrices
        emulated = dtype == torch.bfloat16 and not has_bfloat16(torch.device("cpu"))
        size = side // 8 if emulated else side
        square = torch.rand(size, size).to(dtype)
        peaks[name] = rate(partial(torch.matmul, square, square), 2.0 * size**3)
    source = torch.zeros(2**16 if quick else 2**26)
    peaks[MEMORY] = rate(partial(torch.empty_like(source).copy_, source), 2.0 * source.nbytes)
    return peaks


def training(peaks: Peaks, *, quick: bool, rounds: int) -> list[Figure]:
    """Return a training step and beam search of both sizes of captioners."""
    sizes = train.QUICK if quick else train.Sizes()
    batch, figures = train.make_batch(sizes), []
    tokens = int(batch.is_token.sum())
    for name, config in _models(quick=quick).items():
        captioner = train.new_captioner(config, sizes)
        difference = train.gradient_difference(captioner, batch)
        steps = train.step_forms(captioner, batch)
        timings = interleaved(steps, rounds=rounds)
        title = f"{name}: training step; gradients differ by {difference:.0e}"
        print_timings(title, timings, reference=train.PLAIN, count=tokens, unit="tokens")
        print_profile(f"{name}: training step", steps[train.A2])
        searches = train.search_forms(captioner, batch)
        searched = interleaved(searches, rounds=rounds)
        best = [[image[0].tokens for image in form()] for form in searches.values()]
        alike = sum(ours == plain for ours, plain in zip(*best, strict=True))
        title = f"{name}: beam search; same captions: {alike} of {sizes.images}"
        print_timings(title, searched, reference="plain", count=sizes.images)
        print_profile(f"{name}: beam search", searches["cached"])
        for kind, measured, ours, form, reference in (
            ("training step", timings, train.A2, steps[train.A2], "one pass per loss"),
            ("beam search", searched, "cached", searches["cached"], "without a cache"),
        ):
            seconds, plain = measured[ours], measured[train.PLAIN]
            count = floating_operations(form)
            what = f"{kind}, {name}"
            figures.append(_compared(what, seconds, plain, reference, count, peaks[FP32]))
    return figures


def _models(*, quick: bool) -> Mapping[str, TransformerConfig]:
    return {"2+2 layers of 128": train.SMALL} if quick else train.MODELS


def alignment(peaks: Peaks, *, quick: bool, rounds: int) -> list[Figure]:
    """Print what alignment costs; it has no row of its own."""
    sizes = train.QUICK if quick else train.Sizes()
    batch = train.make_batch(sizes)
    for name, config in _models(quick=quick).items():
        click.echo(f"{name}: {train.price(config, sizes, batch, rounds=rounds)}")
    return []


def _compared(
    what: str, ours: Timing, plain: Timing, reference: str, operations: float, peak: float
) -> Figure:
    seconds = ours.median
    share = operations / seconds / peak
    return Figure(what, seconds, plain.median / seconds, reference, share, FP32)


def alternatives(peaks: Peaks, *, quick: bool, rounds: int) -> list[Figure]:
    """Return an update and beam search of captioners as large as BART of `transformers`."""
    sizes = train.QUICK if quick else train.Sizes()
    config = train.SMALL if quick else TransformerConfig()
    none = AlignmentConfig(fusion="none")
    captioner = train.new_captioner(config, sizes)
    plain = train.new_captioner(config.model_copy(update={"alignment": none}), sizes)
    bart = Bart(config, sizes)
    computed: dict[str, tuple[Any, Any]] = {"fp32": (train.a2_gradients, bart_gradients)}
    barts, compared = {"fp32": bart}, {"fp32": {TRANSFORMERS: "fp32"}}
    # emulated bfloat16 takes minutes per round
    if has_bfloat16(torch.device("cpu")):
        computed["bf16"] = train.mixed_gradients, mixed_bart_gradients
        # as it generates fastest: under autocast it takes a tenth longer
        barts["bf16"] = copy.deepcopy(bart).bfloat16()
        compared["bf16"] = {TRANSFORMERS: "bf16", DEFAULT: "fp32"}
    figures = []
    for lengths, mean, deviation in (
        ("COCO's lengths", sizes.mean, sizes.deviation),
        (f"{sizes.tokens} tokens each", float(sizes.tokens), 0.0),
    ):
        batch = train.make_batch(replace(sizes, mean=mean, deviation=deviation))
        for precision, (ours, _) in computed.items():
            forms: dict[str, Form] = {
                "both losses": partial(train.training_step(captioner.train(), ours), batch),
                "one loss": partial(train.training_step(plain.train(), ours), batch),
            }
            others: dict[str, Form] = {
                name: partial(train.training_step(bart.train(), computed[its][1]), batch)
                for name, its in compared[precision].items()
            }
            title = f"update on {batch.captions[..., 0].numel()} captions, {lengths}, {precision}"
            figures += _beside(title, forms, others, rounds=rounds)
    for images in (sizes.images, sizes.images if quick else 5 * sizes.images):
        batch = train.make_batch(replace(sizes, images=images))
        for precision in computed:
            forms = {
                "aligned": partial(train.search_in(precision, captioner.eval()), batch),
                "not aligned": partial(train.search_in(precision, plain.eval()), batch),
            }
            others = {
                name: partial(bart_search, barts[its].eval(), batch)
                for name, its in compared[precision].items()
            }
            title = f"beam search of {images} images, {precision}"
            figures += _beside(title, forms, others, rounds=rounds)
    return figures


def _beside(
    title: str, forms: dict[str, Form], others: dict[str, Form], *, rounds: int
) -> list[Figure]:
    """Time forms and the alternatives to each of them."""
    timings = interleaved({**forms, **others}, rounds=rounds)
    return [
        Figure(
            f"{title}, {form}",
            timings[form].median,
            others={name: timings[name].median / timings[form].median for name in others},
        )
        for form in forms
    ]


def storing(peaks: Peaks, *, quick: bool, rounds: int) -> list[Figure]:
    """Return writing and reading of a feature store."""
    images = store.make_images(20 if quick else 1000)
    order = [str(image_id) for image_id in np.random.default_rng(1).permutation([*images])]
    size = sum(regions.features.nbytes for regions in images.values())
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "written"

        def empty() -> None:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()

        forms: dict[str, Form] = {
            "write": partial(store.write_store, folder, images),
            ARRAYS: partial(store.write_arrays, folder, images),
        }
        written = interleaved(forms, rounds=rounds, before=empty)
        for form in forms.values():
            form()
        forms = {
            "read": partial(store.read_store, folder, order),
            ARRAYS: partial(store.read_arrays, folder, order),
        }
        read = interleaved(forms, rounds=rounds)
        forms = {
            f"load with {workers} workers": partial(
                store.load_batches, folder, order, workers=workers
            )
            for workers in range(3)
        }
        loaded = interleaved(forms, rounds=rounds)
    print_timings("loader", loaded, reference=next(iter(forms)), count=len(images))
    figures = []
    for what, timings in (("write", written), ("read", read)):
        seconds, arrays = timings[what].median, timings[ARRAYS].median
        share = size / seconds / peaks[MEMORY]
        title = f"{what} features of {len(images):,} images"
        figures.append(
            Figure(title, seconds, share=share, peak=MEMORY, others={ARRAYS: arrays / seconds})
        )
    return figures


def sampling(peaks: Peaks, *, quick: bool, rounds: int) -> list[Figure]:
    """Return a self-critical step and its reward."""
    sizes = self_critical.QUICK if quick else self_critical.Sizes()
    model = self_critical.SMALL if quick else TransformerConfig()
    corpus = self_critical.make_corpus(sizes)
    rewards = self_critical.compare_rewards(sizes, corpus, rounds=5 * rounds)
    steps, operations = self_critical.compare_steps(sizes, model, corpus, rounds=rounds)
    ours, plain = steps[self_critical.A2], steps[self_critical.PLAIN]
    reward, python = rewards[self_critical.A2].median, rewards[self_critical.PLAIN].median
    reference = "back-propagation through every step"
    return [
        _compared("self-critical step", ours, plain, reference, operations, peaks[FP32]),
        Figure("CIDEr-D reward of 250 captions", reward, python / reward, "pycocoevalcap"),
    ]


def extraction(peaks: Peaks, *, quick: bool, rounds: int) -> list[Figure]:
    """Return the extraction of an image by precision."""
    base, depth, width = (extract.QUICK, 18, 8) if quick else (extract.FULL, 101, 64)
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        path = extract.draw_image(Path(folder) / "image.jpg")
        detector = extract.make_detector(path, base, depth=depth, width=width)
        timings = extract.time_precisions(detector, path, base, rounds=rounds)
        print_timings("one image", timings, reference=extract.PLAIN, count=1)
        config = extract.fixed(base, 36, precision="exact")
        stages = extract.time_stages(detector, config, path)
        rows = [[name, f"{seconds:.4f}"] for name, seconds in stages.items()]
        print_table(f"one image, {base.proposals} proposals", ["", "s"], rows)
        form = extract.form_of(detector, config, path)
        operations = floating_operations(form)
        print_profile("extraction", form)
    plain = timings.pop(extract.PLAIN)
    reference = "our plain version"
    figures = []
    for name, timing in timings.items():
        count, peak = (operations, FP32) if name.startswith("exact") else (None, "")
        share = None if count is None else count / timing.median / peaks[FP32]
        ratio = plain.median / timing.median
        figures.append(
            Figure(f"extract an image, {name}", timing.median, ratio, reference, share, peak)
        )
    return figures


def drawing(peaks: Peaks, *, quick: bool, rounds: int) -> list[Figure]:
    """Return the time of 20,000 scenes, from fewer."""
    count = 40 if quick else 400
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "scenes"
        forms = {"scenes": partial(write_scenes, folder, count=count)}
        emptied = partial(shutil.rmtree, folder, ignore_errors=True)
        timings = interleaved(forms, rounds=rounds, warm_up=0, before=emptied)
    return [Figure(f"write {SCENES:,} scenes", timings["scenes"].median * SCENES / count)]


def demo(peaks: Peaks, *, quick: bool, rounds: int) -> list[Figure]:
    """Return the time of the demo, which has no reference; it sets one thread and comes last."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        overrides, count = (["train.epochs=1"], 40) if quick else ([], 1200)
        run_demo(Path(folder), overrides, report=lambda *_: None, scenes=count)
        return [Figure("`make demo`, installed", time.perf_counter() - started)]


GROUPS: dict[str, Callable[..., list[Figure]]] = {
    "training": training,
    "alignment": alignment,
    "alternatives": alternatives,
    "store": storing,
    "sampling": sampling,
    "extraction": extraction,
    "scenes": drawing,
    "demo": demo,
}


def moved(before: Sequence[Mapping[str, Any]], now: Sequence[Figure]) -> list[str]:
    """Name the figures whose ratio, or without one their time, moved by more than a tenth."""
    earlier = {figure["what"]: Figure(**figure) for figure in before}
    lines = []
    for figure in now:
        past = earlier.get(figure.what)
        if past is None:
            continue
        ours, theirs = figure.ratio or 1 / figure.seconds, past.ratio or 1 / past.seconds
        if abs(change := ours / theirs - 1) > MOVED:
            kind = "ratio" if figure.ratio else "speed"
            lines.append(f"moved: {figure.what}: {kind} {change:+.0%}, {past.text} before")
    return lines


def with_results(page: str, results: Mapping[str, Any], *, short: bool) -> str:
    """Return a page with the figures of its rows, and the machine.

    short: the times alone, and each alternative in the column of its name or in `others`.
    """
    about = ", ".join(results["machine"][:5])
    page = re.sub(
        r"^(By `make bench`.*? on ).*:$", lambda machine: f"{machine[1]}{about}:", page, flags=re.M
    )
    figures, names, lines = [Figure(**entry) for entry in results["figures"]], [""], []
    for line in page.split("\n"):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        names = cells if cells[0] == "what" else names
        written = line
        for figure in figures:
            if line.startswith(f"| {figure.what}"):
                cells[1] = duration(figure.seconds) if short else figure.text
                for name, times in figure.others.items():
                    text = f"{_two_digits(times)} ×"
                    if name in names:
                        cells[names.index(name)] = text
                    elif "others" in names:
                        cells[names.index("others")] = f"{name}: {text}"
                written = f"| {' | '.join(cells)} |"
        lines.append(written)
    return "\n".join(lines)


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    described = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return described.stdout.strip() or "unknown"


@click.command()
@click.option("--quick", is_flag=True, help="Use tiny sizes, only to check that it runs.")
@click.option("--only", multiple=True, type=click.Choice(list(GROUPS)), help="Run these groups.")
@click.option("--rounds", type=click.IntRange(1), default=1, show_default=True)
@click.option("--pages", is_flag=True, help="Only write the last results into README and docs.")
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="JSON file of the results; by default results/cpu.json, none with --quick.",
)
def main(quick: bool, only: tuple[str, ...], rounds: int, pages: bool, output: Path | None) -> None:
    """Measure all parts, or some of them."""
    if output is None and not (quick or only):
        output = RESULTS / "cpu.json"
    if pages:
        results = json.loads((output or RESULTS / "cpu.json").read_text())
        for page, short in PAGES.items():
            page.write_text(with_results(page.read_text(), results, short=short))
        return
    print_machine()
    about, started = machine(), time.perf_counter()
    peaks = measured_peaks(quick=quick)
    figures: list[Figure] = []
    failed = {}
    for name in only or GROUPS:
        try:
            figures += GROUPS[name](peaks, quick=quick, rounds=rounds)
        except Exception as error:  # the other groups still run
            failed[name] = f"{type(error).__name__}: {error}"
    seconds = time.perf_counter() - started
    _report(figures, peaks, failed, seconds)
    if output is not None:
        before = json.loads(output.read_text())["figures"] if output.exists() else []
        for line in moved(before, figures):
            click.echo(line)
        results = {
            "machine": about,
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "commit": _commit(),
            "versions": installed_versions(),
            "seconds": seconds,
            "peaks": peaks,
            "figures": [asdict(figure) for figure in figures],
            "failed": failed,
        }
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps(results, indent=1) + "\n")
    if failed:
        raise click.ClickException(f"not measured: {failed}")


def _report(
    figures: Sequence[Figure], peaks: Peaks, failed: Mapping[str, str], seconds: float
) -> None:
    units = {FP32: "GFLOP/s", BF16: "GFLOP/s", MEMORY: "GB/s"}
    rows = [[name, f"{rate / 1e9:,.0f} {units[name]}"] for name, rate in peaks.items()]
    print_table("measured peaks of the machine", ["", "rate"], rows)
    rows = [[figure.what, figure.text] for figure in figures]
    print_table(f"all figures, measured in {duration(seconds)}", ["", "figure"], rows)


if __name__ == "__main__":
    main()

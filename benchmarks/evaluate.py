"""Time to score captions with all metrics except SPICE, compared with pycocoevalcap.

Scores 5,000 published captions with five references each if the folder `../shared` has them, else
captions of generated scenes. All forms must give equal values to 1e-6.
"""

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import numpy as np

from a2cap.data.scenes.captions import generate_captions
from a2cap.data.scenes.scene import make_scene, raw_text
from a2cap.pipeline.evaluation.results import read_references, read_results
from a2cap.pipeline.metrics.java import find_java
from a2cap.pipeline.metrics.pycocoevalcap import pycocoevalcap_folder
from a2cap.pipeline.metrics.score import METRICS, score
from a2cap.pipeline.metrics.tokenization import tokenize
from benchmarks.measure import Timing, interleaved, print_machine, print_table

PYCOCOEVALCAP, OURS = "pycocoevalcap", "a2"
SCORED = tuple(name for name in METRICS if name not in ("SPICE", "SPIDEr"))
TOLERANCE = 1e-6

Captions = Mapping[str, list[str]]


SHARED = Path(__file__).resolve().parents[1].parent / "shared" / "coco"


def published_captions(count: int) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Return Karpathy test captions of the "init" model of "Where to put the image"."""
    results = read_results(SHARED / "results" / "where-image2_init_1.json.gz")
    references = read_references(SHARED / "text" / "captions_karpathy_test_gt.json.gz")
    chosen = list(results)[:count]
    return {i: [results[i]] for i in chosen}, {i: references[i] for i in chosen}


def make_captions(count: int) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Return one candidate and five references for each scene, spelt as people write."""
    candidates, references = {}, {}
    rng = np.random.default_rng(1)
    for index in range(count):
        scene = make_scene(index, seed=0, side=160)
        references[scene.image_id] = [raw_text(caption) for caption in scene.captions]
        candidates[scene.image_id] = [raw_text(generate_captions(scene.objects, rng)[0])]
    return candidates, references


def score_by_pycocoevalcap(candidates: Captions, references: Captions) -> dict[str, float]:
    """Score like COCOEvalCap.evaluate, without SPICE, messages and values per image."""
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.meteor.meteor import Meteor
    from pycocoevalcap.rouge.rouge import Rouge
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

    tokenizer = PTBTokenizer()
    targets = tokenizer.tokenize(_annotations(references))
    hypotheses = tokenizer.tokenize(_annotations(candidates))
    found: dict[str, float] = {}
    for names, scorer in (
        (SCORED[:4], Bleu(4)),
        (["METEOR"], Meteor()),
        (["ROUGE_L"], Rouge()),
        (["CIDEr"], Cider()),
    ):
        overall, _ = scorer.compute_score(targets, hypotheses)
        found.update(zip(names, np.atleast_1d(overall).tolist(), strict=True))
    return found


def _annotations(captions: Captions) -> dict[str, list[dict[str, str]]]:
    return {image_id: [{"caption": text} for text in texts] for image_id, texts in captions.items()}


def score_by_ours(candidates: Captions, references: Captions) -> dict[str, float]:
    """Score like `a2 score`."""
    return score(tokenize(candidates), tokenize(references)).metrics


@contextmanager
def no_space_in_path() -> Iterator[None]:
    """Provide pycocoevalcap at a path without a space, with which its METEOR hangs."""
    installed = pycocoevalcap_folder()
    with TemporaryDirectory() as folder:
        if " " in str(installed):
            shutil.copytree(installed, Path(folder) / installed.name)
            sys.path.insert(0, folder)
        yield


@contextmanager
def silence() -> Iterator[None]:
    """Discard the output of pycocoevalcap and of its JVMs."""
    standard_error = os.dup(2)
    with Path(os.devnull).open("w") as null, redirect_stdout(null):
        os.dup2(null.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(standard_error, 2)
            os.close(standard_error)


def time_forms(
    captions: tuple[Captions, Captions], *, rounds: int
) -> tuple[dict[str, Timing], dict[str, dict[str, float]]]:
    """Return the timings and the metrics of each form."""
    candidates, references = captions
    score_by_ours(candidates, references)  # prepares the paraphrases on first use
    scorings: dict[str, Callable[[], dict[str, float]]] = {
        PYCOCOEVALCAP: partial(score_by_pycocoevalcap, candidates, references),
        OURS: partial(score_by_ours, candidates, references),
    }
    found: dict[str, dict[str, float]] = {name: {} for name in scorings}

    def recorded(name: str) -> None:
        found[name].update(scorings[name]())

    with silence():
        forms = {name: partial(recorded, name) for name in scorings}
        return interleaved(forms, rounds=rounds, warm_up=0), found


def check_equal(found: Mapping[str, Mapping[str, float]]) -> None:
    """Raise ClickException if a form's value differs from pycocoevalcap's or is missing."""
    expected = found[PYCOCOEVALCAP]
    for form, metrics in found.items():
        for name in SCORED:
            if not abs(metrics.get(name, np.nan) - expected[name]) <= TOLERANCE:
                raise click.ClickException(
                    f"{name} of {form} is {metrics.get(name)}, of {PYCOCOEVALCAP} "
                    f"{expected[name]}; fix a2cap.pipeline.metrics.score"
                )


def print_timings(timings: Mapping[str, Timing], *, count: int) -> None:
    """Print seconds, and each as a share of pycocoevalcap's."""
    whole = timings[PYCOCOEVALCAP].median
    rows = [
        [
            name,
            f"{timing.median:.2f}",
            timing.spread,
            f"{count / timing.median:,.0f}",
            f"{timing.median / whole:.2f}",
        ]
        for name, timing in timings.items()
    ]
    header = ["", "s", "s in each round", "images/s", f"of {PYCOCOEVALCAP}"]
    print_table(f"scoring {count} captions, 5 references each", header, rows)


@click.command()
@click.option("--quick", is_flag=True, help="A few captions: shows that it runs, not how fast.")
def main(quick: bool) -> None:
    """Time the scoring of captions against five references each."""
    print_machine()
    count, rounds = (20, 1) if quick else (5000, 3)
    # pycocoevalcap calls java by name.
    os.environ["PATH"] = os.pathsep.join([str(find_java().parent), os.environ.get("PATH", "")])
    captions = published_captions(count) if SHARED.is_dir() else make_captions(count)
    with no_space_in_path():
        timings, found = time_forms(captions, rounds=rounds)
    check_equal(found)
    print_timings(timings, count=count)
    values = ", ".join(f"{name} {found[OURS][name]:.4f}" for name in SCORED)
    click.echo(f"\nequal to {TOLERANCE:g}: {values}")


if __name__ == "__main__":
    main()

"""Duration of `a2 demo` by stage, and CIDEr and truth of its captioner, seeing and blind."""

import json
import logging
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from a2cap.pipeline.config import load_config
from a2cap.pipeline.demo import SCENES, run_demo
from a2cap.pipeline.engine.run import Outcome
from a2cap.pipeline.metrics.truth import TRUTH
from benchmarks.measure import print_machine, print_table, ratio


@click.command()
@click.option("--quick", is_flag=True, help="60 scenes and one epoch: seconds instead of minutes.")
def main(quick: bool) -> None:
    """Run the demo once, without the start of Python."""
    print_machine()
    logging.disable(logging.WARNING)  # after one epoch of --quick the masks cause a warning
    rows: list[list[str]] = []

    def say(name: str, outcome: Outcome) -> None:
        rows.append([name, f"{outcome.manifest.seconds:.1f}"])

    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        overrides, scenes = (["train.epochs=1"], 60) if quick else ([], SCENES)
        directory = run_demo(Path(folder), overrides, report=say, scenes=scenes).evaluation
        rows.append(["all", f"{time.perf_counter() - started:.1f}"])
        seeing = _metrics(directory / "metrics.json")
        baseline = load_config(directory / "config.yaml").evaluate.baseline
        blind = _metrics(Path(str(baseline)))
        print_table(f"demo, {scenes} scenes", ["stage", "s"], rows)
    ciders = [found["metrics"]["CIDEr"] for found in (seeing, blind)]
    figures = [*(f"{cider:.3f}" for cider in ciders), ratio(ciders[0], ciders[1])]
    print_table("test CIDEr", ["seeing", "blind", "seeing by blind"], [figures])
    _print_truth({"seeing": seeing, "blind": blind})


def _metrics(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8")))


def _print_truth(found: Mapping[str, Mapping[str, Any]]) -> None:
    """Print how much of what the captions state is true."""
    rows = [[name, *(_share(one["metrics"].get(name)) for one in found.values())] for name in TRUTH]
    print_table("truth of the captions", ["share", *found], rows)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


if __name__ == "__main__":
    main()

"""How long `a2 demo` takes in an empty folder, by stage, and what its captioner gains by seeing."""

import json
import logging
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from a2.pipeline.config import load_config
from a2.pipeline.demo import SCENES, run_demo
from a2.pipeline.engine.run import Outcome

if TYPE_CHECKING:  # run as a file, a script finds its neighbours without the folder's name
    from benchmarks.measure import print_machine, print_table, ratio
else:
    from measure import print_machine, print_table, ratio


@click.command()
@click.option("--quick", is_flag=True, help="60 scenes and one epoch: seconds instead of minutes.")
def main(quick: bool) -> None:
    """Runs the demo once, without the start of Python."""
    print_machine()
    logging.disable(logging.WARNING)  # one epoch of --quick leaves masks that are warned of
    rows: list[list[str]] = []

    def say(name: str, outcome: Outcome) -> None:
        rows.append([name, f"{outcome.manifest.seconds:.1f}"])

    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        overrides, scenes = (["train.epochs=1"], 60) if quick else ([], SCENES)
        directory = run_demo(Path(folder), overrides, say=say, scenes=scenes)
        rows.append(["all", f"{time.perf_counter() - started:.1f}"])
        seeing = _cider(directory / "metrics.json")
        baseline = load_config(directory / "config.yaml").evaluate.baseline
        blind = _cider(Path(str(baseline)))
    print_table(f"demo, {scenes} scenes", ["stage", "s"], rows)
    figures = [f"{seeing:.3f}", f"{blind:.3f}", ratio(seeing, blind)]
    print_table("test CIDEr", ["seeing", "blind", "ratio"], [figures])


def _cider(path: Path) -> float:
    return float(json.loads(path.read_text())["metrics"]["CIDEr"])


if __name__ == "__main__":
    main()

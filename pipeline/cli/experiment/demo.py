"""Command `a2 demo`: scenes, a captioner and a blind control, without a download."""

import shlex
import sys
from pathlib import Path
from shutil import which

import click

from a2cap.pipeline.cli.options import FOLDER, log, set_option, verbose_option
from a2cap.pipeline.cli.output import print_outcome
from a2cap.pipeline.cli.scores import print_evaluation
from a2cap.pipeline.demo import Demo, run_demo
from a2cap.pipeline.engine.artifacts import REPORT


@click.command()
@click.option(
    "--folder",
    type=FOLDER,
    default=Path("artifacts/demo"),
    show_default=True,
    help="Write the scenes and the results into this folder.",
)
@set_option
@verbose_option
def demo(folder: Path, overrides: tuple[str, ...], verbose: bool) -> None:
    """Draw scenes, train a captioner and a blind control.

    Prints the scores, and two commands to copy: one opens the report, one captions an image.

    \b
    Example:
      a2 demo
    """
    log(verbose)
    done = run_demo(folder, overrides, report=print_outcome)
    print_evaluation(done.evaluation)
    _print_next_steps(done)


def _print_next_steps(demo: Demo) -> None:
    """Print the command that opens the demo's report, and one that captions an image."""
    program = "a2" if which("a2") == sys.argv[0] else sys.argv[0]
    report = (demo.evaluation / REPORT).resolve().as_uri()
    caption = [program, "caption", demo.image, "--model", demo.captioner]
    for words in (
        [sys.executable, "-m", "webbrowser", report],
        [*caption, "--figure", "attention.png"],
    ):
        click.echo(shlex.join(map(str, words)))

"""Command `a2 demo`: scenes, a captioner and a blind control, without a download."""

from pathlib import Path

import click

from a2cap.pipeline.cli.options import FOLDER, log, set_option, verbose_option
from a2cap.pipeline.cli.output import print_evaluation, print_next_steps, print_outcome
from a2cap.pipeline.demo import run_demo


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
    print_next_steps(done)

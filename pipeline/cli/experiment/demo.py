"""Command `a2 demo`: scenes, a captioner and a blind control, without a download."""

import shlex
import sys
from pathlib import Path
from shutil import which

import click

import a2cap
from a2cap.pipeline.cli.options import FOLDER, log, set_option, verbose_option
from a2cap.pipeline.cli.output import print_outcome
from a2cap.pipeline.cli.print_scores import print_evaluation
from a2cap.pipeline.demo import Demo, run_demo
from a2cap.pipeline.engine.artifact_names import REPORT


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

    Prints the scores, the caption of a photograph by the bundled captioner, and three commands to
    copy: caption the photograph, serve a page for images, open the report.

    \b
    Example:
      a2 demo
    """
    log(verbose)
    done = run_demo(folder, overrides, report=print_outcome)
    print_evaluation(done.evaluation)
    click.echo(f"{done.photo.name}: {a2cap.load(device='cpu')(done.photo).caption}")
    _print_next_steps(done)


def _print_next_steps(demo: Demo) -> None:
    """Print the commands that caption a photograph, open the page and open the report."""
    program = "a2" if which("a2") == sys.argv[0] else sys.argv[0]
    report = (demo.evaluation / REPORT).resolve().as_uri()
    commands: dict[str, list[object]] = {
        "caption a photograph, or one of your own:": [
            *(program, "caption", demo.photo, "--figure", "photo.png")
        ],
        "open a page on which images are dropped:": [program, "serve"],
        "open the report:": [sys.executable, "-m", "webbrowser", report],
    }
    for purpose, words in commands.items():
        click.echo(f"{purpose}\n  {shlex.join(map(str, words))}")

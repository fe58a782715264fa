"""Entry point of `a2`: its commands by section, each in a module of its own name."""

import os

import click

from a2cap.pipeline.cli.commands import LazyCommands
from a2cap.pipeline.runtime.openmp import set_wait_policy

_CLI = "a2cap.pipeline.cli"
_SECTIONS = {
    "Run": (
        f"{_CLI}.experiment",
        {
            "demo": "Draw scenes, train a captioner and a blind control.",
            "run": "Run all stages; skip those whose result exists.",
            "sweep": "Run a grid of settings; print means over seeds.",
            "extract": "Extract region features of images into a store.",
            "preprocess": "Preprocess captions into token ids.",
            "train": "Train a captioner, or the image encoder that its features come from.",
            "evaluate": "Evaluate a captioner.",
            "status": "Show finished stages, and why others would run.",
        },
    ),
    "Own images": (
        f"{_CLI}.images",
        {
            "caption": "Caption image files with a trained captioner.",
            "serve": "Serve a page that captions the images dropped on it.",
        },
    ),
    "Judge": (
        f"{_CLI}.judging",
        {
            "runs": "List trainings and their scores.",
            "score": "Score captions against references.",
            "compare": "Compare two evaluations over the same images.",
            "human": "Let people compare the captions of two captioners.",
            "analyze": "Measure attention faithfulness and compare runs.",
        },
    ),
    "Data and weights": (
        f"{_CLI}.data",
        {
            "annotations": "Show what is read of captions; write JSON Lines.",
            "karpathy": "Rebuild Karpathy's dataset_coco.json.",
            "scenes": "Draw a synthetic data set into a new FOLDER.",
            "convert": "Convert region features between formats.",
            "detector": "Train and evaluate an object detector.",
            "weights": "List, download, import and show weights.",
        },
    ),
    "Upkeep": (
        f"{_CLI}.upkeep",
        {
            "config": "Show, explain and compare settings.",
            "doctor": "Check everything that the stages need.",
            "verify": "Verify results, stores, checkpoints and captioners.",
            "clean": "List removable artifacts, or delete them.",
        },
    ),
}

_FIRST_SCREEN = """\
a2 captions images and trains captioners with attention aligned to regions.

  a2 extract      images -> region features
  a2 preprocess   captions -> vocabulary and token ids
  a2 train        both -> captioner
  a2 evaluate     captioner -> captions, scores and a report

try: a2 caption photo.jpg
all commands: a2 --help"""


@click.group(
    "a2",
    cls=LazyCommands,
    sections=_SECTIONS,
    context_settings={"help_option_names": ["-h", "--help"]},
    invoke_without_command=True,
)
@click.version_option(package_name="a2cap", prog_name="a2")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Train and evaluate the A2 Transformer, an attention-aligned image captioner.

    \b
    Example:
      a2 run -c configs/smoke.yaml --set data.images=coco/images \\
             --set data.annotations=coco/dataset_coco.json
    """
    if ctx.invoked_subcommand is None:
        click.echo(_FIRST_SCREEN)


def main() -> None:
    """Run the `a2` command."""
    set_wait_policy(os.environ)  # OpenMP reads it once, when torch is imported
    cli()

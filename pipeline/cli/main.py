"""Entry point of `a2` and the commands that run stages.

A command parses its options, runs stages and prints the result. It imports torch and the stages
itself, so that `a2 --help` takes less than 0.5 s.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from a2cap.pipeline.cli.data.convert import convert
from a2cap.pipeline.cli.data.detector import detector
from a2cap.pipeline.cli.data.karpathy import karpathy
from a2cap.pipeline.cli.data.scenes import scenes
from a2cap.pipeline.cli.data.weights import weights
from a2cap.pipeline.cli.images.caption import caption, submit
from a2cap.pipeline.cli.images.serve import serve
from a2cap.pipeline.cli.judging.analyze import analyze
from a2cap.pipeline.cli.judging.compare import compare
from a2cap.pipeline.cli.judging.human import human
from a2cap.pipeline.cli.maintenance import clean, config, doctor, verify
from a2cap.pipeline.cli.options import (
    EXIT_SKIPPED,
    FILE,
    FOLDER,
    PATH,
    Commands,
    ExperimentOptions,
    experiment_options,
    force_option,
    log,
    require_existing,
    set_option,
    verbose_option,
)
from a2cap.pipeline.cli.output import (
    has_spice,
    print_evaluation,
    print_next_steps,
    print_outcome,
    print_scores,
    print_shard,
    print_status,
)
from a2cap.pipeline.cli.runs import runs
from a2cap.pipeline.cli.sweep import sweep
from a2cap.pipeline.runtime.openmp import set_wait_policy

if TYPE_CHECKING:
    from a2cap.pipeline.experiment import Experiment


@click.group("a2", cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="a2cap", prog_name="a2")
def cli() -> None:
    """Train and evaluate the A2 Transformer, an attention-aligned image captioner.

    \b
    Example:
      a2 run -c configs/smoke.yaml --set data.images=coco/images \\
             --set data.annotations=coco/dataset_coco.json
    """


@cli.command()
@experiment_options()
@force_option
@click.option(
    "--images",
    type=FOLDER,
    help="Extract this folder of images, without an experiment; needs --output.",
)
@click.option(
    "--output",
    type=PATH,
    help="Write the store and the extractor of --images into this new folder.",
)
@click.option(
    "--shard",
    metavar="i/N",
    help="Extract part i of N (0/4 to 3/4), one process per part; auto: take i and N from a Slurm "
    "job array 0-(N-1) or torchrun. The last process to finish joins the parts.",
)
def extract(
    options: ExperimentOptions,
    force: bool,
    images: Path | None,
    output: Path | None,
    shard: str | None,
) -> None:
    """Extract region features of images into a store.

    \b
    Example:
      a2 extract --images my-images --output my-features \\
                 --set extract.weights=faster_rcnn_from_caffe_attr.pkl
    """
    if (images is None) != (output is None):
        raise click.UsageError("--images and --output belong together; name both or neither")
    folder: tuple[str, ...] = ()
    if images is not None:  # all of the folder's images, not those of an annotation file
        from a2cap.pipeline.config import override

        unset = ("data.annotations=null", "data.features=null")
        folder = (override("data.images", images), *unset)
    with options.open(*folder) as experiment:
        if shard is None:
            _run_stages(experiment, ["extract"], force=force, output=output)
        else:
            _run_shard(experiment, shard, force=force, output=output)


@cli.command()
@experiment_options()
@force_option
@click.option("--preset", metavar="NAME", help="Short for --set preprocess.vocabulary=NAME.")
@click.option(
    "--prove",
    is_flag=True,
    help="Compare the words with the published ones of the preset; write nothing.",
)
def preprocess(options: ExperimentOptions, force: bool, preset: str | None, prove: bool) -> None:
    """Preprocess captions into token ids.

    Writes the vocabulary, token ids, reference tokens and document frequencies.

    \b
    Example:
      a2 preprocess -c configs/a2-gate.yaml --set data.annotations=coco/dataset_coco.json
      a2 preprocess --preset m2 --prove --set data.annotations=coco/dataset_coco.json
    """
    from a2cap.pipeline.stages.preprocess import prove_vocabulary

    with options.open(*([f"preprocess.vocabulary={preset}"] if preset else [])) as experiment:
        if prove:
            click.echo(prove_vocabulary(experiment.annotations, experiment.config.preprocess))
        else:
            _run_stages(experiment, ["preprocess"], force=force)


@cli.command()
@experiment_options(distributed=True)
@force_option
@click.option(
    "--phase",
    type=click.Choice(["xe", "scst", "all"]),
    default="all",
    show_default=True,
    help="Train only this phase. xe: cross-entropy. scst: self-critical, after cross-entropy, if "
    "scst.epochs is set. --force covers the chosen phases.",
)
def train(options: ExperimentOptions, force: bool, phase: str) -> None:
    """Train a captioner on features and captions.

    With several GPUs, run torchrun --nproc-per-node 2 -m a2cap.pipeline train with the options
    below. train.batch_size is the global batch size; stages and keys are those of one process.

    \b
    Example:
      a2 train -c configs/a2-gate.yaml --set train.batch_size=20
      a2 train -c configs/a2-gate.yaml --phase scst --set scst.epochs=15
    """
    with options.open() as experiment:
        _run_stages(experiment, experiment.phase(phase), force=force)


@cli.command()
@experiment_options()
@force_option
@click.option(
    "--results",
    type=FILE,
    help="Score these external captions (COCO results); needs --references and --output.",
)
@click.option(
    "--references",
    type=FILE,
    help="References of --results: a COCO caption file, or dataset_coco.json.",
)
@click.option("--output", type=FOLDER, help="Write the scores of --results into this folder.")
@click.option(
    "--allow-missing", is_flag=True, help="Score --results that lack captions of some images."
)
@click.option("--images", type=FOLDER, help="Show the images of this folder in the report.")
def evaluate(
    options: ExperimentOptions,
    force: bool,
    results: Path | None,
    references: Path | None,
    output: Path | None,
    allow_missing: bool,
    images: Path | None,
) -> None:
    """Evaluate a captioner, or external captions.

    Writes scores and a report. External captions must contain exactly one non-empty caption for
    each image with references.
    With --allow-missing, the exit code is 3 if some are missing.

    \b
    Example:
      a2 evaluate -c configs/a2-gate.yaml --set evaluate.beam_size=3
      a2 evaluate --results theirs.json --references captions_val2014.json --output scores
    """
    named = [results, references, output]
    if any(named) and not all(named):
        raise click.UsageError("--results, --references and --output belong together; name all")
    if results is None and (allow_missing or images):
        option = "--allow-missing" if allow_missing else "--images"
        raise click.UsageError(f"{option} belongs to --results; name them, or leave it out")
    if results is None or references is None or output is None:
        with options.open() as experiment:
            _run_stages(experiment, ["evaluate"], force=force)
        return
    require_existing({"--results": [results], "--references": [references]})
    from a2cap.pipeline.evaluation.evaluate import score_results
    from a2cap.pipeline.evaluation.results import missing_captions

    log(options.verbose)
    config = options.config()
    found = score_results(
        results,
        references,
        output,
        force=force,
        allow_missing=allow_missing,
        spice=config.evaluate.spice,
        word_groups=config.data.word_groups,
        scenes=config.data.scenes,
        images=images,
        report_images=config.evaluate.report_images,
        tokenizer=config.preprocess.tokenizer,
    )
    print_scores(found.scores.metrics, found.scores.not_run)
    click.echo(f"report: {output / 'report.html'}")
    if found.skipped:
        text = missing_captions(list(found.skipped), found.total)
        click.echo(f"a2: {text}; scored without them", err=True)
    is_complete = not config.evaluate.spice or has_spice(found.scores.not_run)
    if found.skipped or not is_complete:
        raise click.exceptions.Exit(EXIT_SKIPPED)


@cli.command()
@experiment_options(distributed=True)
@click.option(
    "--until",
    type=click.Choice(["extract", "preprocess", "train", "evaluate"]),
    help="Stop after this stage.",
)
@click.option("--dry-run", is_flag=True, help="Print the stages that would run, and why.")
def run(options: ExperimentOptions, until: str | None, dry_run: bool) -> None:
    """Run all stages; skip those whose result exists.

    \b
    Example:
      a2 run -c configs/smoke.yaml --set data.images=coco/images \\
             --set data.annotations=coco/dataset_coco.json
    """
    with options.open() as experiment:
        # training ends with SCST if the experiment has it
        last = {"train": experiment.training[-1], None: "evaluate"}.get(until, until)
        names = experiment.names[: experiment.names.index(str(last)) + 1]
        if dry_run:
            print_status(experiment, names, explain=True)
        else:
            _run_stages(experiment, names)


@cli.command()
@experiment_options()
@click.option("--explain", is_flag=True, help="Print why a stage would run.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(options: ExperimentOptions, explain: bool, as_json: bool) -> None:
    """Show finished stages, and why others would run.

    \b
    Example:
      a2 status -c configs/a2-gate.yaml --explain
    """
    with options.open() as experiment:
        print_status(experiment, experiment.shown, explain=explain, as_json=as_json)


@cli.command()
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
    from a2cap.pipeline.demo import run_demo

    log(verbose)
    done = run_demo(folder, overrides, report=print_outcome)
    print_evaluation(done.evaluation)
    print_next_steps(done)


_SECTIONS: dict[str, tuple[click.Command, ...]] = {
    "Run": (demo, run, sweep, extract, preprocess, train, evaluate, status),
    "Own images": (caption, serve),
    "Judge": (runs, compare, human, analyze, submit),
    "Data and weights": (karpathy, scenes, convert, detector, weights),
    "Upkeep": (config, doctor, verify, clean),
}
for command in (command for commands in _SECTIONS.values() for command in commands):
    cli.add_command(command)
cli.sections = {
    title: [str(command.name) for command in commands] for title, commands in _SECTIONS.items()
}


def _run_stages(
    experiment: "Experiment", names: list[str], *, force: bool = False, output: Path | None = None
) -> None:
    from a2cap.pipeline.doctor.preflight import require_runnable

    require_runnable(experiment, names, force=force, output=output)
    skipped = ran = False
    for number, name in enumerate(names, start=1):
        if len(names) > 1:
            click.echo(f"stage {number} of {len(names)}: {name}", err=True)
        outcome = experiment.run(name, force=force, output=output)
        print_outcome(name, outcome)
        skipped = skipped or outcome.manifest.skipped > 0
        ran = ran or outcome.ran
    if not ran:
        click.echo("nothing to do: every result exists; --force reruns a stage")
    if names[-1] == "evaluate":
        spice = experiment.config.evaluate.spice
        skipped = not print_evaluation(outcome.directory, spice=spice) or skipped
    if skipped:
        raise click.exceptions.Exit(EXIT_SKIPPED)


def _run_shard(experiment: "Experiment", named: str, *, force: bool, output: Path | None) -> None:
    from a2cap.pipeline.doctor.preflight import require_runnable
    from a2cap.pipeline.extraction.cluster import shard_of

    shard = shard_of(named, os.environ)
    require_runnable(experiment, ["extract"], force=force, output=output)
    outcome = experiment.run_shard(shard, force=force, output=output)
    print_shard(outcome)
    if outcome.skipped or (outcome.stage and outcome.stage.manifest.skipped):
        raise click.exceptions.Exit(EXIT_SKIPPED)


def main() -> None:
    """Run the `a2` command."""
    set_wait_policy(os.environ)  # OpenMP reads it once, when torch is imported
    cli()

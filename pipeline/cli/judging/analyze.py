"""Command `a2 analyze`: attention faithfulness of trained captioners."""

from dataclasses import replace
from pathlib import Path

import click

from a2cap.data.errors import InputError
from a2cap.data.files.sealed_folder import read_manifest
from a2cap.pipeline.analysis.faithfulness import RUNS, RunAnalysis, analyse, write_analysis
from a2cap.pipeline.analysis.grounding import MEASURES, analyse_grounding
from a2cap.pipeline.analysis.trainings import OpenedRun, Run, read_run, trainings_in
from a2cap.pipeline.analysis.word_boxes import read_word_boxes
from a2cap.pipeline.captioning.adapted.pretrained import pretrained_folder
from a2cap.pipeline.cli.commands import Restarted
from a2cap.pipeline.cli.experiment_options import ExperimentOptions, experiment_options
from a2cap.pipeline.cli.options import FOLDER, PATH, force_option
from a2cap.pipeline.engine.artifact_names import PREPROCESS, TRAIN_XE
from a2cap.pipeline.engine.lock import read_lock
from a2cap.pipeline.report.erasure import erasure_rows, with_interval
from a2cap.pipeline.runs import find_result, title_of
from a2cap.pipeline.runtime.device import prepare_device
from a2cap.pipeline.runtime.runtime_config import RuntimeConfig

_COLUMNS = {
    "attention": "  tau(attention)",
    "aligned": "  tau(aligned)",
    "evidence": "  tau(1-mask)",
    "divergence": "      JSD",
    "keep": "     mask",
    "gate": "     gate",
}


@click.command(cls=Restarted)
@click.argument("runs", nargs=-1, type=PATH)
@experiment_options()
@force_option
@click.option("--split", type=click.Choice(["val", "test"]), default="val", show_default=True)
@click.option("--images", type=click.IntRange(min=1), help="Use only the first N images by id.")
@click.option(
    "--erasure",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    help="Remove regions from the first N of these images; 0 leaves that out.",
)
@click.option(
    "--grounding",
    type=PATH,
    metavar="FILE",
    help="Measure grounding on COCO's instances, or on the folder of Flickr30k Entities.",
)
@click.option(
    "--output",
    type=FOLDER,
    default=Path("analysis"),
    show_default=True,
    help="Write tables and figures into this folder.",
)
def analyze(
    options: ExperimentOptions,
    runs: tuple[Path, ...],
    force: bool,
    split: str,
    images: int | None,
    erasure: int,
    grounding: Path | None,
    output: Path,
) -> None:
    """Measure attention faithfulness and compare runs.

    RUNS are results of "a2 train", folders of them, names or keys of "a2 runs", YAML files of
    experiments, or models of transformers (on the captions and images of -c); the
    default is the experiment of -c. Reports Kendall's tau of the attention and of
    1 - mask against gradient importance, and the divergence of the aligned from the original
    attention. Erasure: what the log-probability of a word loses without the regions that an order
    names first (comprehensiveness, high is better) and with them alone (sufficiency, low is
    better), in the order of attention, aligned attention, 1 - mask, gradient x input and at random,
    and Kendall's tau of each with exact Shapley values (images of at most 12 regions). With
    --grounding: attention correctness, pointing game, F1_all and F1_loc of attention, aligned
    attention and a random region, at words with annotated boxes. Runs that differ only in the
    penalty weight or the fusion are also compared in a table and a figure.

    \b
    Example:
      a2 analyze -c configs/a2-gate.yaml --images 500
      a2 analyze artifacts/train-xe --output comparison
      a2 analyze -c configs/a2-gate.yaml my-vlm artifacts/train-xe
    """
    if (output / RUNS).exists() and not force:
        raise InputError(
            f"{str(output)!r} already contains an analysis; name another folder, or use --force"
        )
    with options.open() as experiment:
        runtime = experiment.config.runtime
    trainings = _runs(options, runs, split)
    with read_lock(*(path for run in trainings for path in run.folders)):
        analysed = [
            analyse(run, split=split, images=images, runtime=runtime, erased=erasure)
            for run in trainings
        ]
        if grounding is not None:
            analysed = [
                _with_grounding(analysis, grounding, split, images, runtime)
                for analysis in analysed
            ]
    for analysis in analysed:
        _print_layers(analysis)
        _print_erasure(analysis)
        _print_grounding(analysis)
    for path in write_analysis(output, analysed):
        click.echo(f"written: {path}")


def _runs(options: ExperimentOptions, paths: tuple[Path, ...], split: str) -> list[Run]:
    """Read the named training results, each once."""
    models: dict[Path, str] = {}
    runs = []
    for path in paths:
        if (folder := pretrained_folder([path])) is not None:
            with options.open() as experiment:
                captions = experiment.result(PREPROCESS, needed_by="analyze").directory
                files = experiment.files.images
            runs.append(
                Run(path.name, folder, None, captions, read_manifest(captions), None, images=files)
            )
        elif path.is_file():  # a configuration
            models[_trained(replace(options, config_file=path))] = path.stem
        else:
            folder = path if path.is_dir() else find_result(path, "training")
            models |= {model: title_of(model) for model in trainings_in(folder)}
    if not paths:
        file = options.config_file
        models[_trained(options)] = "experiment" if file is None else file.stem
    taken = list(models.values())  # a name that two runs share becomes a path
    return runs + [
        read_run(
            name if taken.count(name) == 1 else str(model), model, options.artifacts, split=split
        )
        for model, name in models.items()
    ]


def _trained(options: ExperimentOptions) -> Path:
    with options.open() as experiment:
        return experiment.result(TRAIN_XE, needed_by="analyze").directory


def _with_grounding(
    analysis: RunAnalysis, path: Path, split: str, images: int | None, runtime: RuntimeConfig
) -> RunAnalysis:
    if analysis.run.features is None:
        raise InputError(
            f"--grounding needs a captioner of a2: {analysis.run.name!r} reads images; leave it out"
        )
    device = prepare_device(runtime)
    opened = OpenedRun.open(analysis.run, split=split, images=images, device=device)
    annotations = read_word_boxes(path, opened)
    click.echo(f"{analysis.run.name}: {str(path)!r} is taken for {annotations.summary}")
    return replace(analysis, grounding=analyse_grounding(opened, annotations).rows())


def _print_layers(analysed: RunAnalysis) -> None:
    click.echo(f"{analysed.run.name}: {analysed.images:,} of {analysed.total:,} images")
    click.echo(f"layer{''.join(_COLUMNS.values())}")
    for layer in analysed.layers:
        values = {name: getattr(layer, name) for name in _COLUMNS}
        shown = {name: _number(value) for name, value in values.items()}
        row = "".join(shown[name].rjust(len(title)) for name, title in _COLUMNS.items())
        click.echo(f"{layer.layer:>5}{row}")


def _number(value: float | None) -> str:
    """Format a figure with four decimals, or two significant digits where those would be 0."""
    if value is None:
        return "-"
    return f"{value:.1e}" if 0 < abs(value) < 1e-3 else f"{value:.4f}"


def _print_erasure(analysed: RunAnalysis) -> None:
    rows = erasure_rows(analysed.erasure)
    if rows:
        click.echo(f"erasure, {analysed.erased:,} images, nats per word [95 % over images]")
        click.echo("order              comprehensiveness               sufficiency  tau(Shapley)")
    for row in rows:
        means = [with_interval(row, name) for name in ("comprehensiveness", "sufficiency")]
        tau = row["shapley"]
        shown = _number(None if tau is None else float(tau))
        click.echo(f"{row['order']:<10}{means[0]:>26}{means[1]:>26}{shown:>14}")


def _print_grounding(analysed: RunAnalysis) -> None:
    rows = [row for row in analysed.grounding if row["class"] == "all"]
    if rows:
        click.echo(f"grounding, {rows[0]['images']:,} images [95 % over images]")
        click.echo(f"{'attention':<20}{''.join(name.rjust(24) for name in MEASURES)}")
    for row in rows:
        values = (with_interval(row, name) if row[name] is not None else "-" for name in MEASURES)
        click.echo(f"{row['attention']:<20}{''.join(value.rjust(24) for value in values)}")

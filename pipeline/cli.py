"""The command line: parses, calls a stage, prints the result. Only here do errors become codes.

torch and the stages are imported by the commands that need them, so that help answers at once.
"""

import json
import logging
import os
import signal
from collections.abc import Callable
from inspect import cleandoc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from a2.data.errors import A2Error, ConfigError, LockedError
from a2.pipeline.interruption import Interrupted, raise_interrupted

if TYPE_CHECKING:
    from a2.pipeline.engine.run import Outcome
    from a2.pipeline.plan import Plan

EXIT_ERROR, EXIT_USAGE, EXIT_SKIPPED, EXIT_LOCKED = 1, 2, 3, 75
_EXIT_CODES: dict[type[A2Error], int] = {ConfigError: EXIT_USAGE, LockedError: EXIT_LOCKED}

_SKIPPED_SHOWN = 10
"""Skipped items that are printed; the file that is named holds them all."""


class Failure(click.ClickException):
    """One line on stderr, and the exit code that its cause asks for."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        setattr(self, "exit_code", exit_code)  # noqa: B010  (click declares it per class)

    def show(self, file: Any = None) -> None:
        """Prints the line."""
        click.echo(f"a2: {self.message}", err=True, file=file)


class Commands(click.Group):
    """The commands, with every foreseen error turned into one line and an exit code."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        _move_example_to_the_end(self)

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        """Adds a command; its help then ends with the example that its docstring ends with."""
        _move_example_to_the_end(cmd)
        super().add_command(cmd, name)

    def invoke(self, ctx: click.Context) -> object:
        """Runs the command."""
        stopping = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, raise_interrupted) for number in stopping}
        try:
            return super().invoke(ctx)
        except A2Error as error:
            raise Failure(str(error), _EXIT_CODES.get(type(error), EXIT_ERROR)) from error
        except Interrupted as stop:
            raise Failure(
                "stopped; the same command takes up where this one left", 128 + stop.signal_number
            ) from stop
        except OSError as error:
            raise Failure(
                f"{error.strerror or error}: {error.filename or 'no file named'!r}; "
                "check the place and its free space, then run the command again",
                EXIT_ERROR,
            ) from error
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _move_example_to_the_end(command: click.Command) -> None:
    text, mark, example = cleandoc(command.help or "").partition("\b\nExample:")
    command.help, command.epilog = text, mark + example


def experiment_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options of every command that works on one experiment."""
    options = (
        click.option(
            "-c",
            "--config",
            "config_file",
            type=click.Path(path_type=Path, dir_okay=False),
            help="YAML file of the experiment.",
        ),
        click.option(
            "--set",
            "overrides",
            multiple=True,
            metavar="SECTION.FIELD=VALUE",
            help="Sets one field; may be repeated.",
        ),
        click.option(
            "--artifacts",
            type=click.Path(path_type=Path, file_okay=False),
            default=Path("artifacts"),
            show_default=True,
            help="Folder of the stages' results.",
        ),
        click.option("-v", "--verbose", is_flag=True, help="Logs more."),
    )
    for option in reversed(options):
        command = option(command)
    return command


force_option = click.option("--force", is_flag=True, help="Runs again and replaces the result.")


@click.group("a2", cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="a2-captioning", prog_name="a2")
def cli() -> None:
    """The A2 Transformer: COCO pictures to region features to captions to a report.

    \b
    Example:
      a2 run -c configs/smoke.yaml --set data.images=coco/images \\
             --set data.annotations=coco/dataset_coco.json
    """


@cli.command()
@experiment_options
@force_option
@click.option(
    "--images",
    type=click.Path(path_type=Path, file_okay=False),
    help="Any folder of pictures, without an experiment; needs --output.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="New folder for the store and the extractor of --images.",
)
def extract(
    config_file: Path | None,
    overrides: tuple[str, ...],
    artifacts: Path,
    verbose: bool,
    force: bool,
    images: Path | None,
    output: Path | None,
) -> None:
    """Pictures to region features in an LMDB store.

    \b
    Example:
      a2 extract --images my-pictures --output my-features \\
                 --set extract.weights=faster_rcnn_from_caffe_attr.pkl
    """
    if (images is None) != (output is None):
        raise click.UsageError("--images and --output belong together; name both or neither")
    if images is not None:
        from a2.pipeline.config import override

        overrides = (*overrides, override("data.images", images), "data.annotations=null")
    with _plan(config_file, overrides, artifacts, verbose) as plan:
        _run_stages(plan, ["extract"], force=force, output=output)


@cli.command()
@experiment_options
@force_option
def preprocess(
    config_file: Path | None,
    overrides: tuple[str, ...],
    artifacts: Path,
    verbose: bool,
    force: bool,
) -> None:
    """Captions to a vocabulary, token ids, references and document frequencies.

    \b
    Example:
      a2 preprocess -c configs/a2.yaml --set data.annotations=coco/dataset_coco.json
    """
    with _plan(config_file, overrides, artifacts, verbose) as plan:
        _run_stages(plan, ["preprocess"], force=force)


@cli.command()
@experiment_options
@force_option
def train(
    config_file: Path | None,
    overrides: tuple[str, ...],
    artifacts: Path,
    verbose: bool,
    force: bool,
) -> None:
    """Features and captions to a trained captioner.

    \b
    Example:
      a2 train -c configs/a2.yaml --set train.batch_size=20
    """
    with _plan(config_file, overrides, artifacts, verbose) as plan:
        _run_stages(plan, ["train-xe"], force=force)


@cli.command()
@experiment_options
@force_option
@click.option(
    "--results",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Somebody's captions in COCO results form; needs --references and --output.",
)
@click.option(
    "--references",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Their references: a COCO caption file, or dataset_coco.json.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the scores.",
)
def evaluate(
    config_file: Path | None,
    overrides: tuple[str, ...],
    artifacts: Path,
    verbose: bool,
    force: bool,
    results: Path | None,
    references: Path | None,
    output: Path | None,
) -> None:
    """A trained captioner, or somebody's captions, to scores and a report.

    \b
    Example:
      a2 evaluate -c configs/a2.yaml --set evaluate.beam_size=3
      a2 evaluate --results theirs.json --references captions_val2014.json --output scores
    """
    named = [results, references, output]
    if any(named) and not all(named):
        raise click.UsageError("--results, --references and --output belong together; name all")
    if results is None or references is None or output is None:
        with _plan(config_file, overrides, artifacts, verbose) as plan:
            _run_stages(plan, ["evaluate"], force=force)
        return
    from a2.pipeline.evaluation import score_results

    _log(verbose)
    scores = score_results(results, references, output, force=force)
    _print_scores(scores.metrics, scores.not_run)
    click.echo(f"report: {output / 'report.html'}")


@cli.command()
@experiment_options
@click.option(
    "--until",
    type=click.Choice(["extract", "preprocess", "train", "evaluate"]),
    help="Last stage to run.",
)
@click.option("--dry-run", is_flag=True, help="Says what would run, and why.")
def run(
    config_file: Path | None,
    overrides: tuple[str, ...],
    artifacts: Path,
    verbose: bool,
    until: str | None,
    dry_run: bool,
) -> None:
    """All stages; those whose result is there are skipped.

    \b
    Example:
      a2 run -c configs/smoke.yaml --set data.images=coco/images \\
             --set data.annotations=coco/dataset_coco.json
    """
    with _plan(config_file, overrides, artifacts, verbose) as plan:
        last = {"train": "train-xe", None: "evaluate"}.get(until, until)
        names = plan.names[: plan.names.index(str(last)) + 1]
        if dry_run:
            _print_status(plan, names, explain=True)
        else:
            _run_stages(plan, names)


@cli.command()
@experiment_options
@click.option("--explain", is_flag=True, help="Says why a stage would run.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def status(
    config_file: Path | None,
    overrides: tuple[str, ...],
    artifacts: Path,
    verbose: bool,
    explain: bool,
    as_json: bool,
) -> None:
    """Which stages are done, which would run, and why.

    \b
    Example:
      a2 status -c configs/a2.yaml --explain
    """
    with _plan(config_file, overrides, artifacts, verbose) as plan:
        _print_status(plan, plan.names, explain=explain, as_json=as_json)


@cli.command()
@click.argument("pictures", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--model",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory of a trained captioner.",
)
@click.option(
    "--boxes",
    type=click.Path(path_type=Path, dir_okay=False),
    help="COCO instances file; needed by a captioner that was trained on given boxes.",
)
@click.option("--beam-size", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N.")
@click.option("-v", "--verbose", is_flag=True, help="Logs more.")
def caption(
    pictures: tuple[Path, ...],
    model: Path,
    boxes: Path | None,
    beam_size: int,
    device: str,
    verbose: bool,
) -> None:
    """Captions of your own pictures, from the file to the words.

    \b
    Example:
      a2 caption dog.jpg cat.jpg --model artifacts/train-xe/0123456789ab
    """
    from a2.pipeline.captioning import caption_files

    _log(verbose)
    failed = False
    for path, found in caption_files(
        pictures, model=model, boxes=boxes, beam_size=beam_size, device=device
    ):
        if isinstance(found, A2Error):
            failed = True
            click.echo(f"a2: skipped {str(path)!r}: {found}", err=True)
        else:
            click.echo(f"{path}: {found[0].caption}")
    if failed:
        raise click.exceptions.Exit(EXIT_SKIPPED)


@cli.command()
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("artifacts/demo"),
    show_default=True,
    help="Where the scenes and the results go.",
)
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="SECTION.FIELD=VALUE",
    help="Sets one field; may be repeated.",
)
@click.option("-v", "--verbose", is_flag=True, help="Logs more.")
def demo(folder: Path, overrides: tuple[str, ...], verbose: bool) -> None:
    """Draws scenes, trains a small captioner on them and shows its report.

    \b
    Example:
      a2 demo
    """
    from a2.pipeline.demo import run_demo

    _log(verbose)
    _print_evaluation(run_demo(folder, overrides, say=_say_outcome))


def _plan(
    config_file: Path | None, overrides: tuple[str, ...], artifacts: Path, verbose: bool
) -> "Plan":
    from a2.pipeline.config import load_config
    from a2.pipeline.plan import Plan

    _log(verbose)
    return Plan(load_config(config_file, overrides), artifacts)


def _log(verbose: bool) -> None:
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.INFO,
        format="%(message)s" if not verbose else "%(asctime)s %(name)s: %(message)s",
    )
    for noisy in ("PIL", "matplotlib", "filelock", "h5py", "tensorboard"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def _run_stages(
    plan: "Plan", names: list[str], *, force: bool = False, output: Path | None = None
) -> None:
    plan.check(names)
    skipped = ran = False
    for name in names:
        outcome = plan.run(name, force=force, output=output)
        _say_outcome(name, outcome)
        skipped = skipped or outcome.manifest.skipped > 0
        ran = ran or outcome.ran
    if not ran:
        click.echo("nothing to do: every result is there; --force reruns a stage")
    if names[-1] == "evaluate":
        _print_evaluation(outcome.directory)
    if skipped:
        raise click.exceptions.Exit(EXIT_SKIPPED)


def _say_outcome(name: str, outcome: "Outcome") -> None:
    from a2.pipeline.progress import duration

    seconds = duration(outcome.manifest.seconds)
    state = f"done in {seconds}" if outcome.ran else "up to date"
    click.echo(f"{name}: {state}: {outcome.directory}")
    if outcome.manifest.skipped:
        _say_skipped(name, outcome)


def _say_skipped(name: str, outcome: "Outcome") -> None:
    from a2.pipeline.engine.run import SKIPPED

    listed = outcome.directory / SKIPPED
    click.echo(f"{name}: {outcome.manifest.skipped} skipped, listed in {listed}", err=True)
    items = [json.loads(line) for line in listed.read_text().splitlines()]
    for item in items[:_SKIPPED_SHOWN]:
        click.echo(f"  {item['id']}: {item['reason']}", err=True)
    if len(items) > _SKIPPED_SHOWN:
        click.echo(f"  and {len(items) - _SKIPPED_SHOWN} more", err=True)


def _print_status(plan: "Plan", names: list[str], *, explain: bool, as_json: bool = False) -> None:
    found = [plan.status(name) for name in names]
    if as_json:
        rows = [
            {
                "stage": status.stage,
                "state": status.state,
                "directory": None if status.directory is None else str(status.directory),
                "why": status.why,
            }
            for status in found
        ]
        click.echo(json.dumps(rows, indent=1))
        return
    for status in found:
        click.echo(f"{status.stage:<12} {status.state:<8} {status.directory or ''}".rstrip())
        if explain and status.why:
            click.echo(f"{'':<12} {'; '.join(status.why)}")


def _print_evaluation(directory: Path) -> None:
    content = json.loads((directory / "metrics.json").read_text())
    _print_scores(content["metrics"], content["not_run"])
    click.echo(f"report: {directory / 'report.html'}")


def _print_scores(metrics: dict[str, float], not_run: dict[str, str]) -> None:
    from a2.pipeline.metrics import METRICS

    for name in METRICS:
        if name in metrics:
            click.echo(f"{name:<8} {metrics[name]:.4f}")
    for name, reason in not_run.items():
        click.echo(f"{name:<8} not run: {reason}")


def main() -> None:
    """Entry point of the `a2` command."""
    # Before torch is loaded: a waiting thread that spins, as is the default, takes the core from
    # the one that it waits for. On two busy cores that made training ten times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    cli()

"""Command `a2 submit`: captions for COCO's evaluation server."""

from pathlib import Path

import click

from a2cap.pipeline.captioning.caption_stores import caption_sets
from a2cap.pipeline.cli.decoding_options import decoding_options
from a2cap.pipeline.cli.options import FILE, FOLDER, force_option, require_existing
from a2cap.pipeline.configuration import Config
from a2cap.pipeline.engine.lock import reading
from a2cap.pipeline.evaluation import coco_server as submission
from a2cap.pipeline.evaluation.results import read_results
from a2cap.pipeline.runs import find_trainings


@click.command()
@click.option("--name", required=True, help="Name of the submission: letters, digits, - and _.")
@click.option(
    "--val-info", required=True, type=FILE, help="Images of val2014: captions_val2014.json."
)
@click.option(
    "--test-info", required=True, type=FILE, help="Images of test2014: image_info_test2014.json."
)
@click.option("--val-results", type=FILE, help="Captions of val2014 in the COCO results format.")
@click.option("--test-results", type=FILE, help="Captions of test2014 in the COCO results format.")
@click.option(
    "--model",
    "models",
    multiple=True,
    type=FOLDER,
    help="Caption both sets with this captioner, as in a2 caption; repeat for an ensemble.",
)
@click.option(
    "--features",
    multiple=True,
    type=FOLDER,
    help='Read features from this store of "a2 extract"; may be repeated.',
)
@click.option("--output", type=FILE, help="Write the archive to this file.  [default: NAME.zip]")
@force_option
@decoding_options
def submit(
    name: str,
    val_info: Path,
    test_info: Path,
    val_results: Path | None,
    test_results: Path | None,
    models: tuple[Path, ...],
    features: tuple[Path, ...],
    output: Path | None,
    force: bool,
    config: Config,
) -> None:
    """Create a checked archive for COCO's server.

    Use existing results files (--val-results and --test-results), or caption both sets (--model and
    --features). Each image of the info files must have exactly one non-empty caption, and no other
    image may have one. a2 submits the top-scoring non-empty beam of each image.

    The server for captions is reported closed. Rehearse on images whose references you have with
    "a2 score": c5 is --most-references 5, c40 a file with 40 references per image.

    \b
    Example:
      a2 submit --name a2 --val-info captions_val2014.json \\
                --test-info image_info_test2014.json \\
                --val-results val.json --test-results test.json
      a2 submit --name a2 --val-info captions_val2014.json \\
                --test-info image_info_test2014.json \\
                --model artifacts/train-xe/0123456789ab --features val-store --features test-store
    """
    ready, trained = (val_results, test_results), (models, features)
    if any(ready) == any(trained) or not (all(ready) or all(trained)):
        raise click.UsageError(
            "captions come from --val-results and --test-results, or from --model and --features; "
            "name both options of one pair"
        )
    models = find_trainings(models)
    infos = {"--val-info": [val_info], "--test-info": [test_info]}
    results = {"--val-results": [val_results], "--test-results": [test_results]}
    require_existing({**infos, **results, "--model": models, "--features": features})
    output = output or Path(f"{name}.zip")
    submission.check_name(name)
    submission.check_output(output, force=force)
    ids = submission.read_image_info(val_info, test_info)
    if val_results and test_results:
        files = {submission.VAL: val_results, submission.TEST: test_results}
        captions = {part: read_results(path) for part, path in files.items()}
    else:
        with reading(*models, *features):
            captions = caption_sets(models, features, ids, config.evaluate, config.runtime)
    submission.write_submission(output, name, captions, ids)
    counts = ", ".join(f"{len(found):,} of {part}" for part, found in captions.items())
    click.echo(f"{output}: captions {counts}")

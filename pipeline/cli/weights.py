"""The commands `a2 weights`: files that a2 can fetch by name, and detectors of any known layout."""

import json
from pathlib import Path

import click

from a2cap.pipeline.cli.options import Commands, log, verbose_option


@click.group(cls=Commands)
def weights() -> None:
    """Files that some parts need and that no package brings: which, fetching, importing, showing.

    \b
    Example:
      a2 weights list
    """


@weights.command("list")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def list_weights(as_json: bool) -> None:
    """What comes along or can be fetched by name, and where it is.

    Detectors are for extract.weights; whether the addresses of published ones still answer shows
    when they are fetched.

    \b
    Example:
      a2 weights list
    """
    from a2cap.pipeline.weights.detectors import BUNDLED, PUBLISHED, downloaded_detector
    from a2cap.pipeline.weights.spice import DOWNLOADS, downloaded_files, folder_of

    rows = [
        (name, wanted.purpose, folder_of(name) if downloaded_files(name) else None)
        for name, wanted in DOWNLOADS.items()
    ]
    rows += [(name, brought.purpose, brought.path) for name, brought in BUNDLED.items()]
    rows += [(name, known.purpose, downloaded_detector(name)) for name, known in PUBLISHED.items()]
    if as_json:
        keys = ("name", "purpose", "place")
        named = [dict(zip(keys, (n, p, path and str(path)), strict=True)) for n, p, path in rows]
        click.echo(json.dumps(named, indent=1))
        return
    for name, purpose, place in rows:
        click.echo(f"{name:<20} {purpose}")
        click.echo(f"{'':<20} {place or f'not here; a2 weights fetch {name}'}")


@weights.command()
@click.argument("name")
@click.option(
    "--from",
    "source",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="A folder that holds the files of spice; without it, mvn or their own address is asked.",
)
@verbose_option
def fetch(name: str, source: Path | None, verbose: bool) -> None:
    """Fetches files by name into the cache folder (A2_CACHE), checked by their sha256.

    \b
    Example:
      a2 weights fetch spice
      a2 weights fetch airsplay-attributes
    """
    from a2cap.pipeline.weights.detectors import BUNDLED, PUBLISHED, download_detector
    from a2cap.pipeline.weights.spice import DOWNLOADS, download_files

    log(verbose)
    if name in BUNDLED:
        click.echo(f"{name}: {BUNDLED[name].path}")
        return
    if name in PUBLISHED:
        if source is not None:
            raise click.UsageError('a detector\'s file is read by "a2 weights import FILE"')
        click.echo(f"{name}: {download_detector(name)}")
        return
    if name not in DOWNLOADS:
        names = ", ".join([*DOWNLOADS, *BUNDLED, *PUBLISHED])
        raise click.UsageError(f"no weights are called {name!r}; names: {names}")
    for path in download_files(name, source=source):
        click.echo(f"{name}: {path}")


@weights.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@verbose_option
def import_weights(file: Path, verbose: bool) -> None:
    """Keeps a detector's file of any known layout as safetensors, whatever its name.

    Known are caffe's .caffemodel, the pickles of airsplay and detectron2, the torch files of
    Hugging Face and MILVLG, and safetensors of ours. No code in them is run.

    \b
    Example:
      a2 weights import faster_rcnn_from_caffe_attr.pkl
    """
    from a2cap.pipeline.weights.detectors import import_detector

    log(verbose)
    click.echo(import_detector(file))


@weights.command()
@click.argument("named", metavar="FILE|NAME")
def show(named: str) -> None:
    """What a detector is, and the conventions that belong to its weights.

    \b
    Example:
      a2 weights show faster_rcnn_from_caffe_attr.pkl
    """
    from a2cap.pipeline.weights.describe import describe_detector
    from a2cap.pipeline.weights.detectors import resolve_weights

    for name, value in describe_detector(resolve_weights(named)).items():
        click.echo(f"{name:<20} {value}")

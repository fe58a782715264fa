"""Commands `a2 weights`: downloads by name, and detector weights of all known layouts."""

import json
from pathlib import Path

import click

from a2cap.pipeline.captioning.published import import_captioner
from a2cap.pipeline.cli.commands import Commands
from a2cap.pipeline.cli.options import FILE, PATH, log, set_option, verbose_option
from a2cap.pipeline.configuration import load_config
from a2cap.pipeline.weights.detector_files import (
    describe_weights,
    download_detector,
    import_detector,
)
from a2cap.pipeline.weights.detectors import BUNDLED, PUBLISHED, downloaded_detector
from a2cap.pipeline.weights.spice import PURPOSE, SPICE, downloaded_spice, spice_folder
from a2cap.pipeline.weights.spice_files import download_spice


@click.group(cls=Commands)
def weights() -> None:
    """List, download, import and show weights.

    \b
    Example:
      a2 weights list
    """


@weights.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_weights(as_json: bool) -> None:
    """List bundled and downloadable weights and their paths.

    Detectors and image encoders are for extract.weights.

    \b
    Example:
      a2 weights list
    """
    rows = [
        (SPICE, PURPOSE, spice_folder() if downloaded_spice() else None),
        *((name, bundled.purpose, bundled.path) for name, bundled in BUNDLED.items()),
        *((name, entry.purpose, downloaded_detector(name)) for name, entry in PUBLISHED.items()),
    ]
    if as_json:
        listed = [{"name": n, "purpose": why, "place": path and str(path)} for n, why, path in rows]
        click.echo(json.dumps(listed, indent=1))
        return
    for name, purpose, path in rows:
        click.echo(f"{name:<20} {purpose}")
        click.echo(f"{'':<20} {path or f'not downloaded; run a2 weights fetch {name}'}")


@weights.command()
@click.argument("name")
@click.option(
    "--from",
    "source",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Copy the files of spice from this folder instead of downloading them.",
)
@verbose_option
def fetch(name: str, source: Path | None, verbose: bool) -> None:
    """Download files by name and check their sha256.

    They are kept in the cache folder (A2_CACHE).

    \b
    Example:
      a2 weights fetch spice
      a2 weights fetch airsplay-attributes
    """
    log(verbose)
    if name == SPICE:
        paths = download_spice(source=source)
    elif name in BUNDLED:
        paths = [BUNDLED[name].path]
    elif name not in PUBLISHED:
        names = ", ".join([SPICE, *BUNDLED, *PUBLISHED])
        raise click.UsageError(f"unknown weights: {name!r}; choose one of {names}")
    elif source is not None:
        raise click.UsageError('--from is for spice; use "a2 weights import FILE" instead')
    else:
        paths = [download_detector(name)]
    for path in paths:
        click.echo(f"{name}: {path}")


@weights.command("import")
@click.argument("file", type=PATH)
@click.option("--vocabulary", type=FILE, help="Import a captioner, whose vocabulary is this file.")
@click.option("--output", type=PATH, help="Write the captioner into this new folder.")
@set_option
@verbose_option
def import_weights(
    file: Path,
    vocabulary: Path | None,
    output: Path | None,
    overrides: tuple[str, ...],
    verbose: bool,
) -> None:
    """Import a published detector or captioner.

    The layout is recognised by the content: caffe's .caffemodel, the pickles of airsplay and
    detectron2, the torch files of Hugging Face and MILVLG, and a2's safetensors. No code in the
    file is run.

    A captioner is M2's .pth with vocab.pkl, or the Transformer of ImageCaptioning.pytorch with
    infos_*.pkl; --set extract.weights names the detector of its regions.

    \b
    Example:
      a2 weights import faster_rcnn_from_caffe_attr.pkl
      a2 weights import m2.pth --vocabulary vocab.pkl --output m2 --set extract.weights=vg.pkl
    """
    log(verbose)
    if (vocabulary is None) != (output is None):
        raise click.UsageError("a captioner needs --vocabulary and --output, a detector neither")
    if vocabulary is not None and output is not None:
        import_captioner(file, vocabulary, load_config(None, overrides).extract, output)
        click.echo(output)
        return
    click.echo(import_detector(file))


@weights.command()
@click.argument("file_or_name", metavar="FILE|NAME")
def show(file_or_name: str) -> None:
    """Show a detector's architecture and conventions, or an image encoder's settings.

    \b
    Example:
      a2 weights show faster_rcnn_from_caffe_attr.pkl
    """
    for name, value in describe_weights(file_or_name).items():
        click.echo(f"{name:<20} {value}")

"""The commands `a2 weights`: files that a2 can fetch by name, and which of them are there."""

import json
from pathlib import Path

import click

from a2.pipeline.command_group import Commands, log, verbose_option


@click.group(cls=Commands)
def weights() -> None:
    """Files that some parts need and that no package brings: which, and fetching them.

    \b
    Example:
      a2 weights list
    """


@weights.command("list")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def list_weights(as_json: bool) -> None:
    """What can be fetched by name, and where it is.

    \b
    Example:
      a2 weights list
    """
    from a2.pipeline.downloads import DOWNLOADS, fetched_files, folder_of

    rows = [
        {
            "name": name,
            "purpose": wanted.purpose,
            "bytes": sum(file.size for file in wanted.files),
            "folder": str(folder_of(name)) if fetched_files(name) else None,
        }
        for name, wanted in DOWNLOADS.items()
    ]
    if as_json:
        click.echo(json.dumps(rows, indent=1))
        return
    for row in rows:
        click.echo(f"{row['name']:<8} {row['purpose']}")
        click.echo(f"{'':<8} {row['folder'] or 'not here; a2 weights fetch ' + str(row['name'])}")


@weights.command()
@click.argument("name")
@click.option(
    "--from",
    "source",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="A folder that holds the files; without it, mvn or their own address is asked.",
)
@verbose_option
def fetch(name: str, source: Path | None, verbose: bool) -> None:
    """Fetches files by name into the cache folder (A2_CACHE), checked by their sha256.

    \b
    Example:
      a2 weights fetch spice
    """
    from a2.pipeline.downloads import DOWNLOADS
    from a2.pipeline.downloads import fetch as fetch_files

    log(verbose)
    if name not in DOWNLOADS:
        raise click.UsageError(f"no weights are called {name!r}; names: {', '.join(DOWNLOADS)}")
    for path in fetch_files(name, source=source):
        click.echo(f"{name}: {path}")

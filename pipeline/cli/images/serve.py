"""Command `a2 serve`: a page on which an image is dropped and captioned."""

from pathlib import Path

import click

from a2cap.pipeline.captioning.image_captioner import open_captioner
from a2cap.pipeline.cli.commands import Restarted
from a2cap.pipeline.cli.decoding_options import decoding_options, model_option
from a2cap.pipeline.configuration import Config
from a2cap.pipeline.engine.interruption import stop_between_steps
from a2cap.pipeline.runs import find_trainings
from a2cap.pipeline.serving.server import CaptionServer
from a2cap.pipeline.weights.captioners import captioner_name


@click.command(cls=Restarted)
@model_option
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8642,
    show_default=True,
    help="Listen on this port of 127.0.0.1; 0 takes a free one.",
)
@decoding_options
def serve(models: tuple[Path, ...], port: int, config: Config) -> None:
    """Serve a page that captions the images dropped on it.

    Only this machine can open the page. Ctrl-C stops the server.

    \b
    Example:
      a2 serve --model artifacts/train-xe/0123456789ab
    """
    folders = find_trainings(models)
    captioner = open_captioner(folders, decoding=config.evaluate, runtime=config.runtime)
    server = CaptionServer(captioner, name=captioner_name(folders), port=port)
    with stop_between_steps():
        click.echo(f"{server.url} captions the images dropped on it; Ctrl-C stops")
        server.run(sockets=[server.socket])

"""Options of the commands that caption with a trained captioner."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from a2cap.data.errors import ConfigError
from a2cap.pipeline.captioning.captioning_config import CaptioningConfig
from a2cap.pipeline.cli.options import FOLDER, log, set_option, verbose_option
from a2cap.pipeline.configuration import Config, load_config, override
from a2cap.pipeline.weights.captioners import DEFAULT

model_option = click.option(
    "--model",
    "models",
    multiple=True,
    default=[DEFAULT],
    show_default=True,
    type=FOLDER,
    help="Use this captioner: the folder of a training or one above it, a name, the start of a "
    'key or "latest" of "a2 runs", a bundled one, "photos" or "scenes", or a model of '
    "transformers: a folder of save_pretrained, or org/name in its cache. Repeat for an ensemble.",
)


def decoding_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of decoding to a command, which receives them as `config`."""

    @wraps(command)
    def with_config(
        overrides: tuple[str, ...],
        beam_size: int | None,
        prompt: str | None,
        max_new_tokens: int | None,
        device: str | None,
        verbose: bool,
        **options: Any,
    ) -> None:
        log(verbose)
        settings = list(overrides)
        if beam_size is not None:
            settings.append(f"evaluate.beam_size={beam_size}")
        if prompt is not None:
            settings.append(override("evaluate.prompt", prompt))
        if max_new_tokens is not None:
            settings.append(f"evaluate.max_length={max_new_tokens}")
        if device is not None:
            settings.append(override("runtime.device", device))
        command(config=_config(settings, beams=options.get("beams") or 1), **options)

    place = click.option("--device", help="Set runtime.device: auto, cpu, cuda or cuda:N.")
    beam = click.option("--beam-size", type=click.IntRange(min=1), help="Set evaluate.beam_size.")
    text = click.option(
        "--prompt",
        help="Set evaluate.prompt: what a model of transformers continues; by default that of its "
        "class.",
    )
    longest = click.option(
        "--max-new-tokens",
        type=click.IntRange(1, 500),
        help="Set evaluate.max_length, the most tokens of a caption.",
    )
    return beam(text(longest(place(set_option(verbose_option(with_config))))))


def _config(overrides: list[str], *, beams: int) -> Config:
    """Load the configuration; reject settings without effect, or that do not fit so many beams."""
    # the batch size is an option of its own, or that of the stores
    decoding = sorted(CaptioningConfig.model_fields.keys() - {"batch_size"})
    for field in (setting.partition("=")[0].strip() for setting in overrides):
        section, _, name = field.partition(".")
        if section != "runtime" and not (section == "evaluate" and name in decoding):
            raise ConfigError(
                f"setting has no effect on these captions: {field!r}; remove it, or set a field of "
                f"runtime or evaluate ({', '.join(decoding)})"
            )
    config = load_config(None, overrides)
    if beams > config.evaluate.beam_size:
        load_config(None, [*overrides, f"evaluate.beam_size={beams}"])
    return config

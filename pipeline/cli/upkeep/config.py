"""Commands `a2 config`: show, explain and compare settings."""

from pathlib import Path

import click

from a2cap.data.files.sealed_folder import MadeFrom
from a2cap.pipeline.cli.commands import Commands
from a2cap.pipeline.cli.options import PATH, config_option, require_existing, set_option
from a2cap.pipeline.config_fields import explain_field
from a2cap.pipeline.configuration import Config, load_config
from a2cap.pipeline.engine.artifact_names import RESOLVED_CONFIG
from a2cap.pipeline.engine.explain import difference


@click.group(cls=Commands)
def config() -> None:
    """Show, explain and compare settings.

    \b
    Example:
      a2 config explain train.lr
    """


@config.command()
@config_option
@set_option
def show(config_file: Path | None, overrides: tuple[str, ...]) -> None:
    """Print the configuration with all defaults as YAML.

    \b
    Example:
      a2 config show -c configs/a2-gate.yaml --set train.batch_size=20
    """
    click.echo(load_config(config_file, overrides).to_yaml(), nl=False)


@config.command()
@click.argument("field")
def explain(field: str) -> None:
    """Explain a field, or the fields of a section.

    \b
    Example:
      a2 config explain model.alignment
      a2 config explain evaluate.beam_size
    """
    click.echo("\n".join(explain_field(field, Config)))


@config.command()
@click.argument("first", metavar="A", type=PATH)
@click.argument("second", metavar="B", type=PATH)
def diff(first: Path, second: Path) -> None:
    """Print the settings in which two configurations differ.

    A and B are YAML files, or results, which contain the configuration of their run.

    \b
    Example:
      a2 config diff configs/a2-gate.yaml artifacts/train-xe/0123456789ab
    """
    files = [path / RESOLVED_CONFIG if path.is_dir() else path for path in (first, second)]
    require_existing({"A": files[:1], "B": files[1:]})
    name = {"runtime": {"name"}}  # a result has that of its file
    before, after = (
        MadeFrom(
            stage="config",
            version=0,
            fields=load_config(file, is_of_user=not path.is_dir()).model_dump(
                mode="json", exclude=name
            ),
        )
        for path, file in zip((first, second), files, strict=True)
    )
    click.echo("\n".join(difference(before, after)) or "no setting differs")

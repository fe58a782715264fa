"""YAML files of configuration."""

from pathlib import Path

import yaml

from a2cap.data.errors import ConfigError
from a2cap.data.files.paths import did_you_mean

_LARGEST = 1_000_000  # bytes; PyYAML reads a few hundred thousand in a second
_TIMESTAMP = "tag:yaml.org,2002:timestamp"


class _Loader(yaml.SafeLoader):
    """YAML whose duplicate keys are errors and whose dates are text."""

    # no field is a date, and a baseline may be called 2026-01-31
    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        """Return a mapping; PyYAML would keep the last of two equal keys."""
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                problem = f"duplicate key {key.value!r}"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


def parse_yaml(text: str) -> object:
    """Return the value of a YAML text; raise YAMLError if it has none."""
    try:
        return yaml.load(text, _Loader)
    except RecursionError as error:
        raise yaml.YAMLError("nested too deeply") from error
    # the constructors of PyYAML for tags such as !!int, and integers of over 4,300 digits
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        raise yaml.YAMLError(f"a value does not fit its tag: {error}") from error


def read_yaml(path: Path) -> dict[str, object]:
    """Return the sections of a file, unchecked; ConfigError if it cannot be read or has none."""
    try:
        with path.open("rb") as file:  # as /dev/zero, it may have no end
            text = file.read(_LARGEST + 1)
        if len(text) > _LARGEST:
            raise ConfigError(
                f"config file has more than {_LARGEST:,} bytes: {str(path)!r}; name a configuration"
            )
        content = parse_yaml(text.decode())
    except FileNotFoundError as error:
        raise ConfigError(
            f"config file not found: {str(path)!r}; check the path{did_you_mean(path)}"
        ) from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        what = " ".join(str(error).split())
        raise ConfigError(f"config file is not YAML: {str(path)!r} ({what}); fix it") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"config file has no sections: {str(path)!r}; see configs/ for examples")
    return content

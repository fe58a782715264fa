"""YAML files of configuration."""

from pathlib import Path

import yaml

from a2cap.data.errors import ConfigError


def read_yaml(path: Path) -> dict[str, object]:
    """Return the sections of a file, unchecked; ConfigError if it cannot be read or has none."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"config file not found: {str(path)!r}; check the path") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        what = " ".join(str(error).split())
        raise ConfigError(f"config file is not YAML: {str(path)!r} ({what}); fix it") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"config file has no sections: {str(path)!r}; see configs/ for examples")
    return content

"""Error messages of calls, and the files that they are about."""

import json

import pytest

from a2cap.data.errors import InputError


def message_of(call, *arguments, error=InputError, **options):
    """The text of the error that a call raises."""
    with pytest.raises(error) as raised:
        call(*arguments, **options)
    return str(raised.value)


def written(folder, content, name="x.json"):
    """The path of a file with this text, or this value as JSON."""
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def touch(folder, *names):
    """Make empty files."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def bad_item(path, position, reason):
    """The text of the error of an item that cannot be read."""
    return f"{position} of {str(path)!r}: {reason}; fix or remove that item"

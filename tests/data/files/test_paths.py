"""Files and folders that fields name: the errors, and sizes."""

import pytest

from a2cap.data.errors import ConfigError, InputError
from a2cap.data.files.paths import did_you_mean, require_file, require_folder, size_of
from tests.data.messages import message_of


@pytest.mark.parametrize(
    ("require", "option", "message", "error"),
    [
        (require_file, "FILE", "file of data.x not found", InputError),
        (require_folder, "DIR", "data.x is not a folder", ConfigError),
    ],
)
def test_a_path_that_is_missing_unset_or_of_another_kind_is_rejected(
    tmp_path, require, option, message, error
):
    gone = tmp_path / "gone"
    assert message_of(require, gone, "data.x", error=error).startswith(f"{message}: {str(gone)!r};")
    unset = message_of(require, None, "data.x", error=ConfigError)
    what = "folder" if option == "DIR" else "file"
    assert unset == f"data.x is not set; name the {what} with --set data.x={option}"
    file = tmp_path / "file"
    file.touch()
    right, wrong = (tmp_path, file) if option == "DIR" else (file, tmp_path)
    assert require(right, "data.x") == right
    of_wrong = {"FILE": "file of data.x is a folder", "DIR": message}[option]
    text = message_of(require, wrong, "data.x", error=error)
    assert text == f"{of_wrong}: {str(wrong)!r}; check the path"


def test_the_size_of_a_folder_counts_each_file_and_no_folder(tmp_path):
    (tmp_path / "inner").mkdir()
    for name, size in (("a", 3), ("inner/b", 40)):
        (tmp_path / name).write_bytes(b"x" * size)
    assert size_of(tmp_path) == 43
    (tmp_path / "inner" / "link").symlink_to("gone")  # its own size, as a file
    assert size_of(tmp_path) == 47


def test_a_link_that_leads_nowhere_is_not_its_own_near_name(tmp_path):
    link = tmp_path / "dog.jpg"
    link.symlink_to("gone.jpg")
    assert did_you_mean(link) == ""
    assert did_you_mean(tmp_path / "dgo.jpg") == f"; did you mean {str(link)!r}?"

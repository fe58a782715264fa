"""The parser of SPICE: whatever its source, only the expected files are stored."""

import dataclasses
import hashlib
import io
import json
import zipfile

import pytest

from a2cap.pipeline.weights import spice, spice_files
from a2cap.pipeline.weights.download import DownloadError
from a2cap.pipeline.weights.spice import RemoteFile, downloaded_spice
from a2cap.pipeline.weights.spice_files import download_spice
from tests.data.messages import message_of
from tests.experiments import a2

CONTENTS = {"parser.jar": b"a parser", "models.jar": b"its models"}


def described(name, content):
    return RemoteFile(name, len(content), hashlib.sha256(content).hexdigest(), f"group:{name}:1")


@pytest.fixture(autouse=True)
def wanted(monkeypatch, tmp_path):
    """Two small files to download, and an empty cache folder."""
    monkeypatch.setenv("A2_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(spice_files, "ARCHIVE", "http://127.0.0.1:1/all.zip")
    monkeypatch.setattr(spice_files, "_RELEASE", "all")
    files = tuple(described(name, content) for name, content in CONTENTS.items())
    for module in (spice, spice_files):
        monkeypatch.setattr(module, "FILES", files)


@pytest.fixture
def no_mvn(monkeypatch):
    monkeypatch.setattr(spice_files.shutil, "which", lambda _: None)


@pytest.fixture
def mvn(monkeypatch, tmp_path):
    """A program that copies the named file out of a local folder."""
    folder = tmp_path / "central"
    folder.mkdir()
    program = tmp_path / "bin" / "mvn"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/sh\n"
        'for word in "$@"; do case $word in\n'
        "-Dartifact=group:*) name=${word#-Dartifact=group:}; name=${name%:1};;\n"
        "-DoutputDirectory=*) out=${word#-DoutputDirectory=};;\n"
        "esac; done\n"
        f'/bin/cp "{folder}/$name" "$out" || {{ echo "[ERROR] no $name"; exit 1; }}\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    return folder


def write(folder, contents):
    folder.mkdir(exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return folder


def zipped(contents):
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, content in contents.items():
            archive.writestr(f"all/{name}", content)
    return made.getvalue()


def archive_with(monkeypatch, content):
    asked = []

    def serve(url, target):
        asked.append(url)
        target.write_bytes(content)

    monkeypatch.setattr(spice_files, "download", serve)
    return asked


def stored(tmp_path):
    folder = tmp_path / "cache" / "weights" / "spice"
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_file_of_another_size_or_content_is_not_stored(tmp_path):
    mine = write(tmp_path / "mine", {**CONTENTS, "models.jar": b"its model"})
    path = repr(str(mine / "models.jar"))
    assert message_of(download_spice, source=mine, error=DownloadError) == (
        f"{path} has 9 bytes, expected 10; download it again"
    )
    write(mine, {"models.jar": b"its modelz"})
    right, wrong = (hashlib.sha256(text).hexdigest() for text in (b"its models", b"its modelz"))
    assert message_of(download_spice, source=mine, error=DownloadError) == (
        f"sha256 of {path} is {wrong}, expected {right}; download it from another source"
    )
    assert stored(tmp_path) == {"parser.jar": b"a parser"}
    assert downloaded_spice() is None


def test_when_maven_fails_the_files_come_from_the_archive(mvn, monkeypatch, tmp_path):
    asked = archive_with(monkeypatch, zipped(CONTENTS))
    download_spice()
    assert asked[0] == "http://127.0.0.1:1/all.zip"
    assert stored(tmp_path) == CONTENTS


def test_every_failed_source_is_named(mvn, monkeypatch, tmp_path):
    archive_with(monkeypatch, zipped({"other.jar": b""}))
    assert message_of(download_spice, error=DownloadError) == (
        "mvn cannot download group:parser.jar:1: no parser.jar; run mvn by hand to see why; "
        "http://127.0.0.1:1/all.zip is not an archive that contains parser.jar "
        "(\"There is no item named 'all/parser.jar' in the archive\"); "
        "name a folder that contains the files with --from"
    )
    assert stored(tmp_path) == {}


def test_a_file_that_the_archive_lacks_needs_mvn_or_a_folder(no_mvn, monkeypatch):
    alone = dataclasses.replace(described("rhino.jar", b"rhino"), in_archive=False)
    monkeypatch.setattr(spice_files, "FILES", (alone,))
    assert message_of(download_spice, error=DownloadError) == (
        "rhino.jar comes from Maven Central alone; install mvn, or name a folder that contains the "
        "files with --from"
    )


def test_an_archive_with_unexpected_content_is_not_stored(no_mvn, monkeypatch, tmp_path):
    archive_with(monkeypatch, zipped({**CONTENTS, "parser.jar": b"a liar.."}))
    with pytest.raises(DownloadError, match=r"^sha256 of .*; download it from another source$"):
        download_spice()
    archive_with(monkeypatch, b"<html>moved</html>")
    with pytest.raises(DownloadError, match=r"is not an archive that contains parser\.jar"):
        download_spice()
    assert stored(tmp_path) == {}


def test_maven_is_the_first_source_and_only_a_damaged_file_is_downloaded_again(
    mvn, monkeypatch, tmp_path
):
    monkeypatch.setattr(spice_files, "download", None)
    write(mvn, CONTENTS)
    download_spice()
    assert stored(tmp_path) == CONTENTS
    folder = tmp_path / "cache" / "weights" / "spice"
    (folder / "parser.jar").write_bytes(b"damaged!")
    (mvn / "models.jar").unlink()
    download_spice()
    assert stored(tmp_path) == CONTENTS


# --- the commands -------------------------------------------------------------------------------


def test_downloads_are_listed_with_their_paths(tmp_path):
    answer = a2("weights", "list")
    assert answer.stdout.startswith(
        f"{'spice':<20} {spice.PURPOSE}\n{'':<20} not downloaded; run a2 weights fetch spice\n"
    )
    download_spice(source=write(tmp_path / "mine", CONTENTS))
    folder = str(tmp_path / "cache" / "weights" / "spice")
    assert f"runs\n{'':<20} {folder}\n" in a2("weights", "list").stdout
    row, *_ = json.loads(a2("weights", "list", "--json").stdout)
    assert row == {"name": "spice", "purpose": spice.PURPOSE, "place": folder}


def test_the_command_prints_the_files(tmp_path):
    answer = a2("weights", "fetch", "spice", "--from", write(tmp_path / "mine", CONTENTS))
    folder = tmp_path / "cache" / "weights" / "spice"
    assert answer.exit_code == 0, answer.stderr
    assert answer.stdout == f"spice: {folder / 'parser.jar'}\nspice: {folder / 'models.jar'}\n"


def test_a_file_that_the_folder_lacks_is_reported_in_one_line(tmp_path):
    assert a2("weights", "fetch", "spice", "--from", tmp_path, code=1).stderr == (
        f"a2: no file {str(tmp_path / 'parser.jar')!r}; "
        "name a folder that contains it with --from\n"
    )

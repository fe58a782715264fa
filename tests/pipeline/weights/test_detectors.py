"""Published detectors: fetched from whatever address still has them, kept once, checked later."""

import json
import pickle
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner
from safetensors.torch import load_file

from a2cap.data.errors import WeightsError
from a2cap.extract.config import ExtractConfig
from a2cap.pipeline.cli.main import cli
from a2cap.pipeline.weights import detectors as detector_checkpoints
from a2cap.pipeline.weights.detectors import (
    CHECKPOINTS,
    SHIPPED,
    Checkpoint,
    fetch_checkpoint,
    import_detector,
    kept_detector,
    resolve_weights,
    sha256_of,
    weights_file,
)
from a2cap.pipeline.weights.download import DownloadError


@pytest.fixture(scope="module")
def published(experiment):
    """The bytes of a small detector in airsplay's layout."""
    tensors = load_file(experiment.directory("calibrate") / "weights.safetensors")
    arrays = {key: tensor.numpy() for key, tensor in tensors.items()}
    return pickle.dumps({"model": arrays}, protocol=2)


@pytest.fixture
def host():
    """A host that answers by path; `files` maps a path to bytes or to an error's number."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            answer = server.files.get(self.path, 404)
            if isinstance(answer, int):
                self.send_error(answer)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.files = {}
        server.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def known(host, monkeypatch, tmp_path):
    """One checkpoint under three addresses, and an empty cache folder."""
    monkeypatch.setenv("A2_CACHE", str(tmp_path / "cache"))
    addresses = tuple(f"{host.url}/{name}" for name in ("dead", "page", "good"))
    checkpoints = {"theirs": Checkpoint("a detector", addresses)}
    monkeypatch.setattr(detector_checkpoints, "CHECKPOINTS", checkpoints)
    host.files = {"/page": b"<!DOCTYPE html> this file has moved"}


def test_the_first_address_that_has_the_file_gives_it(host, published, tmp_path):
    host.files["/good"] = published
    kept = fetch_checkpoint("theirs")
    assert kept == kept_detector("theirs") == resolve_weights("theirs")
    assert load_file(kept).keys() == pickle.loads(published)["model"].keys()
    record = json.loads((kept.parent / "record.json").read_text())
    assert (record["address"], record["size"]) == (f"{host.url}/good", len(published))
    assert sorted(path.name for path in kept.parent.iterdir()) == [kept.name, "record.json"]
    host.files.clear()
    assert fetch_checkpoint("theirs") == kept


def test_when_all_links_are_dead_each_answer_is_said(host):
    with pytest.raises(DownloadError) as error:
        fetch_checkpoint("theirs")
    assert str(error.value) == (
        f"no address gives 'theirs': cannot fetch {host.url}/dead: HTTP 404 Not Found; name a "
        "folder that holds it instead; weights 'from address 1' are a web page: the link that they "
        'came from is dead; get the file elsewhere, see "a2 weights list"; cannot fetch '
        f"{host.url}/good: HTTP 404 Not Found; name a folder that holds it instead; import a file "
        'that somebody still has with "a2 weights import FILE"'
    )
    assert kept_detector("theirs") is None


def test_another_file_than_the_first_is_refused(host, published):
    host.files["/good"] = published
    kept = fetch_checkpoint("theirs")
    kept.unlink()
    host.files["/good"] = published + b"."
    with pytest.raises(DownloadError, match="gives another file than at first: sha256 "):
        fetch_checkpoint("theirs")
    (kept.parent / "record.json").unlink()
    assert fetch_checkpoint("theirs") == kept


def test_a_checkpoint_that_was_not_fetched_is_no_file(tmp_path):
    with pytest.raises(WeightsError) as error:
        resolve_weights("theirs")
    assert str(error.value) == (
        "weights 'theirs' have not been fetched; run \"a2 weights fetch theirs\""
    )
    assert resolve_weights("some/file.pkl") == Path("some/file.pkl")


def test_extraction_takes_a_checkpoint_by_its_name(host, published):
    host.files["/good"] = published
    kept = fetch_checkpoint("theirs")
    assert weights_file(ExtractConfig(weights="theirs")) == kept


def test_an_imported_file_is_kept_once_whatever_its_name(published, tmp_path):
    for name in ("a.pkl", "another name"):
        (tmp_path / name).write_bytes(published)
    kept = import_detector(tmp_path / "a.pkl")
    assert import_detector(tmp_path / "another name") == kept
    assert kept.suffix == ".safetensors"
    assert import_detector(kept) != kept  # canonical weights are a file of their own


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(WeightsError) as error:
        import_detector(tmp_path / "gone.pkl")
    assert str(error.value) == (
        f"cannot read weights {str(tmp_path / 'gone.pkl')!r}: No such file or directory; "
        "correct the path"
    )


def test_every_published_checkpoint_has_an_address():
    assert len(CHECKPOINTS) == 9
    for checkpoint in CHECKPOINTS.values():
        assert checkpoint.addresses
        assert all(address.startswith("http") for address in checkpoint.addresses)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_detector_that_comes_along_is_the_one_that_is_told_of(name):
    shipped = SHIPPED[name]
    assert sha256_of(shipped.path) == shipped.sha256
    assert shipped.path.stat().st_size <= 8_000_000
    assert resolve_weights(name) == weights_file(ExtractConfig(weights=name)) == shipped.path
    documented = (Path(__file__).parents[3] / "docs" / f"{name}-detector.md").read_text()
    assert shipped.sha256 in documented


def test_a_file_of_that_name_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scenes").write_bytes(b"mine")
    assert resolve_weights("scenes") == Path("scenes")


def test_the_commands_know_what_comes_along():
    run = CliRunner().invoke
    path = SHIPPED["scenes"].path
    listed = run(cli, ["weights", "list"]).stdout
    assert f"scenes               {SHIPPED['scenes'].purpose}\n{'':<20} {path}\n" in listed
    assert run(cli, ["weights", "fetch", "scenes"]).stdout == f"scenes: {path}\n"
    shown = run(cli, ["weights", "show", "scenes"]).stdout
    assert f"sha256               {SHIPPED['scenes'].sha256}\n" in shown
    assert "network              ResNet-18, 256 per region\n" in shown


def test_the_commands_fetch_show_and_list(host, published, monkeypatch):
    host.files["/good"] = published
    run = CliRunner().invoke
    assert "theirs               a detector\n" in run(cli, ["weights", "list"]).stdout
    fetched = run(cli, ["weights", "fetch", "theirs"])
    assert fetched.stdout == f"theirs: {kept_detector('theirs')}\n"
    shown = run(cli, ["weights", "show", "theirs"]).stdout
    assert "origin               airsplay faster_rcnn_from_caffe\n" in shown
    assert "bbox weights         [10.0, 10.0, 5.0, 5.0]\n" in shown
    rows = json.loads(run(cli, ["weights", "list", "--json"]).stdout)
    assert {
        "name": "theirs",
        "purpose": "a detector",
        "place": str(kept_detector("theirs")),
    } in rows


def test_the_command_imports(published, tmp_path):
    (tmp_path / "a.pkl").write_bytes(published)
    answer = CliRunner().invoke(cli, ["weights", "import", str(tmp_path / "a.pkl")])
    assert answer.stdout == f"{import_detector(tmp_path / 'a.pkl')}\n"


def test_an_unknown_name_is_refused_with_the_names():
    answer = CliRunner().invoke(cli, ["weights", "fetch", "nothing"])
    assert answer.exit_code == 2
    assert "no weights are called 'nothing'; names: spice, scenes, theirs" in answer.stderr
    answer = CliRunner().invoke(cli, ["weights", "fetch", "theirs", "--from", "."])
    assert 'a detector\'s file is read by "a2 weights import FILE"' in answer.stderr

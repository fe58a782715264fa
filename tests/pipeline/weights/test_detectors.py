"""Published detectors: downloaded from the first working URL, stored once, checked later."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from safetensors.torch import load_file

from a2cap.data.errors import WeightsError
from a2cap.extract.extract_config import META_KEY, ExtractConfig
from a2cap.pipeline.configuration import load_config
from a2cap.pipeline.weights.detector_files import download_detector, import_detector
from a2cap.pipeline.weights.detectors import (
    BUNDLED,
    PUBLISHED,
    PublishedDetector,
    downloaded_detector,
    resolve_weights,
    weights_file,
    weights_sha256,
)
from a2cap.pipeline.weights.download import DownloadError
from tests.data.messages import message_of
from tests.experiments import a2
from tests.extract.tiny import tiny_meta

URLS = {name: detector.urls for name, detector in PUBLISHED.items()}


@pytest.fixture(scope="module")
def published(experiment):
    """The bytes of a small detector in airsplay's layout."""
    tensors = load_file(experiment.weights)
    arrays = {key: tensor.numpy() for key, tensor in tensors.items()}
    return pickle.dumps({"model": arrays}, protocol=2)


@pytest.fixture(autouse=True)
def known(host, monkeypatch, tmp_path):
    """One published detector with three URLs, and an empty cache folder."""
    monkeypatch.setenv("A2_CACHE", str(tmp_path / "cache"))
    urls = tuple(f"{host.url}/{name}" for name in ("dead", "page", "good"))
    host.files["/page"] = b"<!DOCTYPE html> this file has moved"
    users = dict(PUBLISHED)
    PUBLISHED.clear()
    PUBLISHED["theirs"] = PublishedDetector("a detector", urls)
    yield
    PUBLISHED.clear()
    PUBLISHED.update(users)


def test_a_detector_comes_from_its_first_working_url(host, published):
    host.files["/good"] = published
    path = download_detector("theirs")
    assert path == downloaded_detector("theirs") == resolve_weights("theirs")
    assert path == weights_file(ExtractConfig(weights="theirs"))
    assert load_file(path).keys() == pickle.loads(published)["model"].keys()
    record = json.loads((path.parent / "record.json").read_text())
    assert (record["address"], record["size"]) == (f"{host.url}/good", len(published))
    assert sorted(file.name for file in path.parent.iterdir()) == [path.name, "record.json"]
    host.files.clear()
    assert download_detector("theirs") == path


@pytest.mark.slow
def test_the_answer_of_each_dead_url_is_reported(host):
    assert message_of(download_detector, "theirs", error=DownloadError) == (
        f"no URL of 'theirs' works: cannot download {host.url}/dead: HTTP 404 Not Found; name a "
        "folder that contains it instead; weights 'download from URL 1' are a web page, because "
        'the download link is dead; get the file elsewhere, see "a2 weights list"; '
        f"cannot download {host.url}/good: HTTP 404 Not Found; name a folder that contains it "
        'instead; find a copy elsewhere and import it with "a2 weights import FILE"'
    )
    assert downloaded_detector("theirs") is None


@pytest.mark.slow
def test_a_file_that_differs_from_the_first_download_is_refused(host, published):
    host.files["/good"] = published
    path = download_detector("theirs")
    path.unlink()
    host.files["/good"] = published + b"."
    with pytest.raises(
        DownloadError, match=r"/good has changed: sha256 .*, at the first download "
    ):
        download_detector("theirs")
    (path.parent / "record.json").unlink()
    assert download_detector("theirs") == path


def test_a_url_as_weights_is_refused_and_not_downloaded():
    url = "http://host/faster_rcnn.pkl"
    assert message_of(resolve_weights, url, error=WeightsError) == (
        f'weights are a URL, which is not downloaded: {url!r}; run "a2 weights fetch NAME" for one '
        "of a2 weights list, or download it yourself and name the file"
    )


@pytest.mark.slow
def test_an_imported_file_is_stored_once_whatever_its_name(published, tmp_path):
    for name in ("a.pkl", "another name"):
        (tmp_path / name).write_bytes(published)
    path = import_detector(tmp_path / "a.pkl")
    assert import_detector(tmp_path / "another name") == path
    assert path.suffix == ".safetensors"
    assert import_detector(path) != path  # canonical weights are another file
    answer = a2("weights", "import", tmp_path / "a.pkl")
    assert answer.stdout == f"{path}\n"
    assert message_of(import_detector, tmp_path / "gone.pkl", error=WeightsError) == (
        f"cannot read weights {str(tmp_path / 'gone.pkl')!r}: No such file or directory; "
        "correct the path"
    )


def test_every_published_detector_has_https_urls_alone():
    # no digest of these files is known, so the connection itself has to be authenticated
    assert len(URLS) == 9
    for urls in URLS.values():
        assert urls
        assert all(url.startswith("https://") for url in urls)


@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_weights_are_the_documented_ones(name, tmp_path, monkeypatch):
    bundled = BUNDLED[name]
    assert weights_sha256(bundled.path) == bundled.sha256
    assert bundled.path.stat().st_size <= 8_000_000
    assert resolve_weights(name) == weights_file(ExtractConfig(weights=name)) == bundled.path
    page = {"scenes": "scenes-detector.md", "photos": "photos.md"}[name]
    assert bundled.sha256 in (Path(__file__).parents[3] / "docs" / page).read_text()
    monkeypatch.chdir(tmp_path)
    Path(name).mkdir()  # as `a2 scenes scenes` does
    assert resolve_weights(name) == bundled.path
    Path(name).rmdir()
    Path(name).write_bytes(b"mine")  # a file takes precedence over a detector of its name
    assert resolve_weights(name) == Path(name)


def test_settings_default_to_what_the_weights_state(tmp_path):
    def settings(*overrides):
        config = load_config(None, overrides).extract
        return config.min_side, config.max_side, config.roi_size, config.proposals

    published = (600, 1000, 14, 300)
    assert settings() == published
    assert settings("extract.weights=scenes") == (224, 224, 7, 36)
    assert settings("extract.weights=scenes", "extract.roi_size=14") == (224, 224, 14, 36)
    meta = tiny_meta()
    weights = tmp_path / "own.safetensors"
    save_file({"a": np.zeros(1)}, weights, {META_KEY: meta.model_dump_json()})
    assert settings(f"extract.weights={weights}") == (*meta.scale, meta.roi_size, meta.proposals)
    weights.write_bytes(b"not weights")
    assert settings(f"extract.weights={weights}") == published


def test_the_commands_know_the_bundled_detector():
    path = BUNDLED["scenes"].path
    listed = a2("weights", "list").stdout
    assert f"scenes               {BUNDLED['scenes'].purpose}\n{'':<20} {path}\n" in listed
    assert a2("weights", "fetch", "scenes").stdout == f"scenes: {path}\n"
    shown = a2("weights", "show", "scenes").stdout
    assert f"sha256               {BUNDLED['scenes'].sha256}\n" in shown
    assert "network              ResNet-18, 256 per region\n" in shown
    assert "scale                [224, 224]\n" in shown
    assert "roi size             7\nproposals            36\n" in shown


def test_the_commands_know_the_bundled_image_encoder():
    photos = BUNDLED["photos"]
    listed = a2("weights", "list").stdout
    assert f"photos               {photos.purpose}\n{'':<20} {photos.path}\n" in listed
    assert a2("weights", "show", "photos").stdout == (
        f"file                 {photos.path}\nsha256               {photos.sha256}\n"
        "boxes                grid\ngrid backbone        efficientnet-lite2\n"
    )
    model = load_config(None, ["extract.weights=photos"]).extract
    assert (model.boxes, model.grid_backbone, model.grid_size) == ("grid", "efficientnet-lite2", 7)


def test_an_unknown_name_is_refused_with_the_names():
    answer = a2("weights", "fetch", "nothing", code=2)
    assert (
        "unknown weights: 'nothing'; choose one of spice, scenes, photos, theirs" in answer.stderr
    )
    answer = a2("weights", "fetch", "theirs", "--from", ".")
    assert '--from is for spice; use "a2 weights import FILE" instead' in answer.stderr

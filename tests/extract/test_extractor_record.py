import hashlib
import json

import pytest

from a2cap.extract.extract_config import ExtractConfig
from a2cap.extract.extractor import Extractor
from a2cap.extract.extractor_record import CODE_VERSION, ExtractorRecord
from a2cap.extract.weights.load import load_detector, save_detector
from tests.data.messages import message_of


@pytest.fixture
def weights(detector, tmp_path):
    save_detector(detector, tmp_path / "detector.safetensors")
    return tmp_path / "detector.safetensors"


def record(weights, **config):
    settings = ExtractConfig(weights=str(weights), precision="exact", **config)
    return Extractor(load_detector(weights), config=settings).record(weights)


def test_a_record_states_everything_that_features_depend_on(weights, detector, tmp_path):
    record(weights).write(tmp_path / "extractor.json")
    content = json.loads((tmp_path / "extractor.json").read_text())
    assert content.pop("config") == ExtractConfig(precision="exact").model_dump(
        mode="json", exclude={"weights"}
    )
    libraries = content.pop("libraries")
    assert libraries.pop("threads") == "1"
    assert set(libraries) == {"torch", "torchvision", "opencv", "pillow", "numpy"}
    architecture = content.pop("architecture")
    assert (architecture["depth"], architecture["classes"]) == (18, 12)
    assert content == {
        "summary": "ResNet-18, random, seed 0, detect boxes",
        "feature_width": 64,
        "meta": json.loads(detector.meta.model_dump_json()),
        "weights_sha256": hashlib.sha256(weights.read_bytes()).hexdigest(),
        "code_version": CODE_VERSION,
    }


@pytest.mark.slow
def test_differences_name_the_fields_that_change_features(weights):
    first = record(weights)
    assert first.differences(first.model_copy(update={"libraries": {"torch": "9"}})) == []
    other = record(weights, min_regions=36, max_regions=36)
    other = other.model_copy(update={"weights_sha256": "0" * 64, "meta": None})
    assert first.differences(other) == [
        "meta",
        "weights_sha256",
        "config.max_regions",
        "config.min_regions",
    ]


def remove(*names):
    """Return a function that removes fields of a record, or of its configuration."""

    def change(whole):
        for name in names:
            section = whole["config"] if name.startswith("config.") else whole
            del section[name.removeprefix("config.")]
        return whole

    return change


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "fields"),
    [
        (lambda whole: [], "content"),
        (
            lambda whole: {},
            "code_version, config, feature_width, libraries, summary, weights_sha256",
        ),
        (lambda whole: whole | {"config": whole["config"] | {"min_side": 0}}, "config.min_side"),
        # a default in their place would be another extractor
        (remove("config.boxes", "config.confidence"), "config.boxes, config.confidence"),
        (remove("architecture", "meta", "config.dtype"), "architecture, config.dtype, meta"),
    ],
)
def test_an_incomplete_record_is_refused(weights, tmp_path, change, fields):
    path = tmp_path / "extractor.json"
    record(weights).write(path)
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    assert message_of(ExtractorRecord.read, path) == (
        f"{str(path)!r} does not state how regions are made: missing or invalid {fields}; "
        "copy the whole directory again, or train again"
    )

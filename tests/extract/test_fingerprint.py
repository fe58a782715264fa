import hashlib
import json

import pytest

from a2cap.extract.config import ExtractConfig
from a2cap.extract.extractor import Extractor
from a2cap.extract.fingerprint import CODE_VERSION
from a2cap.extract.weights.load import load_detector, save_detector


@pytest.fixture
def weights(detector, tmp_path):
    save_detector(detector, tmp_path / "detector.safetensors")
    return tmp_path / "detector.safetensors"


def fingerprint(weights, **config):
    settings = ExtractConfig(weights=str(weights), **config)
    return Extractor(load_detector(weights), config=settings).account(weights)


def test_fingerprint_states_everything_that_features_depend_on(weights, detector):
    found = fingerprint(weights)
    assert found["weights_sha256"] == hashlib.sha256(weights.read_bytes()).hexdigest()
    assert found["meta"] == json.loads(detector.meta.model_dump_json())
    assert found["architecture"]["depth"] == 18
    assert found["feature_width"] == 64
    assert found["code_version"] == CODE_VERSION
    assert set(found["libraries"]) == {"torch", "torchvision", "opencv", "pillow", "numpy"}
    assert found["config"]["proposals"] == 300


def test_fingerprint_is_plain_json(weights):
    found = fingerprint(weights)
    assert json.loads(json.dumps(found)) == found


def test_fingerprint_does_not_depend_on_where_the_weights_lie(weights, tmp_path):
    moved = tmp_path / "elsewhere.safetensors"
    moved.write_bytes(weights.read_bytes())
    assert fingerprint(weights) == fingerprint(moved)


def test_fingerprint_changes_with_the_config(weights):
    assert fingerprint(weights) != fingerprint(weights, min_regions=36, max_regions=36)

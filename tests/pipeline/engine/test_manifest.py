"""Manifests: they read back as written, and their digest covers only the outputs."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from a2cap.pipeline.engine import manifest as module
from a2cap.pipeline.engine.key import PreImage
from a2cap.pipeline.engine.manifest import Manifest, installed_versions, read_manifest

texts = st.text(st.characters(codec="utf-8"), max_size=5)
numbers = st.floats(allow_nan=False, allow_infinity=False)
pre_images = st.builds(
    PreImage,
    texts,
    st.integers(),
    st.dictionaries(texts, numbers, max_size=2),
    st.dictionaries(texts, texts, max_size=2),
)
manifests = st.builds(
    Manifest,
    pre_image=pre_images,
    outputs=st.dictionaries(texts, texts, max_size=2),
    skipped=st.integers(0, 99),
    finished=numbers,
    seconds=numbers,
    versions=st.dictionaries(texts, texts, max_size=2),
    sizes=st.dictionaries(texts, st.integers(0), max_size=2),
)


@pytest.mark.slow
@settings(max_examples=30)
@given(manifests)
def test_a_written_manifest_reads_back(tmp_path_factory, manifest):
    folder = tmp_path_factory.getbasetemp()
    manifest.write(folder)
    assert read_manifest(folder) == manifest
    content = json.loads((folder / "manifest.json").read_text())
    assert list(content) == sorted(content)


@pytest.mark.slow
@settings(max_examples=30)
@given(manifests, manifests)
def test_the_digest_depends_only_on_the_outputs(one, other):
    assert (one.digest == other.digest) == (one.outputs == other.outputs)


def test_only_installed_packages_have_versions(monkeypatch):
    monkeypatch.setattr(module, "_RECORDED_PACKAGES", ("numpy", "no such package"))
    assert sorted(installed_versions()) == ["numpy", "python"]


@pytest.mark.parametrize("package", ["torch", "numpy", "a2cap"])
def test_versions_of_computing_packages_are_recorded(package):
    assert package in installed_versions()

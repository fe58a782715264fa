"""Manifests: what was written is read, and its digest is that of the outputs alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2cap.pipeline.engine import manifest as module
from a2cap.pipeline.engine.key import PreImage
from a2cap.pipeline.engine.manifest import Manifest, installed_versions, read_manifest

texts = st.text(st.characters(codec="utf-8"), max_size=10)
numbers = st.floats(allow_nan=False, allow_infinity=False)
pre_images = st.builds(
    PreImage, texts, st.integers(), st.dictionaries(texts, numbers), st.dictionaries(texts, texts)
)
manifests = st.builds(
    Manifest,
    pre_image=pre_images,
    outputs=st.dictionaries(texts, texts),
    skipped=st.integers(0, 99),
    finished=numbers,
    seconds=numbers,
    versions=st.dictionaries(texts, texts),
    sizes=st.dictionaries(texts, st.integers(0)),
)


@given(manifests)
def test_what_was_written_is_read(tmp_path_factory, manifest):
    folder = tmp_path_factory.getbasetemp()
    manifest.write(folder)
    assert read_manifest(folder) == manifest


@given(manifests, manifests)
def test_the_digest_depends_on_the_outputs_and_on_nothing_else(one, other):
    assert (one.digest == other.digest) == (one.outputs == other.outputs)


def test_versions_are_those_of_packages_that_are_installed(monkeypatch):
    monkeypatch.setattr(module, "_RECORDED_PACKAGES", ("numpy", "no such package"))
    assert sorted(installed_versions()) == ["numpy", "python"]


@pytest.mark.parametrize("package", ["torch", "numpy", "a2cap"])
def test_versions_of_what_computes_are_recorded(package):
    assert package in installed_versions()

"""Folded normalisations, and the steps of detection."""

from dataclasses import replace

import numpy as np
import torch

from a2cap.extract.detector.detector import Detector, fuse
from a2cap.extract.detector.input import scaled_batch
from a2cap.extract.detector.region_selection import RegionSelection
from a2cap.extract.detector.resnet import FrozenBatchNorm
from tests.extract.tiny import relative

SELECTION = RegionSelection(proposals=60, roi_size=7, confidence=0.2, min_regions=5, max_regions=20)


def wrong_precision(detector, maps, proposals, *, selection):
    """Classify all proposals, give them to other classes, and call none of them exact."""
    exact = detector.classify(maps, proposals, selection=selection)
    return replace(
        exact,
        probabilities=exact.probabilities.roll(7, dims=1),
        features=torch.zeros_like(exact.features),
        is_exact=torch.zeros_like(exact.is_exact),
    )


def test_features_and_probabilities_of_selected_regions_are_exact_in_any_precision(
    detector, make_image
):
    (blob,), (size,) = scaled_batch([make_image(0)], scale=(192, 320), meta=detector.meta)
    network, image = fuse(detector), torch.from_numpy(blob)[None]
    image = image.contiguous(memory_format=torch.channels_last)
    with torch.inference_mode():
        exact, other = (
            network(image, size=size, selection=SELECTION, classify=classify)
            for classify in (Detector.classify, wrong_precision)
        )
    assert exact.is_exact.all()
    assert other.is_exact.all()
    known = {tuple(box): row for row, box in enumerate(exact.boxes[0].tolist())}
    rows = [(known.get(tuple(box), -1), row) for row, box in enumerate(other.boxes[0].tolist())]
    ours, theirs = np.array([pair for pair in rows if pair[0] >= 0]).T
    assert len(ours) > 5
    assert torch.equal(exact.features[0, ours], other.features[0, theirs])
    assert torch.equal(exact.probabilities[0, ours], other.probabilities[0, theirs])


def test_a_fused_detector_has_no_normalisations_and_does_not_change_the_original(detector):
    before = {key: tensor.clone() for key, tensor in detector.state_dict().items()}
    fused = fuse(detector)
    assert isinstance(fused, Detector)
    assert not any(isinstance(module, FrozenBatchNorm) for module in fused.modules())
    assert any(isinstance(module, FrozenBatchNorm) for module in detector.modules())
    assert all(torch.equal(detector.state_dict()[key], tensor) for key, tensor in before.items())


def test_maps_and_features_agree_to_float32_rounding(detector):
    fused = fuse(detector)
    images = torch.randn(1, 3, 96, 128, generator=torch.Generator().manual_seed(1)) * 50
    rois = torch.tensor([[0.0, 3, 3, 90, 80], [0, 40, 10, 120, 60]])
    with torch.inference_mode():
        maps, expected = fused.backbone(images), detector.backbone(images)
        assert relative(maps, expected) < 1e-5
        predictions, theirs = (d.predict(expected, rois, roi_size=7) for d in (fused, detector))
        assert relative(predictions.features, theirs.features) < 1e-5
        assert relative(predictions.class_logits, theirs.class_logits) < 1e-4

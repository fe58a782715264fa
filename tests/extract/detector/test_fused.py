import torch

from a2cap.extract.detector.detector import Detector
from a2cap.extract.detector.fused import fold_norm, fuse
from a2cap.extract.detector.resnet import FrozenBatchNorm, NormalizedConvolution
from tests.extract.tiny import relative


def test_a_fused_convolution_equals_the_two_steps():
    separate = NormalizedConvolution(3, 5, kernel=3, stride=2, dilation=2)
    generator = torch.Generator().manual_seed(0)
    for tensor in (separate.weight.data, *separate.norm.buffers()):
        tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.1)
    x = torch.randn(2, 3, 9, 11, generator=generator)
    with torch.inference_mode():
        expected = separate(x)
        fold_norm(separate)
        torch.testing.assert_close(separate(x), expected, rtol=1e-5, atol=1e-5)


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
        maps, expected = fused(images), detector(images)
        assert relative(maps, expected) < 1e-5
        found, features = (d.predict(expected, rois, roi_size=7) for d in (fused, detector))
        assert relative(found.features, features.features) < 1e-5
        assert relative(found.class_logits, features.class_logits) < 1e-4

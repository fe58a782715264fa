import pytest
import torch

from a2cap.extract.detector.detector import CHUNK, Detector, fuse
from a2cap.extract.detector.heads import BoxPredictor
from a2cap.extract.detector.resnet import Architecture
from tests.extract.detector.test_roi_pool import some_regions
from tests.extract.tiny import relative, seeded

TINY = Architecture(18, width=2, classes=3, attributes=4, embedding_width=5, attribute_width=6)


def predictor(architecture):
    heads = BoxPredictor(architecture)
    generator = torch.Generator().manual_seed(0)
    for parameter in heads.parameters():
        torch.nn.init.normal_(parameter, generator=generator)
    return heads.requires_grad_(False)


def test_attributes_depend_on_the_most_likely_class_or_the_background():
    heads, features = predictor(TINY), torch.rand(1, 16)
    of_class = [heads.attribute_logits(features, torch.eye(4)[None, k]) for k in range(4)]
    assert len({tuple(logits[0].tolist()) for logits in of_class}) == 4


@pytest.mark.parametrize("is_fused", [True, False])
@pytest.mark.parametrize(("images", "size"), [(1, 3), (3, 7), (1, 14)])
def test_shared_cells_give_the_features_of_whole_regions(deep, images, size, is_fused):
    network = fuse(deep) if is_fused else deep
    maps = torch.rand(images, 128, 11, 17, generator=seeded(size))
    rois = some_regions(4 * CHUNK, images=images, seed=size)
    rois[rois[:, 0] == 1, 0] = 2  # the second image has none
    with torch.inference_mode():
        assert network.shares_cells(maps, rois)
        shared = network.predict(maps, rois, roi_size=size).features
        whole = torch.cat(list(network.pooled(maps, rois, roi_size=size)))
        assert relative(shared, network.roi_heads(whole)) < 2e-6


def test_features_of_whole_chunks_do_not_depend_on_other_regions(deep):
    maps = torch.rand(1, 128, 11, 17, generator=seeded())
    rois = some_regions(2 * CHUNK, images=1, seed=0)
    some = slice(9, 9 + CHUNK)
    with torch.inference_mode():
        of_all = deep.predict(maps, rois, roi_size=14).features
        assert torch.equal(deep.predict(maps, rois[some], roi_size=14).features, of_all[some])


def test_cells_are_shared_where_res5_takes_them_one_by_one(deep, detector):
    maps, rois = torch.rand(2, 128, 11, 17), some_regions(2 * CHUNK, images=2, seed=0)
    strided = Detector(deep.architecture, deep.meta.model_copy(update={"last_stage": "strided"}))
    bilinear = deep.meta.model_copy(update={"region_pooling": "bilinear"})
    assert deep.shares_cells(maps, rois)
    assert not deep.shares_cells(maps, rois[1:])
    assert not deep.shares_cells(maps.clone().requires_grad_(), rois)
    for other in (detector, strided, Detector(deep.architecture, bilinear)):
        assert not other.shares_cells(maps, rois)

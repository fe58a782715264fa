import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torchvision.ops import box_iou

from a2cap.extract.detector.detections import detect_objects
from a2cap.extract.detector.input import ScaledSize
from a2cap.extract.training.batch import LabelledBatch, labelled_batch
from a2cap.extract.training.trainable import Sampling, TrainableDetector
from a2cap.extract.weights.initial import random_detector
from tests.extract.formulas import iou, log_softmax, smooth_l1
from tests.extract.tiny import TINY, labelled, seeded, tiny_meta

META = tiny_meta()
ARCHITECTURE = replace(TINY, classes=3, attributes=4, anchors=2)
SAMPLING = Sampling(
    anchors=32, anchor_positives=0.5, proposals=20, regions=8, region_positives=0.5, roi_size=7
)


def trainable(seed=0):
    detector = random_detector(ARCHITECTURE, META, generator=seeded(seed))
    return TrainableDetector(detector, learns_norms=True)


COLOURS = ((255, 0, 0), (0, 255, 0), (0, 0, 255))


def square_image(*squares):
    """Draw squares (x, y, side, class) on grey and return them with labels; attribute = class."""
    image = np.full((64, 64, 3), 128, np.uint8)
    for x, y, side, kind in squares:
        image[y : y + side, x : x + side] = COLOURS[kind]
    boxes = [[x, y, x + side, y + side] for x, y, side, _ in squares]
    kinds = [kind for *_, kind in squares]
    attribute_ids = [(kind,) for kind in kinds]
    return image, labelled(boxes, class_ids=kinds, attribute_ids=attribute_ids)


SQUARES = (
    square_image((4, 4, 20, 0), (36, 30, 24, 1)),
    square_image((10, 34, 18, 2)),
    square_image((30, 6, 28, 0), (6, 40, 16, 2)),
    square_image((20, 18, 24, 1)),
)


@pytest.fixture(scope="module")
def batch():
    images, labels = zip(*SQUARES, strict=True)
    return labelled_batch(images, labels, meta=META)


def losses(model, batch, seed=0):
    return model.losses(batch, sampling=SAMPLING, generator=seeded(seed))


@pytest.mark.slow
def test_equal_seeds_give_equal_losses_without_the_global_rng(batch):
    before = torch.get_rng_state()
    first, again = (losses(trainable(), batch).named() for _ in range(2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(losses(trainable(), batch, seed=1).classes, first["classes"])
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.slow
def test_gradient_reaches_every_parameter(batch):
    model = trainable()
    losses(model, batch).total(attribute_weight=0.5).backward()
    without = [
        name
        for name, parameter in model.named_parameters()
        if parameter.grad is None or not parameter.grad.abs().sum() > 0
    ]
    assert without == []


def test_images_without_boxes_train_only_the_background(batch):
    empty = labelled([])
    images = [image for image, _ in SQUARES]
    nothing = labelled_batch(images, [empty] * 4, meta=META)
    values = losses(trainable(), nothing)
    assert (values.proposal_boxes, values.boxes, values.attributes) == (0, 0, 0)
    assert values.classes > 0
    assert values.objectness > 0


def test_a_detector_without_attributes_trains_the_other_losses(batch):
    detector = random_detector(replace(ARCHITECTURE, attributes=0), META, generator=seeded())
    values = losses(TrainableDetector(detector, learns_norms=True), batch)
    assert values.attributes == 0
    assert values.classes > 0


@pytest.mark.slow
def test_a_frozen_detector_equals_evaluation_mode_and_does_not_change_with_training(batch):
    model = trainable()
    losses(model, batch)  # moves the running statistics
    model.eval()
    frozen = model.frozen()
    rois = torch.tensor([[0.0, 4, 4, 24, 24], [2, 30, 6, 58, 34]])
    with torch.inference_mode():
        maps = model.detector.backbone(batch.images)
        assert torch.equal(frozen.backbone(batch.images), maps)
        ours, theirs = (d.predict(maps, rois, roi_size=7) for d in (frozen, model.detector))
    assert torch.equal(ours.features, theirs.features)
    assert torch.equal(ours.class_logits, theirs.class_logits)
    assert torch.equal(ours.attribute_logits, theirs.attribute_logits)
    before = {key: tensor.clone() for key, tensor in frozen.state_dict().items()}
    losses(model.train(), batch)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    assert all(torch.equal(before[key], tensor) for key, tensor in frozen.state_dict().items())


def test_fine_tuning_changes_neither_the_norms_nor_the_given_detector(batch):
    detector = random_detector(ARCHITECTURE, META, generator=seeded())
    model = TrainableDetector(detector, learns_norms=False)
    losses(model, batch).total(attribute_weight=0.5).backward()
    torch.optim.SGD(model.parameters(), lr=0.01).step()
    state, tuned = detector.state_dict(), model.frozen().state_dict()
    changed = {key for key in state if not torch.equal(state[key], tuned[key])}
    assert changed
    assert not any(".norm." in key for key in changed)
    assert "backbone.stem.conv1.weight" in changed


def deltas_of(true, box):
    sides = [box[2] - box[0], box[3] - box[1]]
    moved = [((true[k] + true[k + 2]) / 2 - (box[k] + box[k + 2]) / 2) / sides[k] for k in (0, 1)]
    return moved + [math.log((true[k + 2] - true[k]) / sides[k]) for k in (0, 1)]


def reference_anchor_losses(logits, deltas, anchors, boxes):
    """Objectness and box losses of one image from all its anchors, with loops."""
    overlaps = [[iou(box, anchor) for anchor in anchors] for box in boxes]
    objectness, errors = [], []
    for k, anchor in enumerate(anchors):
        column = [row[k] for row in overlaps]
        best = column.index(max(column))
        foreground = column[best] >= 0.7 or any(row[k] == max(row) for row in overlaps)
        if not foreground and column[best] >= 0.3:
            continue
        objectness.append(np.logaddexp(0, -logits[k] if foreground else logits[k]))
        errors.append(smooth_l1(deltas[k], deltas_of(boxes[best], anchor)) if foreground else 0)
    return sum(objectness) / len(objectness), sum(errors) / len(errors)


def reference_region_losses(described, refined, regions, labels):
    """Class, box and attribute losses of one image from all regions, with loops."""
    boxes, kinds = labels.boxes.tolist(), labels.class_ids.tolist()
    classes, errors, attributes = [], [], []
    for k, region in enumerate(regions):
        column = [iou(box, region) for box in boxes]
        best = column.index(max(column))
        foreground = column[best] >= 0.5
        kind = kinds[best] if foreground else META.background_index
        classes.append(-log_softmax(described.class_logits[k].tolist())[kind])
        errors.append(0.0)
        if foreground:
            weighted = zip(deltas_of(boxes[best], region), (10, 10, 5, 5), strict=True)
            target = [delta * weight for delta, weight in weighted]
            errors[-1] = smooth_l1(refined[k, 4 * kind : 4 * kind + 4].tolist(), target)
            # the attribute of a square is its class
            attributes.append((k, kind))
    return sum(classes) / len(classes), sum(errors) / len(errors), attributes


@pytest.fixture(scope="module")
def uneven():
    """A detector in evaluation mode whose heads differ between regions."""
    model = trainable().eval()
    with torch.no_grad():
        for part in (model.detector.proposal_generator, model.detector.roi_heads.box_predictor):
            for parameter in part.parameters():
                parameter.normal_(0, 0.2, generator=seeded(len(parameter)))
    return model


def test_all_losses_equal_loops_over_all_anchors_and_regions(uneven, batch):
    everything = replace(SAMPLING, anchors=1000, proposals=12, regions=1000)
    values = uneven.losses(batch, sampling=everything, generator=seeded())
    detector, expected = uneven.detector, []
    with torch.no_grad():
        for index, (_, labels) in enumerate(SQUARES):
            maps = detector.backbone(batch.images[index : index + 1])
            scored = detector.proposal_generator.score(maps, meta=META)
            of_anchors = reference_anchor_losses(
                scored.logits[0].tolist(),
                scored.deltas[0].tolist(),
                scored.anchors.tolist(),
                labels.boxes.tolist(),
            )
            (proposals,) = detector.proposal_generator(
                maps, sizes=batch.sizes[index : index + 1], count=12, meta=META
            )
            regions = torch.cat([torch.from_numpy(labels.boxes), proposals])
            described = detector.predict(maps, torch.nn.functional.pad(regions, (1, 0)), roi_size=7)
            predictor = detector.roi_heads.box_predictor
            refined = predictor.bbox_pred(described.features)
            *of_regions, attributes = reference_region_losses(
                described, refined, regions.tolist(), labels
            )
            given = [
                -log_softmax(
                    predictor.attribute_logits_of(
                        described.features[k : k + 1], torch.tensor([kind])
                    )[0].tolist()
                )[kind]
                for k, kind in attributes
            ]
            expected.append([*of_anchors, *of_regions, sum(given) / len(given)])
    means = np.mean(expected, axis=0)
    together = torch.stack(list(values.named().values())).detach().numpy()
    np.testing.assert_allclose(together, means, rtol=2e-4)


@pytest.mark.slow
def test_losses_under_bfloat16_autocast_are_float32_and_close(batch):
    exact = losses(trainable(), batch)
    model = trainable()
    with torch.autocast("cpu", torch.bfloat16):
        rough = losses(model, batch)
    assert {loss.dtype for loss in rough.named().values()} == {torch.float32}
    rough.total(attribute_weight=0.5).backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    assert all(parameter.grad.dtype == torch.float32 for parameter in model.parameters())
    for name, loss in exact.named().items():
        torch.testing.assert_close(rough.named()[name], loss, rtol=0.1, atol=0.02)


def test_crowds_are_not_trained_on(batch):
    """A crowd over all of the image leaves nothing that could be background."""
    everything = tuple(torch.tensor([[-999.0, -999, 999, 999]]) for _ in SQUARES)
    nothing = tuple(torch.zeros(0, 4) for _ in SQUARES)
    crowded = replace(batch, boxes=nothing, crowds=everything)
    values = losses(trainable(), crowded)
    assert torch.stack(list(values.named().values())).tolist() == [0, 0, 0, 0, 0]


def test_anchors_in_the_padding_are_not_sampled(batch):
    """The same image beside a larger one: no anchor of the padding is sampled."""
    model = trainable().eval()
    size = ScaledSize(height=64, width=32, scale=1, factors=(1, 1))
    none, classes = (torch.zeros(0, 4),), batch.class_ids[:1]
    half = LabelledBatch(batch.images[:1], (size,), none, classes, batch.attribute_ids[:1], none)
    maps = model.detector.backbone(half.images)
    scored = model.detector.proposal_generator.score(maps, meta=META)
    everything = replace(SAMPLING, anchors=1000)
    outside = scored.anchors[:, ::2].mean(dim=1) >= 32
    scored.logits.data[:, outside] = 1e6
    objectness, _ = model._anchor_losses(scored, half, everything, seeded())
    assert objectness < 100


@pytest.mark.slow
def test_the_detector_overfits_four_images(batch):
    model = trainable()
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    generator = seeded()
    for _ in range(200):
        values = model.losses(batch, sampling=SAMPLING, generator=generator)
        optimiser.zero_grad()
        values.total(attribute_weight=0.5).backward()
        optimiser.step()
    images = [image for image, _ in SQUARES]
    seen = detect_objects(model.frozen(), images, proposals=20, roi_size=7)
    for detections, (_, labels) in zip(seen, SQUARES, strict=True):
        overlaps = box_iou(torch.from_numpy(labels.boxes), torch.from_numpy(detections.boxes))
        best = overlaps.argmax(dim=1).numpy()
        assert (overlaps.amax(dim=1) > 0.5).all()
        assert detections.class_ids[best].tolist() == labels.class_ids.tolist()
        attributes = detections.attribute_logits[best].argmax(axis=1)
        assert attributes.tolist() == labels.class_ids.tolist()
        assert (detections.scores[best] > 0.5).all()

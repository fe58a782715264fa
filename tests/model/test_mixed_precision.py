import pytest
import torch

from a2cap.model.losses import two_losses
from a2cap.model.mixed_precision import mixed_precision
from tests.model.kinds import FUSIONS

CPU = torch.device("cpu")


def _losses(captioner, images, precision):
    """Return both losses and the gradient of their sum by parameter name."""
    captioner.zero_grad()
    with mixed_precision(precision, CPU):
        losses = two_losses(captioner, images.encoded(captioner), images.captions)
    losses.total().backward()
    return losses, {name: p.grad for name, p in captioner.named_parameters()}


@pytest.fixture
def single(tiny, images):
    """Return a builder of float32 captioners with weights of usual size; convert the images too."""
    images.features, images.boxes = images.features.float(), images.boxes.float()

    def build(**fields):
        captioner = tiny(width=64, feed_forward=64, **fields).float()
        for parameter in captioner.parameters():
            parameter.data.mul_(0.3)
        return captioner

    return build


@pytest.mark.parametrize("fusion", FUSIONS)
def test_losses_and_gradients_in_bfloat16_are_near_those_in_float32(single, images, fusion):
    captioner = single(fusion=fusion)
    full, gradients = _losses(captioner, images, "float32")
    mixed, rounded = _losses(captioner, images, "bfloat16")
    assert mixed.caption.item() == pytest.approx(full.caption.item(), rel=0.01)
    if fusion != "none":
        assert mixed.mask.item() == pytest.approx(full.mask.item(), rel=0.01)
        assert mixed.masks.penalty.item() == pytest.approx(full.masks.penalty.item(), rel=0.01)
    for name, gradient in gradients.items():
        assert rounded[name].dtype == torch.float32
        if gradient.norm() > 1e-4:
            cosine = torch.cosine_similarity(gradient.flatten(), rounded[name].flatten(), dim=0)
            assert cosine > 0.98, name


@pytest.mark.slow
@pytest.mark.parametrize("fusion", FUSIONS)
def test_attention_masks_and_losses_are_float32_in_bfloat16(single, images, fusion):
    captioner = single(fusion=fusion)
    with mixed_precision("bfloat16", CPU):
        memory = images.encoded(captioner)
        assert memory.projections[0].keys.dtype == torch.bfloat16
        scored = captioner.score(memory, images.captions)
        losses = two_losses(captioner, memory, images.captions)
    for layer in scored.attention:
        for values in (layer.original, layer.used, layer.keep, layer.gate):
            assert values is None or values.dtype == torch.float32
    computed = [losses.caption, scored.log_probs, *([] if fusion == "none" else [losses.mask])]
    assert {values.dtype for values in computed} == {torch.float32}
    torch.testing.assert_close(
        scored.attention[0].original.sum(-1), torch.ones(3, 2, 12), rtol=0, atol=1e-6
    )


def test_float32_is_exact_inside_autocast(single, images):
    captioner = single()
    expected = two_losses(captioner, images.encoded(captioner), images.captions).total()
    with mixed_precision("bfloat16", CPU), mixed_precision("float32", CPU):
        total = two_losses(captioner, images.encoded(captioner), images.captions).total()
    assert torch.equal(total, expected)

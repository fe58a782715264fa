import math

import pytest
import torch

from a2cap.model.alignment import Alignment, BilinearMask, DecoderPass, LinearMask, softmax_of_rows
from a2cap.model.alignment_config import AlignmentConfig
from tests.model.kinds import refusal

B, H, Q, R, D, HEAD = 2, 2, 3, 5, 8, 4
REGION_MASK = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
NONE_PADDED = torch.zeros(B, 1, 1, R)


def _random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _attention() -> torch.Tensor:
    scores = _random(B, H, Q, R, seed=0).masked_fill(~REGION_MASK[:, None, None], -math.inf)
    return scores.softmax(-1)


ATTENTION = _attention()
QUERIES, HIDDEN, REGIONS = (
    _random(B, H, Q, HEAD, seed=2),
    _random(B, Q, D, seed=3),
    _random(B, R, D, seed=4),
)


def _alignment(**fields) -> Alignment:
    torch.manual_seed(5)
    alignment = Alignment(
        AlignmentConfig(**fields), hidden_width=D, region_width=D, heads=H, head_width=HEAD
    ).double()
    for parameter in alignment.parameters():
        parameter.data.normal_(std=0.5)
    return alignment


@pytest.mark.parametrize("regions", [1, 5, 15, 16, 40])
def test_softmax_without_gradients_equals_torchs(regions):
    scores = 30 * torch.randn(3, 4, regions, generator=torch.Generator().manual_seed(regions))
    scores[0, :, 1:] = -math.inf
    before = scores.clone()
    with torch.no_grad():
        weights = softmax_of_rows(scores)
    torch.testing.assert_close(weights, scores.softmax(-1), rtol=1e-5, atol=1e-7)
    assert torch.equal(scores, before)
    assert torch.equal(softmax_of_rows(scores), scores.softmax(-1))


@pytest.mark.parametrize("detaches", [True, False])
@pytest.mark.parametrize("perturbed", [False, True])
def test_only_a_detached_mask_of_the_aligned_pass_gives_state_and_regions_no_gradient(
    detaches, perturbed
):
    alignment = _alignment(detach_mask=detaches)
    hidden = HIDDEN.clone().requires_grad_()
    keys = alignment.mask_network.project(REGIONS).detach().requires_grad_()
    aligned = alignment(
        ATTENTION,
        queries=QUERIES,
        hidden=hidden,
        mask_keys=keys,
        region_mask=REGION_MASK,
        decoder_pass=DecoderPass(torch.tensor(0), perturbed),
    )
    (aligned.used * torch.rand_like(aligned.used)).sum().backward()
    has_gradient = perturbed or not detaches
    assert [leaf.grad is not None for leaf in (hidden, keys)] == [has_gradient] * 2


def test_masks_start_at_one_half():
    bilinear = BilinearMask(hidden_width=D, region_width=D, heads=H, head_width=HEAD)
    linear = LinearMask(hidden_width=D, heads=H, slots=R)
    assert not bilinear.bias.any()
    assert not linear.score.bias.any()
    silent = torch.zeros(B, Q, D)
    for mask in (bilinear, linear):
        assert (mask(silent, mask.project(REGIONS.float()), NONE_PADDED) == 0.5).all()


def test_mask_networks_start_with_xaviers_range():
    torch.manual_seed(0)
    bilinear = BilinearMask(hidden_width=40, region_width=60, heads=5, head_width=20)
    linear = LinearMask(hidden_width=40, heads=5, slots=20)
    for weight in (bilinear.query.weight, bilinear.key.weight, linear.score.weight):
        bound = math.sqrt(6 / sum(weight.shape))
        assert 0.99 * bound < weight.abs().max() <= bound
    assert linear.project(torch.rand(2, 3, 60)).shape == (2, 1, 3, 0)


def test_linear_mask_accepts_at_most_as_many_regions_as_slots():
    mask = LinearMask(hidden_width=D, heads=H, slots=4).double()
    assert mask(HIDDEN, mask.project(REGIONS[:, :3]), NONE_PADDED[..., :3]).shape == (B, H, Q, 3)
    assert refusal(mask.project, REGIONS) == (
        "an image has 5 regions, the linear mask network has 4 slots; raise "
        "model.alignment.mask_slots and retrain, or set model.alignment.mask_network to bilinear"
    )


def test_masks_near_one_keep_their_precision_under_autocast():
    mask = BilinearMask(hidden_width=D, region_width=D, heads=1, head_width=HEAD)
    mask.bias.data.fill_(6.5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        keep = mask(
            torch.zeros(1, 1, D), mask.project(torch.zeros(1, 1, D)), torch.zeros(1, 1, 1, 1)
        )
    assert (1 - keep).item() == pytest.approx(1 / (1 + math.exp(6.5)), rel=1e-4)
    assert 1 - torch.sigmoid(torch.tensor(6.5, dtype=torch.bfloat16)) == 0

import torch

from a2cap.model.losses import caption_loss, two_losses


def test_caption_loss_is_the_mean_over_tokens_and_not_over_padding():
    log_probs = torch.tensor([[[-1.0, -2.0, -50.0], [-6.0, -50.0, -50.0]]])
    is_token = torch.tensor([[[True, True, False], [True, False, False]]])
    assert caption_loss(log_probs, is_token).item() == 3
    assert caption_loss(log_probs, torch.zeros_like(is_token)).item() == 0


def _losses(captioner, images):
    return two_losses(captioner, images.encoded(captioner), images.captions)


def test_statistics_are_means_over_the_existing_regions_of_each_token(tiny, images):
    captioner = tiny()
    memory = images.encoded(captioner)
    statistics = two_losses(captioner, memory, images.captions).masks
    is_token = (images.captions != 0).flatten(1)[:, None, :, None]
    exists = images.region_mask[:, None, None, :]
    perturbed = captioner.score(memory, images.captions, perturbed=True).attention
    count = exists.sum(-1, keepdim=True)
    of_tokens = [(layer.keep * exists).sum(-1, keepdim=True) / count for layer in perturbed]
    keep = torch.cat([mean[is_token.expand(3, 2, 12, 1)] for mean in of_tokens]).mean()
    aligned = captioner.score(memory, images.captions).attention
    gates = [layer.gate[is_token.expand(3, 2, 12, 1)] for layer in aligned]
    torch.testing.assert_close(statistics.keep, keep.detach())
    torch.testing.assert_close(statistics.gate, torch.cat(gates).mean().detach())
    assert not any(value.requires_grad for value in (statistics.keep, statistics.gate))


def test_token_weighted_statistics_of_parts_equal_the_batch(tiny, images):
    captioner = tiny()

    def measured(part):
        memory = captioner.encode(
            images.features[part], images.boxes[part], images.region_mask[part]
        )
        losses = two_losses(captioner, memory, images.captions[part])
        return losses.masks.keep, losses.tokens

    whole, tokens = measured(slice(None))
    parts = [measured(slice(0, 1)), measured(slice(1, 3))]
    torch.testing.assert_close(sum(keep * count for keep, count in parts) / tokens, whole)

import pytest
import torch

from a2cap.model.captioner import decoder_input, trace_attention

FUSIONS = ["none", "max", "moving", "decay", "gate"]


def test_decoder_input_is_the_caption_shifted_right_after_bos():
    captions = torch.tensor([[[4, 5, 2], [6, 2, 0]]])
    assert decoder_input(captions, bos=1).tolist() == [[[1, 4, 5], [1, 6, 2]]]


@pytest.mark.parametrize("fusion", FUSIONS)
def test_attention_of_a_given_caption_has_one_entry_per_token(tiny, images, fusion):
    captioner = tiny(fusion=fusion)
    steps = trace_attention(captioner, images.encoded(captioner), images.captions[:, 0])
    assert len(steps) == images.captions.shape[2]
    for step in steps:
        assert step.original.shape == step.aligned.shape == (3, 4)
        torch.testing.assert_close(step.original.sum(1), torch.ones(3, dtype=torch.float64))
        assert not step.aligned[~images.region_mask].any()
        assert (step.keep is None) == (fusion == "none")
        assert (step.gate is None) == (fusion != "gate")


def test_step_attention_averages_layers_and_heads_and_keeps_both(tiny, images):
    captioner = tiny(heads=4, decoder_layers=3, aligned_layers=(1, 3))
    step = trace_attention(captioner, images.encoded(captioner), images.captions[:, 0])[2]
    assert [layer.original.shape for layer in step.layers] == [(3, 4, 4)] * 3
    assert step.layers[0].gate.shape == (3, 4, 1)
    assert step.layers[1].keep is None
    used = torch.stack([layer.used for layer in step.layers]).mean((0, 2))
    keep = torch.stack([step.layers[number].keep for number in (0, 2)]).mean((0, 2))
    gate = torch.stack([step.layers[number].gate for number in (0, 2)]).mean((0, 2))
    torch.testing.assert_close(step.aligned, used)
    torch.testing.assert_close(step.keep, keep)
    assert step.gate.shape == (3, 4)
    torch.testing.assert_close(step.gate, gate.expand(3, 4))


def test_attention_of_a_step_equals_teacher_forcing(tiny, images):
    captioner = tiny()
    memory = images.encoded(captioner)
    scored = captioner.score(memory, images.captions).attention[1]
    for caption in range(2):
        steps = trace_attention(captioner, memory, images.captions[:, caption])
        for position, step in enumerate(steps):
            query = caption * images.captions.shape[2] + position
            torch.testing.assert_close(step.layers[1].used, scored.used[:, :, query])

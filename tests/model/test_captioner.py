import torch

from a2cap.model.captioner import decoder_input, trace_attention


def test_decoder_input_is_the_caption_shifted_right_after_bos():
    captions = torch.tensor([[[4, 5, 2], [6, 2, 0]]])
    assert decoder_input(captions, bos=1).tolist() == [[[1, 4, 5], [1, 6, 2]]]


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

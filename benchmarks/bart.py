"""BART of `transformers` as an image captioner of a2's size: its training step and its `generate`.

Its encoder reads projected regions, once for the five captions of an image, as a2's does; the rest
is as `transformers` ships it: fused attention, a KV cache, the loss of its own forward pass.
"""

from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn
from transformers import BartConfig, BartForConditionalGeneration
from transformers.modeling_outputs import BaseModelOutput

from a2cap.model.captioners.transformer.transformer_config import TransformerConfig
from benchmarks.train import BEAM_SIZE, STEPS, Batch, Sizes

PAD, BOS, EOS = 0, 1, 2
IGNORED = -100
"""Label of positions without a loss."""


class Bart(nn.Module):
    """A projection of the features to the model's width, and the model."""

    def __init__(self, config: TransformerConfig, sizes: Sizes):
        super().__init__()
        self.project = nn.Linear(sizes.feature_width, config.width)
        settings = BartConfig(
            vocab_size=sizes.vocabulary,
            d_model=config.width,
            encoder_layers=config.encoder_layers,
            decoder_layers=config.decoder_layers,
            encoder_attention_heads=config.heads,
            decoder_attention_heads=config.heads,
            encoder_ffn_dim=config.feed_forward,
            decoder_ffn_dim=config.feed_forward,
            dropout=config.dropout,
            activation_function="relu",
            max_position_embeddings=max(sizes.regions, STEPS + 2),
            tie_word_embeddings=False,
            pad_token_id=PAD,
            bos_token_id=BOS,
            eos_token_id=EOS,
            decoder_start_token_id=BOS,
            forced_eos_token_id=None,
        )
        self.bart = BartForConditionalGeneration(settings)

    def encode(self, batch: Batch) -> Tensor:
        """Encode the regions; returns (B, R, D)."""
        regions = self.project(batch.features.to(self.project.weight.dtype))
        mask = batch.region_mask.long()
        encoded: Tensor = self.bart.get_encoder()(inputs_embeds=regions, attention_mask=mask)[0]
        return encoded


def bart_gradients(captioner: Bart, batch: Batch) -> None:
    """Compute the gradients of the caption loss, with each image encoded once."""
    rows = [captioner.encode(batch), batch.region_mask.long()]
    count = batch.captions.shape[1]
    states, mask = (values.repeat_interleave(count, dim=0) for values in rows)
    labels = batch.captions.flatten(0, 1).masked_fill(~batch.is_token.flatten(0, 1), IGNORED)
    encoded = BaseModelOutput(last_hidden_state=states)
    output = captioner.bart(encoder_outputs=encoded, attention_mask=mask, labels=labels)
    torch.autograd.backward(output.loss)


def mixed_bart_gradients(captioner: Bart, batch: Batch) -> None:
    """Compute the same gradients under autocast, as its `Trainer` does with `bf16=True`."""
    autocast: AbstractContextManager[object] = torch.autocast("cpu", dtype=torch.bfloat16)
    with autocast:
        bart_gradients(captioner, batch)


def bart_search(captioner: Bart, batch: Batch) -> Tensor:
    """Encode and generate exactly STEPS tokens with beam search; returns (B, 1 + STEPS) int64."""
    with torch.inference_mode():
        tokens = captioner.bart.generate(
            encoder_outputs=BaseModelOutput(last_hidden_state=captioner.encode(batch)),
            attention_mask=batch.region_mask.long(),
            num_beams=BEAM_SIZE,
            min_new_tokens=STEPS,
            max_new_tokens=STEPS,
            do_sample=False,
        )
    assert isinstance(tokens, Tensor)
    return tokens

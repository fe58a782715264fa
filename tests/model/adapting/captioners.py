"""Small captioners of `transformers` with random weights, one per class, and inputs for them."""

import torch
import transformers as hf

WIDTH, WORDS, SIDE, PATCH = 16, 40, 16, 4
DECODER = {"vocab_size": WORDS, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
BERT = {
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": WIDTH,
}
BART = {
    "d_model": WIDTH,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": WIDTH,
    "decoder_ffn_dim": WIDTH,
    "max_position_embeddings": 64,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
}
T5 = {
    "d_model": WIDTH,
    "d_kv": 8,
    "d_ff": WIDTH,
    "num_layers": 2,
    "num_heads": 2,
    "decoder_start_token_id": 1,
}
CROSS = {"is_decoder": True, "add_cross_attention": True}


def vit():
    return hf.ViTConfig(**{**BERT, "hidden_size": 24}, image_size=SIDE, patch_size=PATCH)


def encoder_decoder(decoder):
    config = hf.VisionEncoderDecoderConfig.from_encoder_decoder_configs(vit(), decoder)
    config.update({"decoder_start_token_id": 1, "pad_token_id": 0, "eos_token_id": 2})
    return hf.VisionEncoderDecoderModel(config)


def gpt2():
    sizes = {"n_embd": WIDTH, "n_layer": 2, "n_head": 2, "n_positions": 64}
    return encoder_decoder(hf.GPT2Config(**DECODER, **sizes, **CROSS))


def bert():
    return encoder_decoder(hf.BertConfig(**DECODER, **BERT, **CROSS))


def trocr():
    return encoder_decoder(
        hf.TrOCRConfig(**DECODER, **BART, **CROSS, cross_attention_hidden_size=24)
    )


def bart():
    return hf.BartForConditionalGeneration(hf.BartConfig(**DECODER, **BART))


def t5():
    return hf.T5ForConditionalGeneration(hf.T5Config(**DECODER, **T5))


def florence2():
    vision = {
        "depths": [1] * 4,
        "embed_dim": [8] * 4,
        "num_heads": [2] * 4,
        "num_groups": [2] * 4,
        "window_size": 2,
        "projection_dim": WIDTH,
        "max_temporal_embeddings": 2,
        "max_position_embeddings": 8,
    }
    config = hf.Florence2Config(
        text_config={"model_type": "bart", **DECODER, **BART},
        vision_config=vision,
        image_token_id=WORDS - 1,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    return hf.Florence2ForConditionalGeneration(config)


def blip():
    text = {**DECODER, **BERT, "encoder_hidden_size": 24, "sep_token_id": 2, "is_decoder": True}
    vision = {**BERT, "hidden_size": 24, "image_size": SIDE, "patch_size": PATCH}
    return hf.BlipForConditionalGeneration(
        hf.BlipConfig(text_config={**text, "projection_dim": 8}, vision_config=vision)
    )


def blip2(text):
    vision = {**BERT, "hidden_size": 24, "image_size": SIDE, "patch_size": PATCH}
    qformer = {**BERT, "encoder_hidden_size": 24, "cross_attention_frequency": 1, "vocab_size": 9}
    config = hf.Blip2Config(
        vision_config=vision,
        qformer_config=qformer,
        text_config=text,
        num_query_tokens=3,
        image_token_index=WORDS - 1,
    )
    return hf.Blip2ForConditionalGeneration(config)


def blip2_opt():
    sizes = {"ffn_dim": WIDTH, "word_embed_proj_dim": WIDTH, "max_position_embeddings": 64}
    return blip2({"model_type": "opt", **DECODER, **BERT, **sizes})


def blip2_t5():
    return blip2({"model_type": "t5", **DECODER, **T5})


BUILDERS = {
    builder.__name__: builder
    for builder in (gpt2, bert, trocr, bart, florence2, t5, blip, blip2_opt, blip2_t5)
}


def build(name):
    """Build a captioner whose attention is far from even."""
    torch.manual_seed(0)
    model = BUILDERS[name]().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.copy_(torch.randn_like(parameter) * 0.3)
    return model


def inputs(name, images=2):
    """Return the inputs of a captioner without the text to predict."""
    generator = torch.Generator().manual_seed(1)
    side = 64 if name == "florence2" else SIDE
    pixels = torch.randn(images, 3, side, side, generator=generator)
    if name in ("bart", "t5"):  # an image's states in place of text
        states = torch.randn(images, 17, WIDTH, generator=generator)
        mask = torch.ones(images, 17, dtype=torch.int64)
        mask[-1, 12:] = 0
        return {"inputs_embeds": states, "attention_mask": mask}
    given = {"pixel_values": pixels}
    prefix = {"florence2": 5, "blip2_opt": 3, "blip2_t5": 3}.get(name)
    if prefix is not None:
        row = [WORDS - 1] * prefix + [5, 6]
        given["input_ids"] = torch.tensor([row] * images)
        given["attention_mask"] = torch.ones_like(given["input_ids"])
    return given


def teacher(name, images=2):
    """Return the same with tokens to predict."""
    tokens = torch.randint(3, WORDS - 2, (images, 6), generator=torch.Generator().manual_seed(2))
    given = inputs(name, images)
    if name == "blip":
        return {**given, "input_ids": tokens}
    if name == "blip2_opt":
        together = torch.cat((given["input_ids"], tokens), dim=1)
        return {**given, "input_ids": together, "attention_mask": torch.ones_like(together)}
    return {**given, "decoder_input_ids": tokens}


def labelled(name):
    """Return a batch with labels, the last of the second caption absent."""
    given = teacher(name)
    labels = given.pop("decoder_input_ids", given.get("input_ids")).clone()
    if name == "blip2_opt":
        labels[:, :5] = -100
    labels[1, -1] = -100
    return {**given, "labels": labels}

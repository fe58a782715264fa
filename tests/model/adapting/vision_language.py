"""Small vision-language models of `transformers` with random weights, and their processors.

The words of a prompt are in a vocabulary of WordLevel, beside the special tokens of each class.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers

WIDTH, PATCH, SIDE = 32, 4, 24
SPECIAL = (
    *("<pad>", "<s>", "</s>", "<unk>", "<image>", "<video>", "<img>", "</img>"),
    *("<fake_token_around_image>", "<global-img>", "<end_of_utterance>"),
    *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)),
    *("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"),
)
WORDS = (*SPECIAL, *["USER", ":", "ASSISTANT", "describe", "the", "image", "in", "one", "sentence"])
WORDS += tuple(f"w{number}" for number in range(40))
NAMED = {
    "image_token": "<image>",
    "video_token": "<video>",
    "boi_token": "<img>",
    "eoi_token": "</img>",
    "start_image_token": "<img>",
    "end_image_token": "</img>",
    "context_image_token": "<image>",
}
TEMPLATE = (
    "{% for message in messages %}USER : {% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}IMAGE{% else %} {{ part['text'] }}{% endif %}"
    "{% endfor %}{% endfor %}{% if add_generation_prompt %} ASSISTANT :{% endif %}"
)
TEXT = {
    "vocab_size": len(WORDS),
    "hidden_size": WIDTH,
    "intermediate_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 2048,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
VISION = {
    "hidden_size": WIDTH,
    "intermediate_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": SIDE,
    "patch_size": PATCH,
}
IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
IMAGE = WORDS.index("<image>")
IMAGES = [  # portrait, and wider than 3:1
    Image.fromarray(noise.integers(0, 255, (*size, 3), dtype=np.uint8))
    for noise in [np.random.default_rng(0)]
    for size in ((40, 60), (90, 30), (24, 80))
]
LENGTH = {"max_new_tokens": 5, "min_new_tokens": 3, "suppress_tokens": [0, 1]}
NORMALISED = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.25, 0.3]}


@dataclass(frozen=True)
class Small:
    """A model with its processor and a prompt that names the image."""

    model: Any
    processor: Any
    prompt: str | None


def tokenizer(**named):
    plain = Tokenizer(models.WordLevel({w: n for n, w in enumerate(WORDS)}, unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=plain,
        **special,
        additional_special_tokens=list(SPECIAL[4:]),
        extra_special_tokens={**NAMED, **named},
        padding_side="left",
    )


def template(image="<image>"):
    return TEMPLATE.replace("IMAGE", image)


def assemble(name, config, images, *parts, prompt="<image> describe", processor=None, **options):
    """Build a class by its name; config: its fields; images, parts, options: of its processor."""
    model = getattr(hf, f"{name}ForConditionalGeneration")(getattr(hf, f"{name}Config")(**config))
    kind = getattr(hf, f"{processor or name}Processor")
    return Small(model, kind(images, *(parts or [tokenizer()]), **options), prompt)


def fields(text, vision, **more):
    """Return fields of a config: the kinds of its text and vision models, and others."""
    return {
        "text_config": {"model_type": text, **TEXT},
        "vision_config": {"model_type": f"{vision}_vision_model", **VISION, **OF_VISION[vision]},
        "image_token_id": IMAGE,
        **more,
    }


OF_VISION = {"clip": {"projection_dim": WIDTH}, "siglip": {"vision_use_head": False}}
SQUARE = {"size": {"height": SIDE, "width": SIDE}, **NORMALISED}
CROPPED = {"size": {"shortest_edge": SIDE}, "crop_size": SQUARE["size"], **NORMALISED}
PINPOINTS = [
    [SIDE * rows, SIDE * columns] for rows, columns in ([1, 2], [2, 1], [2, 2], [1, 3], [3, 1])
]
LLAVA = {
    "patch_size": PATCH,
    "vision_feature_select_strategy": "default",
    "num_additional_image_tokens": 1,
    "chat_template": template(),
}


def llava():
    config = fields("llama", "clip", vision_feature_layer=-1)
    return assemble("Llava", config, hf.CLIPImageProcessor(**CROPPED), **LLAVA)


def llava_next():
    tiles = {"image_grid_pinpoints": PINPOINTS}
    config = fields("llama", "clip", vision_feature_layer=-1, **tiles)
    return assemble("LlavaNext", config, hf.LlavaNextImageProcessor(**CROPPED, **tiles), **LLAVA)


def llava_onevision():
    tiles, aspect = {"image_grid_pinpoints": PINPOINTS}, {"vision_aspect_ratio": "anyres_max_2"}
    config = fields("qwen2", "siglip", vision_feature_layer=-1, **tiles, **aspect)
    return assemble(
        "LlavaOnevision",
        {**config, "video_token_id": IMAGE + 1},
        hf.LlavaOnevisionImageProcessor(**SQUARE, **tiles),
        *(tokenizer(), hf.LlavaOnevisionVideoProcessor()),
        num_image_tokens=(SIDE // PATCH) ** 2,
        vision_feature_select_strategy="full",
        chat_template=template(),
        **aspect,
    )


def paligemma():
    images = hf.SiglipImageProcessor(**SQUARE)
    images.image_seq_length = (SIDE // PATCH) ** 2
    config = fields("gemma", "siglip", projection_dim=WIDTH, **IDS)
    return assemble("PaliGemma", config, images)


def qwen(name, vision):
    rope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
    config = {
        "text_config": {**TEXT, "rope_parameters": rope},
        "vision_config": {"patch_size": PATCH, "spatial_merge_size": 2, "depth": 2, **vision},
        "image_token_id": WORDS.index("<|image_pad|>"),
        "video_token_id": WORDS.index("<|video_pad|>"),
        "vision_start_token_id": WORDS.index("<|vision_start|>"),
        "vision_end_token_id": WORDS.index("<|vision_end|>"),
    }
    size = {"shortest_edge": 16 * 64, "longest_edge": 48 * 64}
    images = hf.Qwen2VLImageProcessor(size=size, patch_size=PATCH, merge_size=2, **NORMALISED)
    image = "<|vision_start|> <|image_pad|> <|vision_end|>"
    return assemble(
        name,
        config,
        images,
        tokenizer(image_token="<|image_pad|>", video_token="<|video_pad|>"),
        getattr(hf, f"{name}VideoProcessor", hf.Qwen2VLVideoProcessor)(),
        prompt=f"{image} describe",
        chat_template=template(image),
    )


def qwen2_vl():
    sizes = {"embed_dim": WIDTH, "hidden_size": WIDTH, "num_heads": 4, "mlp_ratio": 1}
    return qwen("Qwen2VL", sizes)


LATER_QWEN = {
    **{"hidden_size": WIDTH, "out_hidden_size": WIDTH, "intermediate_size": WIDTH, "num_heads": 4}
}


def qwen2_5_vl():
    return qwen("Qwen2_5_VL", {**LATER_QWEN, "window_size": 16, "fullatt_block_indexes": [1]})


def qwen3_vl():
    tables = {"num_position_embeddings": 36, "deepstack_visual_indexes": [0]}
    return qwen("Qwen3VL", {**LATER_QWEN, **tables})


def idefics3(name="Idefics3"):
    text, options = {"model_type": "llama", **TEXT}, {"image_token_id": IMAGE, "scale_factor": 2}
    sizes = {"size": {"longest_edge": 2 * SIDE}, "max_image_size": {"longest_edge": SIDE}}
    return assemble(
        name,
        {"text_config": text, "vision_config": VISION, **options, **IDS},
        hf.Idefics3ImageProcessor(**sizes, **NORMALISED),
        processor="Idefics3",
        image_seq_len=(SIDE // PATCH // 2) ** 2,
        chat_template=template(),
    )


def smolvlm():
    """SmolVLM with Idefics3's processor, which has the same tiles; its own needs num2words."""
    return idefics3("SmolVLM")


def gemma3():
    config = fields("gemma3_text", "siglip", mm_tokens_per_image=9)
    config["text_config"]["sliding_window"] = 16
    return assemble(
        "Gemma3",
        {
            **config,
            "boi_token_index": WORDS.index("<img>"),
            "eoi_token_index": WORDS.index("</img>"),
        },
        hf.Gemma3ImageProcessor(**SQUARE),
        prompt="<img> describe",
        image_seq_length=9,
        chat_template=template("<img>"),
    )


def internvl():
    sides = {"image_size": [SIDE, SIDE], "patch_size": [PATCH, PATCH]}
    config = {
        "text_config": {"model_type": "qwen2", **TEXT},
        "vision_config": {**VISION, **sides, "use_absolute_position_embeddings": True},
        **{"image_token_id": IMAGE, "image_seq_length": 9, "downsample_ratio": 0.5},
    }
    return assemble(
        "InternVL",
        config,
        hf.GotOcr2ImageProcessor(**SQUARE, crop_to_patches=True, max_patches=6),
        *(tokenizer(), hf.InternVLVideoProcessor()),
        image_seq_length=9,
        chat_template=template(),
    )


def git():
    text = {key: value for key, value in TEXT.items() if "key_value" not in key}
    config = hf.GitConfig(**text, vision_config=VISION)
    images = hf.CLIPImageProcessor(**SQUARE, do_center_crop=False)
    processor = hf.GitProcessor(images, tokenizer())
    return Small(hf.GitForCausalLM(config), processor, None)


QUICK = ("llava", "git")
"""One class of each mechanism: self-attention, and GIT's own class."""
BUILDERS = {
    builder.__name__: builder
    for builder in (
        *(llava, llava_next, llava_onevision, paligemma, qwen2_vl, qwen2_5_vl, qwen3_vl),
        *(idefics3, smolvlm, gemma3, internvl, git),
    )
}


def build(name):
    """Build a model whose attention is far from even; skip a class that is not installed."""
    torch.manual_seed(0)
    try:
        small = BUILDERS[name]()
    except AttributeError as error:
        pytest.skip(f"the installed transformers has no such class: {error}")
    small.model.eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in small.model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.3, generator=generator)
    return small


def inputs(small, images, prompt=""):
    """Return the processor's tensors for PIL images."""
    if small.prompt is None:
        given = small.processor(images=images, return_tensors="pt")
    else:
        nested = [[image] for image in images]
        text = [small.prompt + prompt] * len(images)
        given = small.processor(images=nested, text=text, return_tensors="pt", padding=True)
    names = given.keys() - {"labels"}
    return {name: given[name] for name in names if isinstance(given[name], torch.Tensor)}


def teacher(small, images):
    """Return inputs of `forward` with the tokens of a text after the prompt, and their count."""
    given = inputs(small, images)
    words = torch.tensor([[WORDS.index(f"w{n}") for n in range(4)]] * len(images))
    ids = given.get("input_ids", torch.ones(len(images), 1, dtype=torch.int64))
    added = {"input_ids": words, "attention_mask": torch.ones_like(words)}
    added |= {name: torch.zeros_like(words) for name in ("mm_token_type_ids",) if name in given}
    if "token_type_ids" in given:  # PaliGemma's prefix is 0
        added["token_type_ids"] = torch.ones_like(words)
    if small.prompt is None:
        given |= {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    joined = {name: torch.cat((given[name], rows), dim=1) for name, rows in added.items()}
    return {**given, **joined}, words.shape[1]


def labelled(small, images):
    """Return the same with labels, the last of the second text absent."""
    batch, count = teacher(small, images)
    labels = torch.full_like(batch["input_ids"], -100)
    labels[:, -count:] = batch["input_ids"][:, -count:]
    labels[1, -1] = -100
    return {**batch, "labels": labels}

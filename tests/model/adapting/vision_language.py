"""Small vision-language models of `transformers` with random weights, and their processors.

The words of a prompt are in a vocabulary of WordLevel, beside the special tokens of each class.
"""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
import transformers as hf
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


def square(kind=None, **more):
    """Return an image processor that resizes to a square."""
    kind = kind or hf.ViTImageProcessor
    return kind(size={"height": SIDE, "width": SIDE}, do_resize=True, **NORMALISED, **more)


def llava():
    config = hf.LlavaConfig(
        text_config={"model_type": "llama", **TEXT},
        vision_config={"model_type": "clip_vision_model", **VISION, "projection_dim": WIDTH},
        image_token_id=IMAGE,
        vision_feature_layer=-1,
    )
    images = hf.CLIPImageProcessor(
        size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE}, **NORMALISED
    )
    processor = hf.LlavaProcessor(
        images,
        tokenizer(),
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=template(),
    )
    return Small(hf.LlavaForConditionalGeneration(config), processor, "<image> describe")


def anyres():
    pinpoints = [[1, 2], [2, 1], [2, 2], [1, 3], [3, 1]]
    return [[SIDE * rows, SIDE * columns] for rows, columns in pinpoints]


def llava_next():
    config = hf.LlavaNextConfig(
        text_config={"model_type": "llama", **TEXT},
        vision_config={"model_type": "clip_vision_model", **VISION, "projection_dim": WIDTH},
        image_token_id=IMAGE,
        vision_feature_layer=-1,
        image_grid_pinpoints=anyres(),
    )
    images = hf.LlavaNextImageProcessor(
        size={"shortest_edge": SIDE},
        crop_size={"height": SIDE, "width": SIDE},
        image_grid_pinpoints=anyres(),
        **NORMALISED,
    )
    processor = hf.LlavaNextProcessor(
        images,
        tokenizer(),
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=template(),
    )
    return Small(hf.LlavaNextForConditionalGeneration(config), processor, "<image> describe")


def llava_onevision():
    config = hf.LlavaOnevisionConfig(
        text_config={"model_type": "qwen2", **TEXT},
        vision_config={"model_type": "siglip_vision_model", **VISION, "vision_use_head": False},
        image_token_id=IMAGE,
        video_token_id=IMAGE + 1,
        vision_feature_layer=-1,
        image_grid_pinpoints=anyres(),
        vision_aspect_ratio="anyres_max_2",
    )
    images = hf.LlavaOnevisionImageProcessor(
        size={"height": SIDE, "width": SIDE}, image_grid_pinpoints=anyres(), **NORMALISED
    )
    processor = hf.LlavaOnevisionProcessor(
        images,
        tokenizer(),
        hf.LlavaOnevisionVideoProcessor(),
        num_image_tokens=(SIDE // PATCH) ** 2,
        vision_feature_select_strategy="full",
        vision_aspect_ratio="anyres_max_2",
        chat_template=template(),
    )
    return Small(hf.LlavaOnevisionForConditionalGeneration(config), processor, "<image> describe")


def paligemma():
    config = hf.PaliGemmaConfig(
        text_config={"model_type": "gemma", **TEXT},
        vision_config={"model_type": "siglip_vision_model", **VISION, "vision_use_head": False},
        image_token_id=IMAGE,
        projection_dim=WIDTH,
        **IDS,
    )
    images = square(hf.SiglipImageProcessor)
    images.image_seq_length = (SIDE // PATCH) ** 2
    processor = hf.PaliGemmaProcessor(images, tokenizer())
    return Small(hf.PaliGemmaForConditionalGeneration(config), processor, "<image> describe")


def qwen(name, processor_name, vision, text="qwen2_vl_text"):
    rope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
    ids = {word: WORDS.index(f"<|{word}|>") for word in ("image_pad", "video_pad")}
    config = getattr(hf, f"{name}Config")(
        text_config={**TEXT, "rope_parameters": rope},
        vision_config={"patch_size": PATCH, "spatial_merge_size": 2, **vision},
        image_token_id=ids["image_pad"],
        video_token_id=ids["video_pad"],
        vision_start_token_id=WORDS.index("<|vision_start|>"),
        vision_end_token_id=WORDS.index("<|vision_end|>"),
    )
    sizes = {"patch_size": PATCH, "merge_size": 2}
    images = hf.Qwen2VLImageProcessor(
        size={"shortest_edge": 16 * 64, "longest_edge": 48 * 64}, **sizes, **NORMALISED
    )
    image = "<|vision_start|> <|image_pad|> <|vision_end|>"
    words = tokenizer(image_token="<|image_pad|>", video_token="<|video_pad|>")
    processor = getattr(hf, f"{processor_name}Processor")(
        images,
        words,
        getattr(hf, f"{processor_name}VideoProcessor", hf.Qwen2VLVideoProcessor)(),
        chat_template=template(image),
    )
    model = getattr(hf, f"{name}ForConditionalGeneration")(config)
    return Small(model, processor, f"{image} describe")


def qwen2_vl():
    vision = {"depth": 2, "embed_dim": WIDTH, "hidden_size": WIDTH, "num_heads": 4, "mlp_ratio": 1}
    return qwen("Qwen2VL", "Qwen2VL", vision)


def qwen2_5_vl():
    vision = {
        "depth": 2,
        "hidden_size": WIDTH,
        "out_hidden_size": WIDTH,
        "intermediate_size": WIDTH,
        "num_heads": 4,
        "window_size": 16,
        "fullatt_block_indexes": [1],
    }
    return qwen("Qwen2_5_VL", "Qwen2_5_VL", vision)


def qwen3_vl():
    vision = {
        "depth": 2,
        "hidden_size": WIDTH,
        "out_hidden_size": WIDTH,
        "intermediate_size": WIDTH,
        "num_heads": 4,
        "num_position_embeddings": 36,
        "deepstack_visual_indexes": [0],
    }
    return qwen("Qwen3VL", "Qwen3VL", vision)


def idefics(name, processor_name):
    config = getattr(hf, f"{name}Config")(
        text_config={"model_type": "llama", **TEXT},
        vision_config=VISION,
        image_token_id=IMAGE,
        scale_factor=2,
        **IDS,
    )
    images = getattr(hf, f"{processor_name}ImageProcessor")(
        size={"longest_edge": 2 * SIDE}, max_image_size={"longest_edge": SIDE}, **NORMALISED
    )
    words = tokenizer()
    length = (SIDE // PATCH // 2) ** 2
    parts = [hf.SmolVLMVideoProcessor()] if processor_name == "SmolVLM" else []
    processor = getattr(hf, f"{processor_name}Processor")(
        images, words, *parts, image_seq_len=length, chat_template=template()
    )
    return Small(
        getattr(hf, f"{name}ForConditionalGeneration")(config), processor, "<image> describe"
    )


def idefics3():
    return idefics("Idefics3", "Idefics3")


def smolvlm():
    """SmolVLM with Idefics3's processor, which has the same tiles; its own needs num2words."""
    return idefics("SmolVLM", "Idefics3")


def gemma3():
    config = hf.Gemma3Config(
        text_config={"model_type": "gemma3_text", **TEXT, "sliding_window": 16},
        vision_config={"model_type": "siglip_vision_model", **VISION, "vision_use_head": False},
        mm_tokens_per_image=9,
        image_token_id=IMAGE,
        boi_token_index=WORDS.index("<img>"),
        eoi_token_index=WORDS.index("</img>"),
    )
    images = hf.Gemma3ImageProcessor(size={"height": SIDE, "width": SIDE}, **NORMALISED)
    processor = hf.Gemma3Processor(
        images, tokenizer(), image_seq_length=9, chat_template=template("<img>")
    )
    return Small(hf.Gemma3ForConditionalGeneration(config), processor, "<img> describe")


def internvl():
    vision = {**VISION, "image_size": [SIDE, SIDE], "patch_size": [PATCH, PATCH]}
    config = hf.InternVLConfig(
        text_config={"model_type": "qwen2", **TEXT},
        vision_config={**vision, "use_absolute_position_embeddings": True},
        image_token_id=IMAGE,
        image_seq_length=9,
        downsample_ratio=0.5,
    )
    images = hf.GotOcr2ImageProcessor(
        size={"height": SIDE, "width": SIDE}, crop_to_patches=True, max_patches=6, **NORMALISED
    )
    processor = hf.InternVLProcessor(
        images,
        tokenizer(),
        hf.InternVLVideoProcessor(),
        image_seq_length=9,
        chat_template=template(),
    )
    return Small(hf.InternVLForConditionalGeneration(config), processor, "<image> describe")


def git():
    text = {key: value for key, value in TEXT.items() if "key_value" not in key}
    config = hf.GitConfig(**text, vision_config=VISION)
    processor = hf.GitProcessor(square(hf.CLIPImageProcessor, do_center_crop=False), tokenizer())
    return Small(hf.GitForCausalLM(config), processor, None)


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

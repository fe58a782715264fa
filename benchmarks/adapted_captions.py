"""Time of `a2 caption` with models of `transformers`, beside `generate` alone in the same batches.

A BLIP of the size of its base model and a LLaVA of half a billion parameters, with random weights
and fewer tokens of the image, caption images of two sizes. `generate` gets tensors that are ready;
a2 reads the files, runs the processor, and makes words, scores and attention of what comes out.
"""

import logging
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
import transformers as hf
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers

from a2cap.data.files.json_file import write_json
from a2cap.extract.image import read_image
from a2cap.pipeline.captioning.adapted.adapted_images import AdaptedImages
from a2cap.pipeline.captioning.captioned_image import OpenedImage
from a2cap.pipeline.captioning.captioning_config import CaptioningConfig
from a2cap.pipeline.runtime.runtime_config import RuntimeConfig
from benchmarks.measure import Form, alternated, machine, print_machine, print_table

SPECIAL = ("<pad>", "<s>", "</s>", "<unk>", "<image>")
IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SIZES = ((640, 480), (480, 640))
GOALS = {"without attention": 1.1, "with attention": 1.35}


def tokenizer(words: int) -> Any:
    """Return a tokenizer of words that are numbers; each word is a token."""
    names = [*SPECIAL, *(f"w{number}" for number in range(words - len(SPECIAL)))]
    vocabulary = {name: number for number, name in enumerate(names)}
    plain = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    marks = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    further = {"image_token": "<image>"}
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=plain,
        additional_special_tokens=["<image>"],
        extra_special_tokens=further,
        padding_side="left",
        **marks,
    )


def blip(*, quick: bool) -> tuple[Any, Any]:
    """Return a BLIP as large as Salesforce's base model, and its processor."""
    small = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1} if quick else {}
    heads = {"num_attention_heads": 2} if quick else {}
    side, words = (32, 60) if quick else (384, 30_524)
    text = {**small, **heads, "vocab_size": words, "sep_token_id": 2, **IDS, "is_decoder": True}
    if quick:
        text["encoder_hidden_size"] = 32
    config = hf.BlipConfig(text_config=text, vision_config={**small, **heads, "image_size": side})
    images = hf.BlipImageProcessor(size={"height": side, "width": side})
    return hf.BlipForConditionalGeneration(config), hf.BlipProcessor(images, tokenizer(words))


def llava(*, quick: bool) -> tuple[Any, Any]:
    """Return a LLaVA with the language model of Qwen2-0.5B and 64 tokens an image."""
    words = 60 if quick else 151_936
    text = {
        "model_type": "qwen2",
        "hidden_size": 56 if quick else 896,
        "intermediate_size": 64 if quick else 4864,
        "num_hidden_layers": 1 if quick else 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
        "vocab_size": words,
        **IDS,
    }
    vision = {
        "model_type": "clip_vision_model",
        "hidden_size": 32 if quick else 384,
        "intermediate_size": 32 if quick else 1536,
        "num_hidden_layers": 1 if quick else 6,
        "num_attention_heads": 2 if quick else 6,
        "image_size": 128,
        "patch_size": 16,
    }
    config = hf.LlavaConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=SPECIAL.index("<image>"),
        vision_feature_layer=-1,
        tie_word_embeddings=True,
    )
    sides = {"size": {"shortest_edge": 128}, "crop_size": {"height": 128, "width": 128}}
    processor = hf.LlavaProcessor(
        hf.CLIPImageProcessor(**sides),
        tokenizer(words),
        patch_size=16,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template="{% for message in messages %}w1 <image> w2{% endfor %}",
    )
    return hf.LlavaForConditionalGeneration(config), processor


BUILDERS = {"blip": blip, "llava": llava}


def draw(folder: Path, count: int) -> list[Path]:
    """Write images of noise in two sizes."""
    noise, paths = np.random.default_rng(0), []
    for number in range(count):
        width, height = SIZES[number % len(SIZES)]
        pixels = noise.integers(0, 255, (height, width, 3), dtype=np.uint8)
        paths.append(folder / f"{number}.jpg")
        Image.fromarray(pixels).save(paths[-1])
    return paths


def forms(
    captioner: AdaptedImages, batches: Sequence[Sequence[Path]], tokens: int
) -> Mapping[str, Form]:
    """Return the work to time, by its name."""
    adapted: Any = captioner.model

    def opened(path: Path) -> OpenedImage:
        return OpenedImage(read_image(path))

    ready = [
        adapted._inputs([Image.fromarray(read_image(path)[:, :, ::-1]) for path in batch])
        for batch in batches
    ]
    fixed = {"min_new_tokens": tokens, "max_new_tokens": tokens, "do_sample": False}

    def generate() -> None:
        with torch.no_grad():
            for inputs in ready:
                adapted.network.generate(**inputs, **fixed)

    def caption(*, attention: bool) -> None:
        for batch in batches:
            captioner.caption_each([partial(opened, path) for path in batch], attention=attention)

    return {
        "generate": generate,
        "without attention": partial(caption, attention=False),
        "with attention": partial(caption, attention=True),
    }


def measure(build: Any, *, quick: bool, images: int, rounds: int, tokens: int) -> dict[str, Any]:
    """Return the seconds of each form, and their ratios to `generate` of the same round."""
    torch.manual_seed(0)
    model, processor = build(quick=quick)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in (model, processor):
            part.save_pretrained(folder / "model")
        del model
        captioner = AdaptedImages(
            folder / "model",
            decoding=CaptioningConfig(min_length=tokens, max_length=tokens),
            runtime=RuntimeConfig(device="cpu", threads=1),
        )
        paths = draw(folder, images)
        half = -(-images // 2)
        work = forms(captioner, [paths[:half], paths[half:]], tokens)
        rows = [alternated(work) for _ in range(rounds + 1)][1:]  # the first warms up
    medians = {name: np.median([row[name] for row in rows], axis=0).tolist() for name in work}
    ratios = {
        name: np.median([np.divide(row[name], row["generate"]) for row in rows], axis=0).tolist()
        for name in GOALS
    }
    return {
        "class": build.__name__,
        "parameters": parameters,
        "images": images,
        "batch": half,
        "tokens": tokens,
        "rounds": rounds,
        "seconds": {name: both[0] for name, both in medians.items()},
        "cpu_seconds": {name: both[1] for name, both in medians.items()},
        "ratios": {name: both[0] for name, both in ratios.items()},
        "cpu_ratios": {name: both[1] for name, both in ratios.items()},
    }


@click.command()
@click.option("--quick", is_flag=True, help="Use tiny models, only to check that it runs.")
@click.option("--model", type=click.Choice(list(BUILDERS)), multiple=True, default=list(BUILDERS))
@click.option("--images", default=8, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--tokens", default=12, show_default=True, help="Tokens of each caption.")
@click.option("--output", type=click.Path(path_type=Path), help="Write the results as JSON.")
def main(
    quick: bool, model: tuple[str, ...], images: int, rounds: int, tokens: int, output: Path | None
) -> None:
    """Time a2's captioning of both models beside their `generate` alone."""
    print_machine()
    # random models write no end, and are saved for this run alone
    logging.disable(logging.WARNING)
    hf.utils.logging.disable_progress_bar()
    results = []
    for name in model:
        result = measure(BUILDERS[name], quick=quick, images=images, rounds=rounds, tokens=tokens)
        results.append({**result, "machine": machine()})
        rows = [
            [
                name,
                *(f"{result[kind][name]:.2f}" for kind in ("seconds", "cpu_seconds")),
                *(f"{result[kind].get(name, 1):.2f}" for kind in ("ratios", "cpu_ratios")),
            ]
            for name in result["seconds"]
        ]
        title = f"{result['class']} of {result['parameters'] / 1e6:.0f} million parameters"
        print_table(
            f"{title}, {images} images", ["", "seconds", "of CPU", "× generate", "of CPU"], rows
        )
    if output is not None:
        write_json(output, {"goals": GOALS, "results": results})


if __name__ == "__main__":
    main()

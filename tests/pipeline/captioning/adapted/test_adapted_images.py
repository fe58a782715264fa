"""Models of transformers in `a2 caption` and `a2cap.load`: settings, prompts, and bad input."""

import json
import logging
import os
import shutil
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image

transformers = pytest.importorskip("transformers", reason="needs a2cap[transformers]")

import a2cap  # noqa: E402
from a2cap.data.errors import ConfigError, InputError, WeightsError  # noqa: E402
from a2cap.model.adapting.generation import kept_token_log_probs  # noqa: E402
from a2cap.model.alignment_config import AlignmentConfig  # noqa: E402
from a2cap.model.erasure import ErasureMeter  # noqa: E402
from a2cap.pipeline.captioning.adapted.adapted_images import AdaptedImages  # noqa: E402
from a2cap.pipeline.captioning.adapted.adapted_model import AdaptedModel  # noqa: E402
from a2cap.pipeline.captioning.adapted.prompts import as_text, prompt_of  # noqa: E402
from a2cap.pipeline.captioning.caption_images import caption_files  # noqa: E402
from a2cap.pipeline.captioning.captioned_image import OpenedImage  # noqa: E402
from a2cap.pipeline.captioning.captioning_config import CaptioningConfig  # noqa: E402
from a2cap.pipeline.captioning.image_captioner import open_captioner  # noqa: E402
from a2cap.pipeline.captioning.named_images import NamedImage  # noqa: E402
from a2cap.pipeline.runtime.runtime_config import RuntimeConfig  # noqa: E402
from tests.data.messages import message_of  # noqa: E402
from tests.experiments import a2  # noqa: E402
from tests.model.adapting.vision_language import build  # noqa: E402

CPU = RuntimeConfig(device="cpu")
ASKED = "Describe the image in one sentence."


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "llava"
    small = build("llava")
    small.model.save_pretrained(folder)
    small.processor.save_pretrained(folder)
    return folder


@pytest.fixture
def images(tmp_path):
    noise = np.random.default_rng(0)
    for name, size in (("a", (40, 60)), ("b", (90, 30)), ("c", (24, 80))):
        pixels = noise.integers(0, 255, (*size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{name}.png")
    (tmp_path / "broken.png").write_bytes(b"none")
    return tmp_path


command = partial(a2, "caption")


def opened(captioner, **size):
    decoding = CaptioningConfig(**size)
    return open_captioner([captioner], decoding=decoding, runtime=CPU)


@pytest.mark.slow
def test_a_saved_model_captions_a_folder_with_figures(saved, images):
    figures = images / "figures"
    answer = command(images, "--model", saved, "--json", "--max-new-tokens", 4, "--figure", figures)
    assert answer.exit_code == 3 and "skipped" in answer.stderr and "broken.png" in answer.stderr
    lines = [json.loads(line) for line in answer.stdout.splitlines()]
    assert [line["width"] for line in lines] == [60, 30, 80]
    assert {line["settings"] for line in lines} == {f"max_length=4 prompt={ASKED}"}
    assert all(1 <= len(line["caption"].split()) <= 4 for line in lines)
    assert [len(line["boxes"]) for line in lines] == [36, 36, 36]
    assert sorted(path.name for path in figures.iterdir()) == ["a.png", "b.png", "c.png"]


def test_captions_are_those_of_generate_and_another_prompt_is_another_setting(saved, images):
    captioner = a2cap.load(saved, prompt="in the image", max_length=5)
    caption = captioner(images / "a.png")
    small = build("llava")
    text = "USER : <image> in the image ASSISTANT :"
    picture = Image.open(images / "a.png").convert("RGB")
    given = small.processor(images=[[picture]], text=[text], return_tensors="pt")
    words = small.model.generate(**given, max_new_tokens=5, do_sample=False)
    new = words[0, given["input_ids"].shape[1] :]
    assert caption.caption == small.processor.tokenizer.decode(new, skip_special_tokens=True)
    assert caption.attention.original.shape == (len(caption.tokens), 36)
    assert len(caption.attention.layers) == 2
    output = ("--output", images / "x.jsonl", "--max-new-tokens", 4)
    assert command(images / "a.png", "--model", saved, *output).exit_code == 0
    again = command(images / "a.png", "--model", saved, *output, "--prompt", "in the image")
    assert again.exit_code != 0 and "prompt=in the image" in again.stderr


def test_given_captions_are_attended_to_and_erased_as_generated_ones(saved, images):
    captioner = a2cap.load(saved, max_length=5)
    generated = captioner(images / "a.png")
    adapted = opened(saved, max_length=5)
    image = OpenedImage(np.asarray(Image.open(images / "a.png").convert("RGB"))[:, :, ::-1])
    attended = adapted.attend(image, generated.caption)
    np.testing.assert_allclose(attended.attention.original, generated.attention.original, atol=1e-6)
    np.testing.assert_array_equal(attended.regions.boxes, generated.regions.boxes)
    assert attended.beams[0].caption == generated.caption
    meter = ErasureMeter(images=1, sizes=3)
    adapted.model.measure(image.pixels, generated.caption, meter)
    adapted.model.measure(image.pixels, "w1", meter)  # the meter is full
    [attention, random] = meter.results()
    assert (attention.order, random.order) == ("attention", "random")
    assert attention.words == len(generated.caption.split())
    assert attention.all_removed == random.all_removed is not None
    assert attention.comprehensiveness != random.comprehensiveness
    assert message_of(adapted.attend, image, "a zebrafish", error=InputError) == (
        "the tokenizer of LlavaForConditionalGeneration has no tokens for 'a zebrafish'; name a "
        "captioner that has its words"
    )


@pytest.mark.parametrize("fusion", ["none", "gate"])
def test_a_certificate_is_a_word_without_the_token_that_it_attends_to_most(images, fusion):
    small = build("llava")
    parts = {"tokenizer": None, "alignment": AlignmentConfig(fusion=fusion), "prompt": None}
    model = AdaptedModel(small.model, small.processor, **parts)
    pixels = np.asarray(Image.open(images / "a.png").convert("RGB"))[:, :, ::-1]
    caption = "w3 w4 w5"
    certified = model.certify(pixels, caption)
    assert certified.shape == (3, 2 if fusion == "none" else 3)
    inputs, forced = model._forced(pixels, caption)
    for word, step in enumerate(forced.steps):
        kinds = [step.original] if fusion == "none" else [step.original, step.aligned]
        kept = torch.ones(1 + len(kinds), 36, dtype=torch.bool)
        for row, kind in enumerate(kinds, start=1):
            kept[row, kind[0].argmax()] = False
        given = small.model, model.layers, inputs, forced.tokens, kept
        with torch.no_grad():
            probabilities = kept_token_log_probs(*given)[:, word].exp()
        np.testing.assert_allclose(certified[word], probabilities, rtol=1e-4)
    assert np.ptp(certified, axis=1).max() > 0


def test_a_word_of_two_tokens_has_the_product_of_their_probabilities(saved, images, monkeypatch):
    model = opened(saved).model
    pixels = np.asarray(Image.open(images / "a.png").convert("RGB"))[:, :, ::-1]
    inputs, forced = model._forced(pixels, "w3 w4 w5")
    shares = np.array([[1, 0, 0], [0, 0.5, 0.5]], np.float32)
    where = "a2cap.pipeline.captioning.adapted.adapted_model.merge_tokens"
    monkeypatch.setattr(where, lambda tokenizer, tokens: ([], shares))
    monkeypatch.setattr(model, "_forced", lambda pixels, caption: (inputs, forced))
    certified = model.certify(pixels, "w3 w4w5")
    rows = torch.cat([step.original for step in forced.steps])
    kept = torch.ones(2, 36, dtype=torch.bool)
    kept[1, (rows[1] + rows[2]).argmax()] = False
    parts = model.network, model.layers, inputs, forced.tokens, kept
    with torch.no_grad():
        probabilities = kept_token_log_probs(*parts)[:, 1:].sum(dim=1).exp()
    np.testing.assert_allclose(certified[1], probabilities, rtol=1e-4)


def test_a_second_row_is_of_a_model_of_transformers_too(saved, images, tmp_path):
    other = tmp_path / "git"
    small = build("git")
    small.model.save_pretrained(other)
    small.processor.save_pretrained(other)
    options = ("--model", saved, "--max-new-tokens", 3, "--figure", images / "two.png")
    answer = command(
        images / "a.png", *options, "--figure-below", other, "--prompt", "in the image"
    )
    assert answer.exit_code == 0, answer.stderr
    assert (images / "two.png").is_file()
    answer = command(images / "a.png", *options, "--figure-below", "photos")
    assert answer.exit_code != 0 and "the captioner has no word" in answer.stderr


def test_images_of_as_many_tokens_are_captioned_together_and_come_in_their_order(tmp_path):
    folder = tmp_path / "next"
    small = build("llava_next")
    small.model.save_pretrained(folder)
    small.processor.save_pretrained(folder)
    named = []
    for number in range(13):
        path = tmp_path / f"{number}.png"
        Image.new("RGB", [(20, 20), (24, 72)][number % 2], (9 * number, 0, 0)).save(path)
        named.append(NamedImage(path))
    (tmp_path / "5.png").write_bytes(b"none")
    batches, caption_each = [], AdaptedImages.caption_each

    def spied(self, images, **how):
        sizes = []
        for read in images:
            try:
                sizes.append(read().pixels.shape[0])
            except InputError:
                sizes.append(0)
        batches.append(sizes)
        return caption_each(self, images, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AdaptedImages, "caption_each", spied)
        how = {"boxes": None, "runtime": CPU, "decoding": CaptioningConfig(max_length=3)}
        captioned = list(caption_files(named, models=[folder], batch_size=2, **how))
    assert [image for image, _ in captioned] == named
    # the first early, then windows of four batches, those of most tokens first
    assert batches[:2] == [[20], [72, 20]]
    assert batches[2:] == [[72, 72], [72, 20], [20, 20], [20, 0], [72, 20]]
    alone = opened(folder, max_length=3)
    for image, answer in captioned:
        if image.path.name == "5.png":
            assert isinstance(answer, InputError)
            continue
        pixels = np.asarray(Image.open(image.path))[:, :, ::-1]
        [single] = alone.caption_each([lambda pixels=pixels: OpenedImage(pixels)])
        assert single.beams[0].caption == answer.beams[0].caption


def test_beams_are_those_that_are_asked_for(saved, images):
    line = json.loads(command(images / "a.png", "--model", saved, "--beams", 3, "--json").stdout)
    scores = [beam["score"] for beam in line["beams"]]
    assert len(scores) == 3 and line["score"] == scores[0]


def test_settings_boxes_and_ensembles_that_it_cannot_have_are_refused(saved, images):
    assert message_of(opened, saved, consensus=True, error=ConfigError) == (
        "consensus has no effect on a model of transformers; leave it out (batch_size, beam_size, "
        "length_penalty, max_length, method, min_length, no_repeat_ngram, precision, prompt, seed, "
        "temperature, top_k, top_p have)"
    )
    boxes = images / "boxes.json"
    boxes.write_text("{}")
    answer = command(images / "a.png", "--model", saved, "--boxes", boxes)
    assert "was not trained on given boxes; leave --boxes out" in answer.stderr
    both = command(images / "a.png", "--model", saved, "--model", "photos")
    assert both.stderr == (
        f"a2: an ensemble cannot contain a model of transformers: {str(saved)!r}; name it alone\n"
    )
    answer = command(images / "a.png", "--model", "photos", "--prompt", "a")
    assert answer.stderr == ("a2: prompt is 'a', but captioners of a2 read no text; leave it out\n")


def test_a_name_that_is_not_in_the_cache_states_the_command(images, monkeypatch):
    monkeypatch.chdir(images)
    answer = command("a.png", "--model", "org/name")
    assert answer.stderr == (
        "a2: neither a folder nor a model in the cache of transformers: 'org/name', and a2 "
        "downloads none; run hf download org/name, or name a folder\n"
    )


def test_a_model_in_the_cache_is_found_by_its_name(saved, images, monkeypatch):
    monkeypatch.chdir(images)
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, **_: str(saved))
    line = json.loads(
        command("a.png", "--model", "org/name", "--json", "--max-new-tokens", 2).stdout
    )
    assert line["model"] == "org/name"


def test_each_class_has_its_prompt_and_template():
    llava, paligemma, git = build("llava"), build("paligemma"), build("git")
    assert prompt_of(llava.model, None) == ASKED
    text = as_text(llava.model, llava.processor, ASKED)
    assert text == f"USER : <image> {ASKED} ASSISTANT :"
    assert as_text(llava.model, llava.processor, "a <image>") == "a <image>"
    assert as_text(paligemma.model, paligemma.processor, "caption en") == "<image>caption en"
    assert prompt_of(git.model, None) == "" and as_text(git.model, git.processor, "") is None
    assert message_of(prompt_of, git.model, "a", error=ConfigError) == (
        "GitForCausalLM reads no prompt, which is 'a'; leave it out"
    )
    llava.processor.chat_template = None
    assert message_of(as_text, llava.model, llava.processor, ASKED, error=ConfigError) == (
        "no chat template in the processor of LlavaForConditionalGeneration; give a prompt that "
        "contains '<image>', as --prompt or prompt="
    )


def test_without_memory_halves_are_captioned(saved, monkeypatch, caplog):
    captioner = opened(saved, max_length=3)
    generate = type(captioner.model.network).generate

    def limited(self, **given):
        if len(given["input_ids"]) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return generate(self, **given)

    monkeypatch.setattr(type(captioner.model.network), "generate", limited)
    noise = np.random.default_rng(0).integers(0, 255, (4, 40, 60, 3), dtype=np.uint8)
    reads = [lambda pixels=pixels: OpenedImage(pixels) for pixels in noise]
    with caplog.at_level(logging.WARNING):
        together = captioner.caption_each(reads, attention=True)
    assert "out of memory with 4 images together; trying 2" in caplog.text
    alone = [captioner.caption_each([read], attention=True)[0] for read in reads]
    assert [c.beams[0].caption for c in together] == [c.beams[0].caption for c in alone]


def test_without_memory_fewer_subsets_are_erased_together_with_equal_results(
    saved, images, monkeypatch, caplog
):
    pixels = np.asarray(Image.open(images / "a.png").convert("RGB"))[:, :, ::-1]
    model, rows = opened(saved).model, []
    expected, measured = ErasureMeter(images=1, sizes=3), ErasureMeter(images=1, sizes=3)
    model.measure(pixels, "w1 w2", expected)
    generate = type(model.network).generate

    def limited(self, **given):
        rows.append(len(given["input_ids"]))
        if rows[-1] > 5:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return generate(self, **given)

    monkeypatch.setattr(type(model.network), "generate", limited)
    with caplog.at_level(logging.WARNING):
        model.measure(pixels, "w1 w2", measured)
        model.measure(pixels, "w1 w2", ErasureMeter(images=1, sizes=3))
    # once: the second image begins with what was enough for the first
    assert [record.getMessage() for record in caplog.records] == [
        f"out of memory with {size} subsets of an image together; trying {size // 2}"
        for size in (64, 32, 16, 8)
    ]
    for halved, whole in zip(measured.results(), expected.results(), strict=True):
        assert halved.comprehensiveness == pytest.approx(whole.comprehensiveness, abs=1e-5)
    model._rows = 1

    def exhausted(self, **given):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr(type(model.network), "generate", exhausted)
    assert message_of(model.measure, pixels, "w1", measured, error=InputError) == (
        "LlavaForConditionalGeneration cannot caption: CUDA out of memory. Tried to allocate 2 "
        "GiB; use a smaller model"
    )


def test_captions_that_do_not_end_are_cut_with_one_warning(saved, caplog):
    captioner = opened(saved, min_length=3, max_length=3)
    read = [lambda: OpenedImage(np.zeros((9, 9, 3), np.uint8))]
    captioner.caption_each(read * 2)
    captioner.caption_each(read)
    assert [record.getMessage() for record in caplog.records] == [
        "captions that do not end are cut, the first at 3 tokens; raise --max-new-tokens, "
        "evaluate.max_length"
    ]


def test_a_fault_of_generation_is_one_line(saved, monkeypatch):
    captioner = opened(saved)

    def faulty(self, **given):
        raise ValueError("Image features and image tokens\ndo not match")

    monkeypatch.setattr(type(captioner.model.network), "generate", faulty)
    read = [lambda: OpenedImage(np.zeros((9, 9, 3), np.uint8))]
    assert message_of(captioner.caption_each, read, error=InputError) == (
        "LlavaForConditionalGeneration cannot caption: Image features and image tokens do not "
        "match; check its prompt and processor"
    )


def test_a_caption_without_words_has_no_attention(saved, monkeypatch):
    captioner = opened(saved)
    monkeypatch.setattr(
        "a2cap.pipeline.captioning.adapted.adapted_model.merge_tokens",
        lambda tokenizer, tokens: ([], np.zeros((0, len(tokens)), np.float32)),
    )
    read = [lambda: OpenedImage(np.zeros((9, 9, 3), np.uint8))]
    [image] = captioner.caption_each(read, attention=True)
    assert image.beams[0].caption == "" and image.attention is None and not len(image.regions)


def test_a_folder_without_processor_is_refused(saved, tmp_path):
    build("llava").model.save_pretrained(tmp_path)
    message = message_of(opened, tmp_path, error=ConfigError)
    assert message.startswith(f"no processor in {str(tmp_path)!r}: ")
    assert message.endswith("; save it there, by processor.save_pretrained")


def faulty(saved, tmp_path, **fields):
    """Return a copy of a saved model with other fields of its language model."""
    folder = tmp_path / "faulty"
    shutil.copytree(saved, folder)
    config = json.loads((folder / "config.json").read_text())
    config["text_config"] |= fields
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_weights_of_other_shapes_and_missing_shards_are_refused(saved, tmp_path):
    folder = faulty(saved, tmp_path, intermediate_size=40)
    assert message_of(opened, folder, error=WeightsError) == (
        f"cannot load {str(folder)!r}: 'model.language_model.layers.0.mlp.down_proj.weight' is "
        "(32, 32), the configuration expects (32, 40); name an undamaged directory of "
        "save_pretrained"
    )
    small, shards = build("llava"), tmp_path / "shards"
    small.model.save_pretrained(shards, max_shard_size="40KB")
    small.processor.save_pretrained(shards)
    files = sorted(shards.glob("*.safetensors"))
    assert len(files) > 1
    files[0].unlink()
    message = message_of(opened, shards, error=WeightsError)
    assert message.startswith(f"cannot load {str(shards)!r}: ") and files[0].name in message
    assert message.endswith("; name an undamaged directory of save_pretrained")


def test_pickled_weights_are_read_without_running_them(saved, images, tmp_path):
    folder = tmp_path / "pickled"
    shutil.copytree(saved, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    tensors = build("llava").model.state_dict()
    names = sorted(tensors)
    for part, number in ((names[::2], 1), (names[1::2], 2)):
        file = folder / f"pytorch_model-0000{number}-of-00002.bin"
        torch.save({name: tensors[name] for name in part}, file)
    (folder / "generation_config.json").write_text(json.dumps({"max_new_tokens": 3}))
    image = images / "a.png"
    expected = command(image, "--model", saved, "--json", "--max-new-tokens", 3)
    captioned = command(image, "--model", folder, "--json")
    answers = [json.loads(answer.stdout)["beams"][0] for answer in (captioned, expected)]
    assert answers[0]["caption"] == answers[1]["caption"]
    assert answers[0]["score"] == pytest.approx(answers[1]["score"], abs=1e-5)

    class Code:
        def __reduce__(self):
            return (os.system, (f"touch {tmp_path / 'run'}",))

    torch.save({"x": Code()}, file)
    assert message_of(opened, folder, error=WeightsError).startswith(
        f"torch file {file.name!r} is unsafe: it refers to "
    )
    assert not (tmp_path / "run").exists()
    file.unlink()
    assert " missing weights; name an undamaged" in message_of(opened, folder, error=WeightsError)

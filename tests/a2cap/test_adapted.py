"""Captioners of `transformers` behind a2's interface: words, figures, report, saved alignment."""

import re
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

transformers = pytest.importorskip("transformers", reason="needs a2cap[transformers]")

import a2cap  # noqa: E402
from a2cap.data.errors import ConfigError, WeightsError  # noqa: E402
from a2cap.data.regions import is_grid  # noqa: E402
from a2cap.pipeline.captioning.subwords import merge_tokens  # noqa: E402
from tests.data.messages import message_of  # noqa: E402
from tests.model.adapting import vision_language  # noqa: E402
from tests.model.adapting.captioners import BUILDERS, SIDE, WORDS, build, labelled, teacher  # noqa: E402
from tests.quick import some_quick  # noqa: E402
from tests.test_structure import ROOT  # noqa: E402

IMAGE = np.random.default_rng(0).integers(0, 255, (40, 60, 3), dtype=np.uint8)


def tokenizer():
    """Return WordPiece: each third token continues a word."""
    from tokenizers import Tokenizer, decoders, models

    pieces = {f"w{n}" if n % 3 else f"##p{n}": n for n in range(4, WORDS)}
    vocabulary = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3, **pieces}
    plain = Tokenizer(models.WordPiece(vocabulary, unk_token="<unk>"))
    plain.decoder = decoders.WordPiece()
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=plain, **special)


TEXTS = ["a dog, standing by the man's cart.", "two café tables; naïve cats", "日本 with 🍕"]


def trained_tokenizer(kind, size, texts=TEXTS):
    """Return byte-level BPE, as of GPT-2 and BART, or Unigram of SentencePiece, as of T5."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    options = {"vocab_size": size, "special_tokens": [*special.values()], "show_progress": False}
    if kind == "bytes":
        plain = Tokenizer(models.BPE())
        plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        plain.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(**options)
    else:
        plain = Tokenizer(models.Unigram())
        plain.pre_tokenizer, plain.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        trainer = trainers.UnigramTrainer(**options, unk_token="<unk>")
    plain.train_from_iterator(texts, trainer)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=plain, **special)


@pytest.mark.parametrize("size", [70, 300])
@pytest.mark.parametrize("kind", ["bytes", "sentencepiece"])
@pytest.mark.parametrize("text", TEXTS)
def test_words_are_whole_with_the_tokens_of_each(kind, size, text):
    """A smaller vocabulary has more tokens: parts of characters, and single spaces."""
    tokens = trained_tokenizer(kind, size)
    ids = [1, *tokens.backend_tokenizer.encode(text).ids, 2, 0]
    words, shares = merge_tokens(tokens, ids)
    assert words == text.split()
    assert ((shares > 0).sum(axis=0) == [token > 2 for token in ids]).all()
    np.testing.assert_allclose(shares.sum(axis=1), 1, rtol=1e-6)
    for word, row in zip(words, shares, strict=True):
        own = np.flatnonzero(row)
        assert tokens.decode([ids[position] for position in own]).strip() == word
        assert (np.diff(own) == 1).all()


class Forced:
    """Generate these tokens."""

    def __init__(self, tokens):
        self.tokens = tokens

    def __call__(self, input_ids, scores):
        scores[:] = -torch.inf
        scores[:, self.tokens[input_ids.shape[1] - 1]] = 0
        return scores


@pytest.mark.parametrize("kind", ["bytes", "sentencepiece"])
def test_every_word_of_a_caption_has_attention(kind):
    tokens = trained_tokenizer(kind, WORDS, TEXTS[:1])
    ids = [*tokens.backend_tokenizer.encode(TEXTS[0]).ids, 2]
    captioner = a2cap.adapt(build("gpt2"), processor(), tokenizer=tokens)
    caption = captioner(IMAGE, max_new_tokens=len(ids), logits_processor=[Forced(ids)])
    assert [word.text for word in caption.words] == TEXTS[0].split()
    assert all(0 < word.original.sum() <= 1.001 for word in caption.words)
    assert caption.words[-1].original.shape == (16,)


def processor():
    return transformers.ViTImageProcessor(size={"height": SIDE, "width": SIDE})


def adapted(name="gpt2", **options):
    return a2cap.adapt(build(name), processor(), tokenizer=tokenizer(), **options)


def test_words_are_merged_from_subwords():
    words, shares = merge_tokens(tokenizer(), [4, 6, 9, 5, 1, 7])
    assert words == ["w4p6p9", "w5", "w7"]
    third = 1 / 3
    expected = [[third, third, third, 0, 0, 0], [0, 0, 0, 1, 0, 0], [0, 0, 0, 0, 0, 1]]
    np.testing.assert_allclose(shares, expected)
    assert merge_tokens(tokenizer(), [])[0] == []
    assert merge_tokens(tokenizer(), [1, 2])[1].shape == (0, 2)


@pytest.mark.parametrize("alignment", [None, {"fusion": "gate"}])
def test_a_caption_is_that_of_a2s_captioners(alignment):
    captioner = adapted(alignment=alignment)
    captions = list(captioner.many([IMAGE, IMAGE], max_new_tokens=6, num_beams=3))
    assert message_of(list, captioner.many([IMAGE], batch_size=0)) == (
        "batch_size is 0; give 1 or more"
    )
    first, *_ = captions
    attention, count = first.attention, len(first.caption.split())
    assert attention.original.shape == attention.aligned.shape == (count, 16)
    assert [layer.original.shape for layer in attention.layers] == [(2, count, 16)] * 2
    assert (attention.keep is None) == (alignment is None)
    assert is_grid(first.regions)
    assert first.regions.boxes[-1].tolist() == [45, 30, 60, 40]
    assert len(first.figure(layer=2, head=1).axes) == 1 + count * (1 if alignment is None else 2)
    pixels = processor()(images=[Image.fromarray(IMAGE)] * 2, return_tensors="pt")
    alone = captioner.model.generate(**pixels, max_new_tokens=6, num_beams=3)
    texts = tokenizer().batch_decode(alone, skip_special_tokens=True)
    assert [caption.caption for caption in captions] == texts


@pytest.mark.slow
@pytest.mark.parametrize("name", BUILDERS)
def test_a_saved_model_is_loaded_with_its_alignment(name, tmp_path):
    captioner = adapted(name, alignment={"fusion": "decay", "decay_steps": 10.0})
    captioner.losses(**labelled(name), step=7)
    captioner.save_pretrained(tmp_path)
    again = a2cap.adapt(tmp_path)
    assert again.alignment == captioner.alignment
    with torch.no_grad():
        logits = [c.model(**teacher(name)).logits for c in (captioner, again)]
    assert torch.equal(*logits)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # PaliGemma's
@pytest.mark.parametrize("name", some_quick(vision_language.BUILDERS, "llava"))
def test_a_saved_vision_language_model_is_loaded_with_its_alignment(name, tmp_path):
    small = vision_language.build(name)
    fields = {"fusion": "decay", "decay_steps": 10.0, "aligned_layers": [2]}
    prompt = None if name == "paligemma" else small.prompt  # to which the image's token is added
    captioner = a2cap.adapt(small.model, small.processor, alignment=fields, prompt=prompt)
    batch = vision_language.labelled(small, [Image.fromarray(IMAGE)] * 2)
    captioner.freeze()
    captioner.losses(**batch, step=7).total().backward()
    trained = {name for name, w in captioner.model.named_parameters() if w.grad is not None}
    masks = ("bias", "query.weight", "key.weight")
    assert {name.rpartition("mask_network.")[2] for name in trained} == set(masks)
    captioner.save_pretrained(tmp_path)
    again = a2cap.adapt(tmp_path, small.processor, prompt=prompt)
    assert again.alignment == captioner.alignment
    with torch.no_grad():
        logits = [adapted.model(**batch).logits for adapted in (captioner, again)]
    assert torch.equal(*logits)
    captions = [adapted(IMAGE, max_new_tokens=4) for adapted in (captioner, again)]
    assert captions[0].caption == captions[1].caption
    attention, same = (caption.attention for caption in captions)
    assert attention.keep is not None and [layer.keep is None for layer in attention.layers] == [
        True,
        False,
    ]
    np.testing.assert_allclose(attention.aligned, same.aligned, rtol=1e-5)
    assert not np.array_equal(attention.original, attention.aligned)


def test_a_loaded_model_shows_its_kind_alignment_and_decoding(tmp_path):
    adapted(alignment={"fusion": "gate"}).save_pretrained(tmp_path)
    captioner = a2cap.load(tmp_path, device="cpu", beam_size=3)
    kind = type(adapted().model).__name__
    assert repr(captioner) == (
        f"Captioner({str(tmp_path)!r}: model {kind}, fusion gate; decoding best of 3 beams)"
    )
    assert "a model of transformers" in captioner._repr_html_()


@pytest.mark.slow
def test_the_example_of_the_guide_trains_saves_and_captions(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    guide = (ROOT / "docs" / "guide" / "transformers.md").read_text(encoding="utf-8")
    *_, example = re.findall(r"```python\n(.*?)```", guide, re.S)
    names: dict = {}
    exec(example, names)
    history, result = names["history"], names["result"]
    assert history[-1] < 0.2 * history[0]
    assert result.caption == names["captions"][0]
    assert result.attention.aligned.shape == (len(result.tokens), 16)
    captioner = names["captioner"]
    keep = captioner.losses(pixel_values=names["pixels"], labels=names["labels"]).masks.keep
    assert 0.05 < float(keep) < 0.98
    # a2's own report
    files = {}
    for number in range(2):
        files[tmp_path / f"{number}.png"] = [names["captions"][number]]
        Image.fromarray(names["images"][number]).save(tmp_path / f"{number}.png")
    metrics = captioner.report("report", files, max_new_tokens=24)
    assert metrics["Bleu_4"] > 0.9
    page = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    assert names["captions"][1] in page
    assert '"keep":"' in page


def test_a_centre_crop_moves_the_patches():
    cropping = transformers.CLIPImageProcessor(
        size={"shortest_edge": 20}, crop_size={"height": SIDE, "width": SIDE}
    )
    captioner = a2cap.adapt(build("gpt2"), cropping, tokenizer=tokenizer())
    boxes = captioner(IMAGE, max_new_tokens=3).regions.boxes
    assert [*boxes[0, :2], *boxes[-1, 2:]] == pytest.approx([14, 4, 46, 36], abs=0.3)


def test_states_that_are_no_grid_have_no_attention(caplog):
    def states(images, **_):
        return {
            "inputs_embeds": torch.randn(len(images), 21, 16),
            "attention_mask": torch.ones(len(images), 21, dtype=torch.int64),
        }

    captioner = a2cap.adapt(build("bart"), states, tokenizer=tokenizer())
    caption = captioner(IMAGE, max_new_tokens=3)
    assert caption.attention is None and not len(caption.regions)
    assert (
        "no attention to show for images of 60 x 40: the processor of BartForConditionalGeneration "
        "gives no pixel_values of tiles"
    ) in caplog.text


def test_tokens_that_are_no_cells_have_no_attention(caplog):
    """The processor makes other tiles than those that the model's tokens are of."""

    def noise(images, **_):
        return {"pixel_values": torch.randn(len(images), 3, SIDE, SIDE)}

    captioner = a2cap.adapt(build("gpt2"), noise, tokenizer=tokenizer())
    assert captioner(IMAGE, max_new_tokens=3).attention is None
    assert "no attention to show for images of 60 x 40: " in caplog.text


@pytest.mark.slow
def test_misuse_is_one_clear_line(tmp_path):
    model = build("gpt2")
    assert message_of(a2cap.adapt, tmp_path, error=ConfigError) == (
        f"not a saved model: {str(tmp_path)!r}; name a directory of save_pretrained"
    )
    with pytest.raises(ConfigError, match=r"alignment.fusion is 'x'|fusion"):
        a2cap.adapt(model, alignment={"fusion": "x"})
    captioner = a2cap.adapt(model, alignment={"fusion": "gate"})
    assert message_of(captioner, IMAGE, error=ConfigError) == (
        "no processor to caption with; give a2cap.adapt(..., processor=...)"
    )
    assert message_of(a2cap.adapt, model, error=ConfigError) == (
        "the model is adapted already; use its captioner, or give alignment="
    )
    captioner.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    build("gpt2").save_pretrained(tmp_path / "plain")
    (tmp_path / "plain" / "model.safetensors").rename(tmp_path / "model.safetensors")
    assert message_of(a2cap.adapt, tmp_path, error=WeightsError).startswith(
        f"alignment in {str(tmp_path)!r} is not that of the model: "
        "'decoder.transformer.h.0.crossattention.a2."
    )


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("config.json", b"{", "JSON"),
        ("config.json", b'{"model_type": "gpt2"}', "no architecture"),
        ("config.json", b'{"model_type": "gpt2", "architectures": ["os"]}', "os"),
        ("model.safetensors", b"x" * 99, ""),
    ],
)
def test_a_damaged_directory_is_one_line_and_runs_no_code(tmp_path, file, content, reason):
    build("gpt2").save_pretrained(tmp_path)
    (tmp_path / "run.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    (tmp_path / file).write_bytes(content)
    message = message_of(a2cap.adapt, tmp_path, error=WeightsError)
    assert message.startswith(f"cannot load {str(tmp_path)!r}: ") and reason in message
    assert message.endswith("; name an undamaged directory of save_pretrained")
    assert not (tmp_path / "ran").exists() and len(message.splitlines()) == 1


def test_a_directory_that_needs_its_own_code_or_reads_no_images_is_refused(tmp_path):
    (tmp_path / "run.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    (tmp_path / "config.json").write_text('{"auto_map": {"AutoConfig": "run.Config"}}')
    assert message_of(a2cap.adapt, tmp_path, error=ConfigError) == (
        f"{str(tmp_path)!r} needs code of its own, which a2 never runs (trust_remote_code stays "
        "off); name a model whose class is in transformers"
    )
    assert not (tmp_path / "ran").exists()
    text = '{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}'
    (tmp_path / "config.json").write_text(text)
    assert message_of(a2cap.adapt, tmp_path, error=ConfigError) == (
        f"GPT2LMHeadModel in {str(tmp_path)!r} reads no images; name a captioner, such as BLIP, "
        "LLaVA or Qwen-VL"
    )


def test_missing_weights_are_not_drawn_at_random(tmp_path):
    build("gpt2").save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    del tensors["encoder.embeddings.cls_token"]
    save_file(tensors, file, metadata={"format": "pt"})
    assert message_of(a2cap.adapt, tmp_path, error=WeightsError) == (
        f"cannot load {str(tmp_path)!r}: it has no 'encoder.embeddings.cls_token', of 1 missing "
        "weights; name an undamaged directory of save_pretrained"
    )


def test_without_transformers_the_message_names_the_extra(monkeypatch):
    monkeypatch.delitem(sys.modules, "a2cap.adapted", raising=False)
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert message_of(getattr, a2cap, "adapt", error=ConfigError) == (
        'transformers is not installed; run pip install "a2cap[transformers]"'
    )

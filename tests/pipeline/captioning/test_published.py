"""Tests of published captioners: equal to their authors' code, and refused by name."""

import argparse
import importlib
import json
import os
import pickle
import re
import sys
from collections import Counter, defaultdict

import numpy as np
import pytest
import torch

from a2cap.data.captions.vocabulary import SPECIALS
from a2cap.data.errors import WeightsError
from a2cap.extract.weights.torch_files import load_torch_file
from a2cap.model.captioner import decoder_input
from a2cap.model.captioners.kinds import make_captioner
from a2cap.pipeline.captioning.published import convert_captioner
from tests.data.messages import message_of
from tests.experiments import a2
from tests.model.searching import search

WORDS = ["dog", "a", "runs", "red", "on"]


@pytest.fixture
def their_code(monkeypatch):
    """Import a module from the folder that an environment variable names, or skip."""

    def load(variable, module):
        folder = os.environ.get(variable)
        if folder is None:
            pytest.skip(f"{variable} names no folder with the authors' code")
        monkeypatch.syspath_prepend(folder)
        return importlib.import_module(module)

    before = set(sys.modules)
    yield load
    for name in set(sys.modules) - before:
        if name.split(".")[0] in ("models", "utils", "data", "captioning"):
            del sys.modules[name]


def converted(tensors, vocabulary):
    theirs = convert_captioner(tensors, vocabulary)
    captioner = make_captioner(
        theirs.model, feature_width=theirs.region_width, vocabulary_size=len(theirs.vocabulary)
    )
    captioner.load_state_dict({**theirs.tensors, "schedule_step": torch.tensor(0)})
    return captioner.eval(), theirs.vocabulary


def images(width):
    features = torch.randn(3, 7, width).relu()
    return features, torch.zeros(3, 7, 5), torch.ones(3, 7, dtype=torch.bool)


def compare(captioner, memory, captions, theirs):
    """Return the largest difference of log-probabilities; theirs: (B, L, V') by our ids."""
    ours = captioner(memory, decoder_input(captions, bos=1)[:, None])[:, 0]
    return (ours[..., 2:] - theirs[..., 2:]).abs().max().item()


def m2_tensors(*, width=16, region_width=10, tokens=9):
    """Return random tensors by M2's names, with 3 + 1 layers."""
    shapes = {"encoder.fc.weight": (width, region_width), "encoder.fc.bias": (width,)}
    norms = ["encoder.layer_norm"]
    linears = {}
    blocks = {
        **{f"encoder.layers.{n}": ("mhatt",) for n in range(3)},
        "decoder.layers.0": ("self_att", "enc_att"),
    }
    for layer, attentions in blocks.items():
        for name in attentions:
            norms.append(f"{layer}.{name}.layer_norm")
            for part in "qkvo":
                linears[f"{layer}.{name}.attention.fc_{part}"] = (width, width)
        norms.append(f"{layer}.pwff.layer_norm")
        linears[f"{layer}.pwff.fc1"] = (24, width)
        linears[f"{layer}.pwff.fc2"] = (width, 24)
        if layer.startswith("encoder"):
            for name in ("m_k", "m_v"):
                shapes[f"{layer}.mhatt.attention.{name}"] = (1, 5, width)
    for number in (1, 2, 3):
        linears[f"decoder.layers.0.fc_alpha{number}"] = (width, 2 * width)
    for name, shape in {**dict.fromkeys(norms, (width,)), **linears}.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    shapes |= {"decoder.word_emb.weight": (tokens, width), "decoder.fc.weight": (tokens, width)}
    shapes["decoder.pos_emb.weight"] = (55, width)
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


class Vocab:
    """Stand-in for the class of M2's vocabulary."""


def vocabulary_file(folder, words):
    """Write a vocabulary as M2's is pickled, of an instance that is never made."""
    vocab = Vocab()
    vocab.__dict__ |= {"freqs": Counter(words), "itos": words, "stoi": defaultdict(int)}
    content = pickle.dumps(vocab, protocol=3)
    name = f"c{Vocab.__module__}\nVocab\n".encode()
    path = folder / "vocab.pkl"
    content = content.replace(name, b"cdata.vocab\nVocab\n")
    path.write_bytes(content.replace(b"cbuiltins\nint\n", b"cdata.vocab\n_default_unk_index\n"))
    return path


M2_WORDS = ["<unk>", "<pad>", "<bos>", "<eos>", *WORDS]


def test_a_captioner_is_imported_with_its_words_and_rows(tmp_path):
    tensors = m2_tensors()
    captioner, vocabulary = converted(tensors, vocabulary_file(tmp_path, M2_WORDS))
    assert vocabulary.words == (*SPECIALS, *WORDS)
    rows = tensors["decoder.word_emb.weight"][[1, 2, 3, 0, 4, 5, 6, 7, 8]]
    assert torch.equal(captioner.decoder.embedding.weight, rows)
    assert torch.equal(captioner.decoder.positions[:54], tensors["decoder.pos_emb.weight"][1:])
    beams = search(captioner, captioner.encode(*images(10)), beam_size=2, max_length=5)
    assert [len(hypotheses) for hypotheses in beams] == [2, 2, 2]


def transformer_tensors(folder):
    """Return random tensors by the names of ImageCaptioning.pytorch, and their vocabulary."""
    tensors = {"att_embed.0.weight": (16, 10), "att_embed.0.bias": (16,)}
    for layer in ("model.encoder.layers.0", "model.decoder.layers.0"):
        for n in range(4):
            tensors |= {f"{layer}.self_attn.linears.{n}.weight": (16, 16)}
        tensors |= {f"{layer}.feed_forward.w_1.weight": (24, 16)}
    tensors |= {"model.tgt_embed.0.lut.weight": (7, 16), "model.generator.proj.weight": (7, 16)}
    tensors |= {"model.generator.proj.bias": (7,)}
    path = folder / "cocotalk.json"
    words = {str(number): word for number, word in enumerate([*WORDS, "UNK"], start=1)}
    path.write_text(json.dumps({"ix_to_word": words, "opt": {"num_att_heads": 4}}))
    return {name: torch.zeros(shape) for name, shape in tensors.items()}, path


def test_the_number_of_heads_is_stated_and_not_guessed(tmp_path):
    tensors, vocabulary = transformer_tensors(tmp_path)
    assert convert_captioner(tensors, vocabulary).model.heads == 4
    content = json.loads(vocabulary.read_text())
    del content["opt"]
    vocabulary.write_text(json.dumps(content))
    assert message_of(convert_captioner, tensors, vocabulary, error=WeightsError) == (
        "vocabulary 'cocotalk.json' does not state the number of attention heads, "
        "opt.num_att_heads; name infos_*.pkl of the checkpoint"
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["m2", "transformer"])
def test_missing_and_misshapen_tensors_are_refused(tmp_path, kind):
    if kind == "m2":
        tensors, vocabulary = m2_tensors(), vocabulary_file(tmp_path, M2_WORDS)
    else:
        tensors, vocabulary = transformer_tensors(tmp_path)
    convert_captioner(tensors, vocabulary)
    changes = [torch.tensor(1.0), torch.zeros(0), torch.zeros(1), torch.zeros(9, 0), torch.zeros(9)]
    count = 0
    for name in tensors:
        others = {other: tensor for other, tensor in tensors.items() if other != name}
        for changed in (others, *({**tensors, name: tensor} for tensor in changes)):
            try:
                converted(changed, vocabulary)
            except (WeightsError, RuntimeError) as error:  # the latter is of load_state_dict
                count += isinstance(error, WeightsError)
    assert count > 20
    del tensors[next(name for name in tensors if name.startswith(("decoder.fc", "model.gen")))]
    message = "captioner has no tensor 'decoder.output.weight'; name a complete checkpoint"
    assert message_of(convert_captioner, tensors, vocabulary, error=WeightsError) == message


@pytest.mark.parametrize(
    ("change", "words", "message"),
    [
        (
            {"decoder.layers.0.fc_alpha4.bias": torch.zeros(16)},
            M2_WORDS,
            "captioner has an unknown tensor: 'decoder.layers.0.fc_alpha4.bias'; name a checkpoint "
            "of M2, or of the Transformer of ImageCaptioning.pytorch",
        ),
        (
            {},
            M2_WORDS[:-1],
            "vocabulary has 8 tokens, but 'decoder.embedding.weight' has 9 rows; name the "
            "vocabulary of this checkpoint",
        ),
        (
            {},
            WORDS,
            "not the vocabulary of this captioner: 'FILE'; name M2's vocab.pkl with --vocabulary",
        ),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, change, words, message):
    vocabulary = vocabulary_file(tmp_path, words)
    with pytest.raises(WeightsError) as raised:
        convert_captioner({**m2_tensors(), **change}, vocabulary)
    assert str(raised.value).replace(str(vocabulary), "FILE") == message


def test_nothing_in_a_vocabulary_is_run(tmp_path):
    path = vocabulary_file(tmp_path, M2_WORDS)
    path.write_bytes(path.read_bytes().replace(b"cdata.vocab\nVocab\n", b"cos\nsystem\n"))
    with pytest.raises(WeightsError, match=r"it refers to 'os\.system', and nothing of it was run"):
        convert_captioner(m2_tensors(), path)


@pytest.mark.slow
def test_an_imported_captioner_captions_an_image(tmp_path, experiment):
    checkpoint = tmp_path / "m2.pth"
    # as M2's training saves it, RNG states included
    states = {"numpy_rng_state": np.random.get_state(), "best_cider": np.float64(1.3)}
    torch.save({"state_dict": m2_tensors(region_width=128), **states}, checkpoint)
    vocabulary = vocabulary_file(tmp_path, M2_WORDS)
    options = ("--vocabulary", vocabulary, "--output", tmp_path / "m2")
    weights = ("--set", "extract.weights=scenes")
    refused = a2("weights", "import", checkpoint, *options, *weights, code=1)
    [width] = re.findall(
        r"detector gives (\d+) numbers per region, the captioner reads 128", refused.output
    )
    torch.save({"state_dict": m2_tensors(region_width=int(width)), **states}, checkpoint)
    a2("weights", "import", checkpoint, *options, *weights, code=0)
    image = experiment.scenes / "images" / f"{1:012d}.jpg"
    assert a2("caption", image, "--model", tmp_path / "m2", code=0).stdout.startswith(f"{image}: ")


@pytest.mark.slow
def test_m2_has_the_logits_and_beams_of_the_authors_code(their_code, tmp_path, monkeypatch):
    transformer = their_code("A2_M2_CODE", "models.transformer")
    torch.manual_seed(0)
    words = ["<unk>", "<pad>", "<bos>", "<eos>", *WORDS]
    encoder = transformer.MemoryAugmentedEncoder(
        3,
        0,
        d_in=10,
        attention_module=transformer.ScaledDotProductAttentionMemory,
        attention_module_kwargs={"m": 40},
    )
    theirs = transformer.Transformer(2, encoder, transformer.MeshedDecoder(9, 54, 3, 1)).eval()
    for parameter in theirs.parameters():
        parameter.data.add_(0.05 * torch.randn_like(parameter))
    checkpoint, vocabulary = tmp_path / "m2.pth", tmp_path / "vocab.pkl"
    torch.save({"state_dict": theirs.state_dict(), "epoch": 3}, checkpoint)
    vocabulary.write_bytes(pickle.dumps({"itos": words}, protocol=3))
    captioner, words_of_import = converted(load_torch_file(checkpoint), vocabulary)
    assert words_of_import.words == (*SPECIALS, *WORDS)
    ids = [1, 2, 3, 0, 4, 5, 6, 7, 8]  # of theirs by ours

    features, boxes, region_mask = images(10)
    memory = captioner.encode(features, boxes, region_mask)
    captions = torch.tensor([[4, 5, 6, 7, 2], [5, 5, 8, 4, 2], [8, 6, 4, 2, 7]])
    inputs = torch.tensor(ids)[decoder_input(captions, bos=1)]
    log_probs = theirs(features, inputs)
    difference = compare(captioner, memory, captions, log_probs[..., ids])
    assert difference < 1e-4
    # their torch divided integers without a rest, and had masks of bytes
    divide, fill = torch.Tensor.__truediv__, torch.Tensor.masked_fill
    floor = torch.Tensor.__floordiv__
    monkeypatch.setattr(
        torch.Tensor, "__truediv__", lambda a, b: (divide if a.is_floating_point() else floor)(a, b)
    )
    monkeypatch.setattr(
        torch.Tensor, "masked_fill", lambda tensor, mask, value: fill(tensor, mask.bool(), value)
    )
    with torch.no_grad():
        tokens, scores = theirs.beam_search(features, 8, 3, 5, out_size=5)
    beams = search(captioner, memory, beam_size=5, max_length=8, forbidden=())
    for image, rows, totals in zip(beams, tokens.tolist(), scores.sum(-1).tolist(), strict=True):
        for beam, row, total in zip(image, rows, totals, strict=True):
            end = row.index(3) + 1 if 3 in row else len(row)
            assert [ids[token] for token in beam.tokens] == row[:end]
            assert beam.log_prob == pytest.approx(total, abs=1e-3)


@pytest.mark.slow
def test_the_transformer_has_the_logits_and_beams_of_imagecaptioning(their_code, tmp_path):
    model = their_code("A2_IMAGECAPTIONING_CODE", "captioning.models.TransformerModel")
    torch.manual_seed(0)
    vocab = {str(number): word for number, word in enumerate([*WORDS, "UNK"], start=1)}
    options = argparse.Namespace(
        **{"vocab_size": 6, "vocab": vocab, "input_encoding_size": 32, "rnn_size": 48},
        **{"num_layers": 2, "drop_prob_lm": 0.5, "seq_length": 8, "max_length": 8, "use_bn": 1},
        **{"fc_feat_size": 10, "att_feat_size": 10, "att_hid_size": 8, "num_att_heads": 4},
    )
    theirs = model.TransformerModel(options).eval()
    for name, tensor in theirs.state_dict().items():
        if tensor.is_floating_point() and not name.endswith(".pe"):
            tensor.add_(0.1 * torch.rand_like(tensor))
    checkpoint, vocabulary = tmp_path / "model.pth", tmp_path / "infos.pkl"
    torch.save(theirs.state_dict(), checkpoint)
    vocabulary.write_bytes(pickle.dumps({"vocab": vocab, "opt": options}, protocol=2))
    captioner, words_of_import = converted(load_torch_file(checkpoint), vocabulary)
    assert words_of_import.words == (*SPECIALS, *WORDS)
    ids = [0, 0, 0, 6, 1, 2, 3, 4, 5]  # of theirs by ours

    features, boxes, region_mask = images(10)
    memory = captioner.encode(features, boxes, region_mask)
    captions = torch.tensor([[4, 5, 6, 7, 2], [5, 5, 8, 4, 2], [8, 6, 4, 7, 7]])
    inputs = torch.tensor(ids)[decoder_input(captions, bos=1)]
    fc = features.new_zeros(3, 10)
    log_probs = theirs(fc, features, inputs, region_mask.float())
    difference = compare(captioner, memory, captions, log_probs[..., ids])
    assert difference < 1e-4
    sampling = {"beam_size": 5, "sample_method": "beam_search", "sample_n": 1}
    with torch.no_grad():
        theirs(fc, features, region_mask.float(), opt=sampling, mode="sample")
    beams = search(captioner, memory, beam_size=5, max_length=8, forbidden=(0, 1))
    for image, rows in zip(beams, theirs.done_beams, strict=True):
        row = rows[0]["seq"].tolist()
        end = row.index(0) + 1 if 0 in row else len(row)
        assert [ids[token] for token in image[0].tokens] == row[:end]
        assert image[0].log_prob == pytest.approx(rows[0]["p"], abs=1e-3)

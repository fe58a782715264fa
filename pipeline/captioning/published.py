"""Published captioners: their tensors and vocabularies under a2's names.

M2 of github.com/aimagelab/meshed-memory-transformer at 239100b, and the Transformer of
github.com/ruotianluo/ImageCaptioning.pytorch at 4c48a33. No code in a file is run.
"""

import math
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from a2cap.data.captions.vocabulary import SPECIALS, Vocabulary
from a2cap.data.errors import InputError, WeightsError
from a2cap.data.files.atomic import rename_durably
from a2cap.data.files.json_file import read_json
from a2cap.extract.extract_config import ExtractConfig
from a2cap.extract.extractor import load_extractor
from a2cap.extract.weights.pickles import load_arrays
from a2cap.extract.weights.torch_files import load_torch_file
from a2cap.model.alignment_config import AlignmentConfig
from a2cap.model.captioners.m2_config import M2Config
from a2cap.model.captioners.model_config import ModelConfig
from a2cap.model.captioners.transformer.transformer_config import TransformerConfig
from a2cap.model.layers import MAX_POSITIONS, sinusoidal_positions
from a2cap.pipeline.captioning.model_description import (
    EXTRACTOR,
    EXTRACTOR_WEIGHTS,
    ModelDescription,
)
from a2cap.pipeline.captioning.saved_captioner import new_captioner, save_model
from a2cap.pipeline.weights.detectors import weights_file

# Tensors there, and here: N is the number of a layer, * the weight and the bias, - is left out. a2
# stacks the projections of an attention in one matrix: @0, @1 and @2 are its query, key and value.
M2 = """
encoder.fc.*                               encoder.embedding.*
encoder.layer_norm.*                       encoder.norm.*
encoder.layers.N.mhatt.attention.fc_q.*    encoder.layers.N.query_key_value.*@0
encoder.layers.N.mhatt.attention.fc_k.*    encoder.layers.N.query_key_value.*@1
encoder.layers.N.mhatt.attention.fc_v.*    encoder.layers.N.query_key_value.*@2
encoder.layers.N.mhatt.attention.fc_o.*    encoder.layers.N.output.*
encoder.layers.N.mhatt.attention.m_k       encoder.layers.N.memory_keys
encoder.layers.N.mhatt.attention.m_v       encoder.layers.N.memory_values
encoder.layers.N.mhatt.layer_norm.*        encoder.layers.N.attention_norm.*
encoder.layers.N.pwff.fc1.*                encoder.layers.N.feed_forward.inner.*
encoder.layers.N.pwff.fc2.*                encoder.layers.N.feed_forward.outer.*
encoder.layers.N.pwff.layer_norm.*         encoder.layers.N.feed_forward_norm.*
decoder.layers.N.self_att.attention.fc_q.* decoder.layers.N.self_attention.query_key_value.*@0
decoder.layers.N.self_att.attention.fc_k.* decoder.layers.N.self_attention.query_key_value.*@1
decoder.layers.N.self_att.attention.fc_v.* decoder.layers.N.self_attention.query_key_value.*@2
decoder.layers.N.self_att.attention.fc_o.* decoder.layers.N.self_attention.output.*
decoder.layers.N.self_att.layer_norm.*     decoder.layers.N.self_attention_norm.*
decoder.layers.N.enc_att.attention.fc_q.*  decoder.layers.N.query.*
decoder.layers.N.enc_att.attention.fc_k.*  decoder.layers.N.key_value.*@1
decoder.layers.N.enc_att.attention.fc_v.*  decoder.layers.N.key_value.*@2
decoder.layers.N.enc_att.attention.fc_o.*  decoder.layers.N.output.*
decoder.layers.N.enc_att.layer_norm.*      decoder.layers.N.cross_attention_norm.*
decoder.layers.N.fc_alpha1.*               decoder.layers.N.gates.0.*
decoder.layers.N.fc_alpha2.*               decoder.layers.N.gates.1.*
decoder.layers.N.fc_alpha3.*               decoder.layers.N.gates.2.*
decoder.layers.N.pwff.fc1.*                decoder.layers.N.feed_forward.inner.*
decoder.layers.N.pwff.fc2.*                decoder.layers.N.feed_forward.outer.*
decoder.layers.N.pwff.layer_norm.*         decoder.layers.N.feed_forward_norm.*
decoder.word_emb.weight                    decoder.embedding.weight
decoder.fc.weight                          decoder.output.weight
decoder.pos_emb.weight                     decoder.positions
"""

TRANSFORMER = """
att_embed.0.*                                encoder.embedding.feature.*
model.encoder.layers.N.self_attn.linears.0.* encoder.layers.N.attention.query_key_value.*@0
model.encoder.layers.N.self_attn.linears.1.* encoder.layers.N.attention.query_key_value.*@1
model.encoder.layers.N.self_attn.linears.2.* encoder.layers.N.attention.query_key_value.*@2
model.encoder.layers.N.self_attn.linears.3.* encoder.layers.N.attention.output.*
model.encoder.layers.N.feed_forward.w_1.*    encoder.layers.N.feed_forward.inner.*
model.encoder.layers.N.feed_forward.w_2.*    encoder.layers.N.feed_forward.outer.*
model.encoder.layers.N.sublayer.0.norm.a_2   encoder.layers.N.attention_norm.weight
model.encoder.layers.N.sublayer.0.norm.b_2   encoder.layers.N.attention_norm.bias
model.encoder.layers.N.sublayer.1.norm.a_2   encoder.layers.N.feed_forward_norm.weight
model.encoder.layers.N.sublayer.1.norm.b_2   encoder.layers.N.feed_forward_norm.bias
model.decoder.layers.N.self_attn.linears.0.* decoder.layers.N.self_attention.query_key_value.*@0
model.decoder.layers.N.self_attn.linears.1.* decoder.layers.N.self_attention.query_key_value.*@1
model.decoder.layers.N.self_attn.linears.2.* decoder.layers.N.self_attention.query_key_value.*@2
model.decoder.layers.N.self_attn.linears.3.* decoder.layers.N.self_attention.output.*
model.decoder.layers.N.src_attn.linears.0.*  decoder.layers.N.cross_attention.query.*
model.decoder.layers.N.src_attn.linears.1.*  decoder.layers.N.cross_attention.key_value.*@0
model.decoder.layers.N.src_attn.linears.2.*  decoder.layers.N.cross_attention.key_value.*@1
model.decoder.layers.N.src_attn.linears.3.*  decoder.layers.N.cross_attention.output.*
model.decoder.layers.N.feed_forward.w_1.*    decoder.layers.N.feed_forward.inner.*
model.decoder.layers.N.feed_forward.w_2.*    decoder.layers.N.feed_forward.outer.*
model.decoder.layers.N.sublayer.0.norm.a_2   decoder.layers.N.self_attention_norm.weight
model.decoder.layers.N.sublayer.0.norm.b_2   decoder.layers.N.self_attention_norm.bias
model.decoder.layers.N.sublayer.1.norm.a_2   decoder.layers.N.cross_attention_norm.weight
model.decoder.layers.N.sublayer.1.norm.b_2   decoder.layers.N.cross_attention_norm.bias
model.decoder.layers.N.sublayer.2.norm.a_2   decoder.layers.N.feed_forward_norm.weight
model.decoder.layers.N.sublayer.2.norm.b_2   decoder.layers.N.feed_forward_norm.bias
model.encoder.norm.a_2                       encoder.norm.weight
model.encoder.norm.b_2                       encoder.norm.bias
model.decoder.norm.a_2                       decoder.norm.weight
model.decoder.norm.b_2                       decoder.norm.bias
model.tgt_embed.0.lut.weight                 decoder.embedding.words.weight
model.tgt_embed.1.pe                         -
model.generator.proj.*                       decoder.output.*
"""
_LAYER = re.compile(r"(?<=\.layers)\.\d+\.")


@dataclass(frozen=True)
class PublishedCaptioner:
    """A captioner of another project as one of a2."""

    model: ModelConfig
    region_width: int
    vocabulary: Vocabulary
    tensors: dict[str, Tensor]


def import_captioner(file: Path, vocabulary: Path, config: ExtractConfig, directory: Path) -> None:
    """Write a published captioner into a new directory, with the extractor of its regions.

    Raises A2Error for what does not fit, by name.
    """
    if directory.exists():
        raise InputError(f"output {str(directory)!r} exists; name a path that does not exist")
    captioner = convert_captioner(load_torch_file(file), vocabulary)
    weights = weights_file(config)
    extractor = load_extractor(weights, config=config, strict=True)
    partial = directory.with_name(f".{directory.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    extractor.save(partial / EXTRACTOR_WEIGHTS)
    record = extractor.record(partial / EXTRACTOR_WEIGHTS)
    if record.feature_width != captioner.region_width:
        raise InputError(
            f"detector gives {record.feature_width} numbers per region, the captioner reads "
            f"{captioner.region_width}; name the detector of its training with extract.weights"
        )
    record.write(partial / EXTRACTOR)
    description = ModelDescription(
        model=captioner.model,
        region_width=captioner.region_width,
        vocabulary_size=len(captioner.vocabulary),
        vocabulary_digest=captioner.vocabulary.digest,
        max_regions=None,
    )
    tensors = {**captioner.tensors, "schedule_step": torch.zeros((), dtype=torch.int64)}
    try:
        new_captioner(description).load_state_dict(tensors)
    except (RuntimeError, ValueError) as error:
        problem = " ".join(str(error).splitlines()[-1].split())
        raise WeightsError(
            f"captioner {file.name!r} does not fit: {problem}; name a complete checkpoint"
        ) from error
    save_model(partial, tensors=tensors, description=description, vocabulary=captioner.vocabulary)
    rename_durably(partial, directory)


def convert_captioner(tensors: Mapping[str, Tensor], vocabulary: Path) -> PublishedCaptioner:
    """Convert a state dict; raise WeightsError naming the tensor or the file that does not fit."""
    convert = _m2 if "decoder.word_emb.weight" in tensors else _transformer
    try:
        return convert(tensors, vocabulary)
    except KeyError as error:
        raise WeightsError(
            f"captioner has no tensor {error.args[0]!r}; name a complete checkpoint"
        ) from error
    # tensors of other shapes: of too few dimensions, without rows, of widths that do not divide
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise WeightsError(
            f"tensors of the captioner do not fit together: {reason:.200}; "
            "name a complete checkpoint"
        ) from error


def _m2(tensors: Mapping[str, Tensor], vocabulary: Path) -> PublishedCaptioner:
    content = load_arrays(vocabulary)
    words = content.get("itos") if isinstance(content, dict) else None
    if not isinstance(words, list) or not set(SPECIALS) <= set(map(str, words)):
        raise _vocabulary_error(vocabulary, "M2's vocab.pkl")
    order = [*SPECIALS, *(word for word in words if word not in SPECIALS)]
    # without the states of their decoding
    kept = {name: t for name, t in tensors.items() if not re.search(r"\.running_\w+$", name)}
    renamed = _renamed(kept, M2)
    ids = {word: number for number, word in enumerate(words)}
    rows = [ids[word] for word in order]
    for name in ("decoder.embedding.weight", "decoder.output.weight"):
        renamed[name] = _rows(renamed, name, rows, size=len(words))
    memory = renamed["encoder.layers.0.memory_keys"]
    # row 0 belongs to padding; positions beyond the table use sinusoids, as the authors intended
    table = renamed["decoder.positions"]
    sinusoids = sinusoidal_positions(MAX_POSITIONS + 1, table.shape[1])
    renamed["decoder.positions"] = torch.cat((table[1:], sinusoids[len(table) :]))
    model = M2Config(
        width=renamed["encoder.embedding.weight"].shape[0],
        feed_forward=renamed["encoder.layers.0.feed_forward.inner.weight"].shape[0],
        encoder_layers=_layers(renamed, "encoder"),
        decoder_layers=_layers(renamed, "decoder"),
        memory_slots=memory.shape[-2],
        positions="table",
        alignment=AlignmentConfig(fusion="none"),
    )
    for name in [name for name in renamed if ".memory_" in name]:
        renamed[name] = renamed[name].squeeze(0)
    region_width = renamed["encoder.embedding.weight"].shape[1]
    return PublishedCaptioner(model, region_width, Vocabulary(tuple(order), "m2"), renamed)


def _transformer(tensors: Mapping[str, Tensor], vocabulary: Path) -> PublishedCaptioner:
    content = read_json(vocabulary) if vocabulary.suffix == ".json" else load_arrays(vocabulary)
    fields = content if isinstance(content, dict) else {}
    words = fields.get("ix_to_word", fields.get("vocab"))
    if not isinstance(words, dict) or {str(number + 1) for number in range(len(words))} != {*words}:
        raise _vocabulary_error(vocabulary, "infos_*.pkl")
    # 0 is the first input, the end and the padding; a row of None is never read or generated
    ids = {str(word): int(number) for number, word in words.items()}
    rows: list[int | None] = [None, 0, 0, ids.pop("UNK", None)]
    rows += sorted(ids.values())
    order = [*SPECIALS, *sorted(ids, key=ids.__getitem__)]
    renamed = _renamed(_without_batch_norm(tensors), TRANSFORMER)
    size = len(words) + 1
    for name in ("decoder.embedding.words.weight", "decoder.output.weight"):
        renamed[name] = _rows(renamed, name, rows, size=size)
    renamed["decoder.output.bias"] = _rows(renamed, "decoder.output.bias", rows, size=size)
    renamed["decoder.output.bias"][[0, 1]] = -1e4
    renamed["decoder.output.weight"][1] = 0
    width = renamed["encoder.embedding.feature.weight"].shape[0]
    for name in [name for name in renamed if name.endswith("norm.weight")]:
        # their deviation is that of a sample: divided by n - 1
        renamed[name] = renamed[name] * math.sqrt((width - 1) / width)
    options = fields.get("opt")
    if not isinstance(options, dict):
        raise WeightsError(
            f"vocabulary {vocabulary.name!r} does not state the number of attention heads, "
            "opt.num_att_heads; name infos_*.pkl of the checkpoint"
        )
    heads = options.get("num_att_heads", 8)  # theirs without the option
    model = TransformerConfig(
        width=width,
        heads=heads,
        feed_forward=renamed["encoder.layers.0.feed_forward.inner.weight"].shape[0],
        encoder_layers=_layers(renamed, "encoder"),
        decoder_layers=_layers(renamed, "decoder"),
        norm="pre",
        alignment=AlignmentConfig(fusion="none"),
    )
    region_width = renamed["encoder.embedding.feature.weight"].shape[1]
    return PublishedCaptioner(model, region_width, Vocabulary(tuple(order), "neuraltalk2"), renamed)


def _without_batch_norm(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Fold a batch norm of the features into the layer after it (`use_bn: 1`)."""
    folded = dict(tensors)
    if "att_embed.0.running_mean" not in folded:
        return folded
    folded.pop("att_embed.0.num_batches_tracked", None)
    shift, scale = folded.pop("att_embed.0.bias"), folded.pop("att_embed.0.weight")
    scale = scale / (folded.pop("att_embed.0.running_var") + 1e-5).sqrt()
    shift = shift - scale * folded.pop("att_embed.0.running_mean")
    weight = folded.pop("att_embed.1.weight")
    folded["att_embed.0.bias"] = folded.pop("att_embed.1.bias") + weight @ shift
    folded["att_embed.0.weight"] = weight * scale
    return folded


def _renamed(tensors: Mapping[str, Tensor], names: str) -> dict[str, Tensor]:
    """Rename and stack tensors; one without a name is an error, so that none is lost in silence."""
    # A line of the table stands for all layers, and for weight and bias: the number of the layer
    # and the last part of a name are cut out to look it up, and put back into the new name. Parts
    # of one new name are collected first, because a2 stacks them.
    here = dict(line.split() for line in names.strip().splitlines())
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        general = _LAYER.sub(".N.", name, count=1)
        module, _, last = general.rpartition(".")
        replacement = here.get(general) or here.get(f"{module}.*")
        if replacement is None:
            raise WeightsError(
                f"captioner has an unknown tensor: {name!r}; name a checkpoint of M2, or of the "
                "Transformer of ImageCaptioning.pytorch"
            )
        if replacement != "-":
            layer = "".join(_LAYER.findall(name)[:1])
            new, _, part = replacement.partition("@")
            new = new.replace(".N.", layer).replace("*", last)
            parts.setdefault(new, {})[part] = tensor
    return {
        name: torch.cat([pieces[part] for part in sorted(pieces)]) for name, pieces in parts.items()
    }


def _rows(
    tensors: Mapping[str, Tensor], name: str, rows: Sequence[int | None], *, size: int
) -> Tensor:
    """Return the row of each of a2's token ids, 0 for None."""
    if len(tensors[name]) != size:
        raise WeightsError(
            f"vocabulary has {size:,} tokens, but {name!r} has {len(tensors[name]):,} rows; name "
            "the vocabulary of this checkpoint"
        )
    selected = torch.stack([tensors[name][row or 0] for row in rows])
    selected[[number for number, row in enumerate(rows) if row is None]] = 0
    return selected


def _layers(tensors: Mapping[str, Tensor], side: str) -> int:
    return len({name.split(".")[2] for name in tensors if name.startswith(f"{side}.layers.")})


def _vocabulary_error(path: Path, expected: str) -> WeightsError:
    return WeightsError(
        f"not the vocabulary of this captioner: {str(path)!r}; name {expected} with --vocabulary"
    )

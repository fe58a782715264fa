"""Configuration sections `data` and `preprocess`."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from a2cap.data.identities import Identities, Key, Numbers
from a2cap.data.image_ids import IdRule
from a2cap.data.tokenizers import Tokenizer


class Section(BaseModel):
    """Base of what is read from a file or the configuration: frozen, without unknown fields."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False
    )


class FieldNames(Section):
    """Names of the fields of annotations, where they are not among those that are known."""

    image: str | None = None
    """Field with the file name or the id of the image."""

    caption: str | None = None
    """Field with the caption, or a list of them."""

    split: str | None = None
    """Field with the split."""

    turn: Annotated[int, Field(gt=0)] = 1
    """In conversations, the answer of the assistant that is the caption."""


USUAL_NAMES = FieldNames()


class DataConfig(Section):
    """Paths of images and annotations; relative ones start at the working directory."""

    images: Path | None = None
    """Image folder, searched recursively."""

    ids: Literal["number", "path", "annotation"] | None = None
    """What a bare number names, where the annotations give images other ids than the numbers of
    their files, and a number fits both: number, a file; annotation, an id of the annotations; by
    default it is an error. path: the id of every image is its path in `images`, for folders that
    repeat numbers; without files of boxes or scenes, which name images by number."""

    annotations: Path | None = None
    """Captions in a form of docs/guide/data.md: a file, possibly gzipped, a folder, or tars,
    Parquet or Arrow files, as in shards/{000..127}.tar."""

    fields: FieldNames = USUAL_NAMES
    """Fields of the image, the caption and the split in annotations with other names."""

    features: Path | None = None
    """Region features in place of extraction: a feature store, the folder of a finished shard plan,
    which is read where it is, or what `a2 convert` reads: a file, a folder or a pattern of several.
    Images are then optional."""

    sizes: Path | None = None
    """Image folder or COCO file with the sizes of the images, for features without them."""

    split_list: Path | None = None
    """Split of each image, for captions that do not name it, as COCO's: a file, or the folder of
    Flickr_8k.trainImages.txt and its like."""

    split: str | None = None
    """Random split in place of a list: random(0.8/0.1/0.1, 1), the shares of train, val and test,
    and the seed."""

    instances: Path | None = None
    """COCO instances, to extract features from annotated boxes instead of detected ones."""

    word_groups: Path | None = None
    """Groups of words that are scored separately: {"colours": ["red", …], …}."""

    scenes: Path | None = None
    """instances.json of generated scenes: their objects judge the truth of each caption."""

    @property
    def id_rule(self) -> IdRule:
        """How the file of an image gives its id."""
        return "path" if self.ids == "path" else "number"

    @property
    def numbers(self) -> Numbers | None:
        """What a bare number names, if it may be a file and an id of the annotations."""
        return None if self.ids == "path" else self.ids

    def identities(self, pairs: Iterable[tuple[str, Key | None]]) -> Identities:
        """Link ids of files with those of the annotations, None for an image without one."""
        return Identities(pairs, numbers=self.numbers, rule=self.id_rule)

    @model_validator(mode="after")
    def _no_other_ids(self) -> Self:
        fields = [name for name in ("instances", "scenes") if getattr(self, name)]
        if self.ids == "path" and fields:
            raise ValueError(
                f"ids is 'path', but data.{fields[0]} names images by number; leave one of them out"
            )
        return self


class PreprocessConfig(Section):
    """Encoding of captions as token ids."""

    vocabulary: Literal["karpathy", "m2", "neuraltalk2", "aoanet", "updown", "arctic"] = "karpathy"
    """Published rule for tokens and counts. `karpathy`, `updown` and `arctic` count training
    captions alone."""

    tokenizer: Tokenizer = "karpathy"
    """Words of captions. karpathy: the tokens in the file, else the rule of Karpathy's file, or the
    rule of m2, updown and arctic; metrics compare PTB tokens, as in papers. ptb: PTB tokens for
    both. unicode: words of any script for both; METEOR and SPICE, which read English, are left
    out."""

    min_count: Annotated[int, Field(gt=0)] | None = None
    """Minimum occurrences of a word; the preset's by default, lower it for a small data set."""

    references: Annotated[int, Field(gt=0)] | None = None
    """Most captions of an image, the first ones by id: 5 is the rule of COCO's evaluations, where
    some images have more. null keeps all."""

    clean: Literal["html"] | None = None
    """html: remove tags and replace entities, <b> and &amp;. null keeps captions as they are."""

    max_words: Annotated[int, Field(gt=0)] | None = None
    """Leave out captions of more words, such as descriptions of a paragraph. null keeps all."""

    max_length: Annotated[int, Field(gt=0, le=500)] = 20
    """Maximum caption length in tokens without <eos>; 99.4 % of COCO's captions fit. A captioner
    has 512 positions."""

    eos_after_cut: bool = True
    """End a caption that is longer with <eos>, as published code does. false leaves it open: the
    captioner then does not learn to stop in mid-sentence."""

    @model_validator(mode="after")
    def _one_rule(self) -> Self:
        if self.tokenizer != "karpathy" and self.vocabulary in ("m2", "updown", "arctic"):
            raise ValueError(
                f"tokenizer is {self.tokenizer!r}, but vocabulary {self.vocabulary!r} has a rule "
                "for words; choose preprocess.vocabulary karpathy, neuraltalk2 or aoanet"
            )
        return self

"""Records of annotations, and the names of the fields that have their images, captions and splits.

What carries the records (JSON, tables, tars, folders) is in `layouts`; here a record becomes an
image with captions that are not checked yet.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any, TypeGuard

from a2cap.data.annotations.image_rows import ImageRow
from a2cap.data.annotations.json_items import BadItem, keys_of, text_member
from a2cap.data.captions.unicode_words import unicode_words
from a2cap.data.data_config import FieldNames
from a2cap.data.errors import InputError
from a2cap.data.files.json_file import require_whole
from a2cap.data.identities import Key
from a2cap.data.image_ids import IMAGE_SUFFIXES

IMAGE_FIELDS = (
    *("image", "file_name", "filename", "file", "image_path", "img", "img_path", "image_file"),
    *("image_name", "path", "images", "image_id", "url"),
)
REFERENCE_FIELDS = ("references", "refs", "reference")
"""Fields of a file that has references and captions to score side by side."""
PREDICTION_FIELDS = ("prediction", "predicted", "candidate", "hypothesis")
_CHATS = ("conversations", "messages")
CAPTION_FIELDS = (
    *("captions", "caption", "caption_str", "text", "sentences_raw", "sentences", "sentence"),
    *("raw", "comment", "tokens", *_CHATS, *REFERENCE_FIELDS),
)
SPLIT_FIELDS = ("split", "set", "set_name")
_OWN_ID_FIELDS = ("image_id", "cocoid")
is_numbered = re.compile(r"(?:caption|sentence|text|comment|reference|ref)_?[0-9]+").fullmatch
"""Match the name of a field such as caption_0, one of several with a caption each."""
_ANSWERS = ("gpt", "assistant", "model", "bot")
_LONGEST_NAME = 1000
_PLAIN_FILE = re.compile(r"\w{1,200}\.(?:jpg|png)")
_IMAGE_TOKEN = re.compile(r"</?(?:image|img|ImageHere)>")

NAME_CAPTION = "name it as data.fields.caption, of a2 score as --caption-column"
NAME_REFERENCES = "give their file as --references, or name their field as --reference-column"
ListedItem = tuple[str, Any]
"""An item of a file, such as a record, after its position, such as 'images[3]'."""


@dataclass(frozen=True)
class Fields:
    """Names of the fields of records, of which the first that a record has counts.

    turn: of the answers in a conversation, the one that is the caption. is_scored: as scores read
    them, records without an image are in the order of another file, and captions may be empty.
    has_all: every field of `captions` has captions, not only the first.
    """

    image: Sequence[str] = IMAGE_FIELDS
    captions: Sequence[str] = CAPTION_FIELDS
    split: Sequence[str] = SPLIT_FIELDS
    turn: int = 1
    is_scored: bool = False
    has_all: bool = False


def fields_of(names: FieldNames) -> Fields:
    """Return the fields with those that a configuration names."""
    named = {"image": names.image, "captions": names.caption, "split": names.split}
    fields: dict[str, Any] = {field: [name] for field, name in named.items() if name}
    return replace(Fields(turn=names.turn), **fields)


@dataclass(frozen=True)
class Reading:
    """How the content of a form is read.

    skip: called with the position of a bad item, and why; place: of the content in a folder.
    """

    fields: Fields
    skip: Callable[[str, str], None]
    place: str = ""

    @contextmanager
    def skipping(self, position: str) -> Iterator[str]:
        """Give the position of an item, and skip the item if it is bad."""
        try:
            yield position
        except (BadItem, InputError) as error:
            self.reject(position, str(error))

    def reject(self, position: str, reason: str) -> None:
        """Skip the item at a position of the content."""
        self.skip(f"{self.place}{position}", reason)


def raw_image(position: str, values: object, fields: Fields, file: str | None = None) -> ImageRow:
    """Return the image of a record; BadItem if the record names none, or has no captions.

    file: of the image, if not the record names it.
    """
    if not isinstance(values, Mapping):
        raise BadItem("not a JSON object")
    require_whole(values)
    name, key = _file(values, fields) if file is None else (file, file)
    own_id = first_value(values, _OWN_ID_FIELDS)
    if isinstance(own_id, bool) or not isinstance(own_id, int | str):
        own_id = None
    names = [[name] for name in fields.captions] if fields.has_all else [fields.captions]
    captions = [c for each in names for c in captions_of(values, each, fields.turn)]
    return ImageRow(position, name, first_value(values, fields.split), captions, own_id, key)


def captions_of(
    values: Mapping[str, object], names: Sequence[str], turn: int = 1
) -> Sequence[object]:
    """Return the captions in the first of these fields that a record has, or in numbered ones."""
    field = next((name for name in names if values.get(name) is not None), None)
    if field is None:
        numbered = [name for name in values if is_numbered(name)]
        if not numbered:
            if {*names} <= {*REFERENCE_FIELDS}:
                raise BadItem(_no_field("references", NAME_REFERENCES, values))
            raise BadItem(_no_field("caption", NAME_CAPTION, values))
        return [values[name] for name in numbered if values[name] not in (None, "")]
    require_whole(value := values[field])
    if field in _CHATS:
        return [_answer(value, field, turn)]
    if field == "tokens":
        lists = value if _are(value, list) else [value]
        return [{"tokens": words} for words in lists]
    if isinstance(value, str) and isinstance(values.get("tokens"), list):
        return [{"raw": value, "tokens": values["tokens"]}]
    if isinstance(value, str | Mapping):
        return [value]
    if not isinstance(value, list):
        raise BadItem(f"{field!r} is neither a text nor a list of texts: {value!r:.40}")
    # a caption in tokens would be captions of one word; a Chinese one has no space, but words
    is_short = len(value) > 1 and _are(value, str) and max(map(len, value)) < 40
    if is_short and all(len(unicode_words(text)) <= 1 for text in value):
        raise BadItem(
            f"{field!r} is a list of single words: {value!r:.40}; name it 'tokens' if it is a "
            "caption in tokens"
        )
    return value


def has_captions(values: Mapping[str, object], names: Sequence[str]) -> bool:
    """Return True for a record with one of these fields, or with a numbered one."""
    return first_value(values, names) is not None or any(map(is_numbered, values))


def first_value(values: Mapping[str, object], names: Sequence[str]) -> object:
    """Return the value of the first of these fields that a record has, else None."""
    return next((values[name] for name in names if values.get(name) is not None), None)


def file_of(value: object, field: str) -> str:
    """Return the file that a value names: a path, a URL without its protocol, or an id."""
    is_number = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if is_number and not re.search("file|path|name|url", field):
        return f"{value:012d}.jpg"
    if not isinstance(value, str):
        raise BadItem(f"{field!r} is not the name of an image: {value!r:.40}")
    if _PLAIN_FILE.fullmatch(value):
        return value  # without the cost of a path
    if value.startswith("data:") or len(value) > _LONGEST_NAME:
        raise BadItem(f"{field!r} is an image as text: {value[:30]!r}…; write the image as a file")
    # of Windows, and "./a.jpg" is "a.jpg"
    path = PurePosixPath((value.partition("://")[2] or value).strip().replace("\\", "/"))
    # an id may have dots: "photo.v2" is photo.v2.jpg
    return str(path) if path.suffix.lower() in ("", *IMAGE_SUFFIXES) else f"{path}.jpg"


def _file(values: Mapping[str, Any], fields: Fields) -> tuple[str, Key]:
    """Return the file of a record's image, and the image as the record names it."""
    field = next((name for name in fields.image if values.get(name) not in (None, "")), None)
    if field is None:
        if not fields.is_scored:
            raise BadItem(_no_field("image", "name it as data.fields.image", values))
        return "", ""
    key = values[field]
    if isinstance(key, list) and len(key) == 1:  # "images" of chats
        key = key[0]
    key = key.strip() if isinstance(key, str) else key
    file = file_of(key, field)
    if field != "filename":
        return file, key
    if values.get("filepath"):
        folder = text_member(values, "filepath")
        file = folder if folder.endswith(f"/{file}") else f"{folder}/{file}"
    return file, file


def _no_field(what: str, remedy: str, values: Mapping[str, object]) -> str:
    return f"no field of the {what} among {keys_of(values) or 'no fields'}; {remedy}"


def _answer(messages: object, field: str, turn: int) -> str:
    """Return the text of the assistant's answer number `turn`."""
    if not _are(messages, dict):
        raise BadItem(f"{field!r} is not a list of messages")
    answers = [
        first_value(message, ("value", "content"))
        for message in messages
        if first_value(message, ("from", "role")) in _ANSWERS
    ]
    if len(answers) < turn:
        raise BadItem(f"{field!r} has {len(answers)} answers of the assistant, not {turn}")
    text = answers[turn - 1]
    if _are(text, dict):  # parts: an image, a text
        text = " ".join(str(part["text"]) for part in text if "text" in part)
    if not isinstance(text, str):
        raise BadItem(f"the answer in {field!r} is {type(text).__name__}, not a string")
    return _IMAGE_TOKEN.sub("", text).strip()


def _are(values: object, kind: type) -> TypeGuard[list[Any]]:
    return isinstance(values, list) and bool(values) and all(isinstance(v, kind) for v in values)

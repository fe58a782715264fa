"""Language of what people read: help texts, error messages, docstrings, README and docs.

The terms are the field's (image, object, token, KV cache, ranks), the sentences plain English.
"""

import ast
import re

import click
import pytest

from a2cap.pipeline.cli.main import cli
from tests.test_docs_pages import PAGES
from tests.test_structure import SOURCE, named, tree

BANNED = {
    r"pictures?": "image",
    r"things?": "object",
    r"somebody('s)?": "external, user-supplied",
    r"comes? along": "bundled",
    r"anew": "again, from scratch",
    r"mend(ed|s)?": "fix, repair",
    r"begun": "partial",
    r"passed over": "skipped",
    r"surest|strongest": "top-scoring",
    r"stands? twice": "duplicate",
    r"(stands?|lies|lie) (in|at|beside|below|above|for|on)": "is",
    r"(is|are) no (?!longer)": "is not a",
    r"(said|says|told|tells|knows)": "states, reports, contains",
    r"peers?": "third-party",
    r"surroundings": "environment",
    r"word stores?": "KV cache",
    r"look(s|ed)? (at|out)": "attend, read, search",
    r"train together": "ranks",
    r"noise (is|of) (the )?(drop|random)": "RNG state",
}
"""Regular expression -> what to write in its place."""

ANY_BANNED = re.compile(rf"\b({'|'.join(BANNED)})\b", re.IGNORECASE)

NO_OPENERS = {
    *{"a", "an", "the", "all", "any", "both", "each", "every", "one", "same", "some", "those"},
    *{"of", "as", "at", "by", "for", "from", "in", "on", "over", "to", "with", "within", "without"},
    *{"how", "what", "when", "where", "whether", "which", "who", "why", "so", "if", "no", "not"},
    *{"it", "its", "this", "that", "there", "nothing", "everything", "only"},
}
"""Words with which no sentence in the imperative begins."""


def banned_words(text):
    """Return what of the text is banned, each with its replacement."""
    if ANY_BANNED.search(text) is None:
        return []
    return [
        f"{match[0]!r} in {text[max(0, match.start() - 30) : match.end() + 30]!r}: write {instead}"
        for pattern, instead in BANNED.items()
        for match in re.finditer(rf"\b({pattern})\b", text, re.IGNORECASE)
    ]


def is_imperative(text):
    """Return whether the first word can be a verb in the imperative.

    Words in -s are verbs in the third person or plurals; shapes and names in code are no verbs.
    """
    word = re.match(r"[A-Za-z-]+(?=[ ,.:;\n]|$)", text.strip())
    if word is None or word[0].lower() in NO_OPENERS or not word[0][0].isupper():
        return False
    if word[0] in {"Bring", "Embed", "Feed", "Seed"}:
        return True
    return not re.search(r"([^s]s|ing|ed|(?<!p)ly)$", word[0])


def commands(command=cli, name="a2"):
    """Yield the name and the command of everything below `a2`."""
    yield name, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for below in sorted(command.list_commands(context)):
            yield from commands(command.get_command(context, below), f"{name} {below}")


def messages(path):
    """Yield the texts that a module raises or logs, values left out."""
    for node in ast.walk(tree(path)):
        match node:
            case ast.Raise(exc=ast.Call() as call):
                pass
            case ast.Call(func=ast.Attribute(value=ast.Name(id="logger" | "click"))) as call:
                pass
            case _:
                continue
        for argument in (*call.args, *(keyword.value for keyword in call.keywords)):
            yield from texts(argument)


def texts(node):
    """Yield the literal text of a string, a formatted string or a sum of both."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(
            str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values
        )
    elif isinstance(node, ast.BinOp | ast.IfExp):
        for part in ast.iter_child_nodes(node):
            yield from texts(part)


def functions(path):
    """Yield the functions of a module, properties left out: those are nouns."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef):
            names = {getattr(d, "id", getattr(d, "attr", "")) for d in node.decorator_list}
            if not names & {"property", "cached_property"}:
                yield node


def prose(markdown):
    """Return the text of a page without code, links' targets and captions quoted as examples."""
    text = re.sub(r"```.*?```", "", markdown, flags=re.DOTALL)
    text = re.sub(r"`[^`]*`", "", text)
    return re.sub(r"\]\([^)]*\)", "]", text)


def test_a_banned_word_is_found_and_its_replacement_named():
    assert banned_words("no Picture; try again") == [
        "'Picture' in 'no Picture; try again': write image"
    ]
    assert banned_words("'x' is no file; check it")
    assert banned_words("the file is no longer there; run it again") == []
    assert banned_words("a pictured object") == []


@pytest.mark.parametrize("text", ["Return x.", "Load the file.", "Pass it on.", "Re-raise it."])
def test_an_imperative_is_accepted(text):
    assert is_imperative(text)


@pytest.mark.parametrize(
    "text", ["Returns x.", "Whether x.", "The x.", "(B, R) of x.", "`x` of y.", "x.", "Lines of x."]
)
def test_another_opening_is_found(text):
    assert not is_imperative(text)


def test_help_is_plain_english():
    for name, command in commands():
        texts = [command.help or "", *(getattr(p, "help", "") or "" for p in command.params)]
        assert [banned for text in texts for banned in banned_words(text)] == [], name
        assert is_imperative(command.help or ""), name


def test_messages_are_plain_english():
    words = {named(path): banned_words("\n".join(messages(path))) for path in SOURCE}
    assert {name: banned for name, banned in words.items() if banned} == {}


def test_docstrings_of_functions_begin_with_a_verb():
    nouns = [
        (f"{named(path)}:{node.lineno}", text[:60])
        for path in SOURCE
        for node in functions(path)
        if (text := ast.get_docstring(node)) and not is_imperative(text)
    ]
    assert nouns == []


def test_pages_are_plain_english():
    words = {named(page): banned_words(prose(page.read_text(encoding="utf-8"))) for page in PAGES}
    assert {name: banned for name, banned in words.items() if banned} == {}

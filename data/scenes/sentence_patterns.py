"""Words and sentence patterns of scene captions.

In a pattern, {a}, {b}, {c} are noun phrases; {a.counted} is "three balls"; {b.count} and {b.colour}
are single words; {is|are} agrees with {a}, {b:is|are} with {b}. A word with * refers to all objects
of the sentence, a word with ^ to those of {b}.
"""

from a2cap.data.scenes.objects import COLOURS, PLURALS, TEXTURES

# the index is the number; no phrase refers to no object
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven")

SIZE_WORDS = {
    "small": ("small", "little", "tiny"),
    "medium": ("medium",),
    "large": ("large", "big", "huge"),
}
TEXTURE_WORDS = {
    "plain": ("plain",),
    "striped": ("striped", "stripy"),
    "dotted": ("dotted", "spotted"),
}

ONE = (
    "there {is|are} {a}",
    "{a} {is|are} in the picture",
    "a picture of {a}",
    "the picture shows {a}",
    "we can see {a}",
    "an image with {a}",
    "here {is|are} {a}",
    "this drawing has {a}",
    "{a} {appears|appear} in this scene",
    "someone drew {a}",
    "you may look at {a}",
    "{a} can be seen here",
    "the scene contains {a}",
    "an illustration that depicts {a}",
)
TWO = (
    "{a} and {b}",
    "there {is|are} {a} and {b}",
    "{a} together with {b}",
    "a picture of {a} and {b}",
    "the picture shows {a} and {b}",
    "we can see {a} as well as {b}",
    "{a} along with {b}",
    "this drawing has {a} and also {b}",
    "besides {a} the image includes {b}",
    "{a} {shares|share} the scene with {b}",
    "someone drew {a} plus {b}",
    "not only {a} but also {b}",
)
THREE = (
    "{a} with {b} and {c}",
    "there {is|are} {a} and {b} and {c}",
    "apart from {a} we find {b} and {c}",
    "a scene of {a} plus {b} and {c}",
    "{a} {joins|join} {b} and {c}",
)
_LEFT = (
    "{a} {is|are} to the *left of {b}",
    "{a} *left of {b}",
    "{a} {is|are} on the *left side of {b}",
    "to the *left of {b} there {is|are} {a}",
    "{a} {stands|stand} *left of {b}",
)
RELATIONS = {
    "left": _LEFT,
    "right": tuple(pattern.replace("left", "right") for pattern in _LEFT),
    "above": (
        "{a} {is|are} *above {b}",
        "{a} *above {b}",
        "{a} {is|are} *higher than {b}",
        "*above {b} there {is|are} {a}",
        "{a} {is|are} *over {b}",
    ),
    "below": (
        "{a} {is|are} *below {b}",
        "{a} *under {b}",
        "{a} {is|are} *lower than {b}",
        "*below {b} there {is|are} {a}",
        "{a} {is|are} *beneath {b}",
        "{a} {is|are} *underneath {b}",
    ),
}
INSIDE = (
    "{a} {is|are} *inside {b}",
    "{a} *inside {b}",
    "{a} {is|are} *within {b}",
    "*inside {b} there {is|are} {a}",
    "{b} {is|are} *around {a}",
    "{b} with {a} *inside",
    "{a} {lies|lie} *inside {b}",
)
BETWEEN = (
    "{a} {is|are} *between {b} and {c}",
    "{a} *between {b} and {c}",
    "*between {b} and {c} there {is|are} {a}",
    "{b} and {c} with {a} *between them",
)
BETWEEN_ALIKE = (
    "{a} {is|are} *between {b}",
    "{a} *between {b}",
    "*between {b} there {is|are} {a}",
    "{b} with {a} *between them",
)
# superlatives refer to one object: their verb needs no agreement
LARGEST = (
    "the *largest of all is {a}",
    "{a} is the *largest of all",
    "{a} is *biggest",
    "the *biggest is {a}",
)
SMALLEST = (
    "the *smallest of all is {a}",
    "{a} is the *smallest of all",
    "{a} is *smallest",
)
LARGEST_OF = (
    "the ^largest of the {a.counted} is {b.colour}",
    "the ^biggest of the {a.counted} is {b.colour}",
)
SMALLEST_OF = ("the ^smallest of the {a.counted} is {b.colour}",)
LARGER = (
    "{a} {is|are} *larger than {b}",
    "{a} {is|are} *bigger than {b}",
    "{a} *bigger than {b}",
)
SMALLER = (
    "{a} {is|are} *smaller than {b}",
    "{a} *smaller than {b}",
)
PARTS = (
    "{b.count} of the {a.counted} {b:is|are} {b.colour}",
    "of the {a.counted} {b.count} {b:is|are} {b.colour}",
    "among the {a.counted} {b.count} {b:is|are} {b.colour}",
)


def _flat(words: dict[str, tuple[str, ...]]) -> list[str]:
    return [form for forms in words.values() for form in forms]


WORD_GROUPS = {
    # "fish" is its own plural
    "kinds": list(dict.fromkeys(form for pair in PLURALS.items() for form in pair)),
    "colours": list(COLOURS),
    "sizes": _flat(SIZE_WORDS),
    "textures": [word for texture in TEXTURES for word in TEXTURE_WORDS[texture]],
    "counts": [*NUMBERS[1:], "single", "pair"],
    "relations": [
        *("left", "right", "above", "over", "higher", "below", "under", "lower", "beneath"),
        *("underneath", "inside", "within", "around", "between", "largest", "biggest", "smallest"),
        *("larger", "bigger", "smaller"),
    ],
}
"""All words that refer to objects, each in one group; the names are keys of words.json."""

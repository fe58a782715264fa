"""Compare tokens and METEOR with the jars of pycocoevalcap, count by count.

Tokens: all 616,767 captions of COCO 2014 (from the wheel of pycocoevalcap), further captions from a
CSV files, and random odd strings. METEOR: all 23 counts and the score of the references of COCO and
of those files against each other, of result files of COCO, of odd strings, and of random words.
"""

import os
import random
import re
import subprocess
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import click

from a2cap.pipeline.evaluation.results import read_results
from a2cap.pipeline.metrics.meteor.meteor import _best_rows, meteor_statistics, meteor_values
from a2cap.pipeline.metrics.pycocoevalcap import METEOR, TOKENIZER, coco_captions, metric_file
from a2cap.pipeline.metrics.tokenization import LINE_BREAKS, ptb_tokens, tokenize
from a2cap.pipeline.runtime.java import find_java
from benchmarks.measure import print_machine, print_table
from benchmarks.photos_data import read_rows

_PUNCTUATION = frozenset(("''", "'", "``", "`", *".?!,:-;", "--", "..."))
_PIECES = tuple(
    re.findall(
        "[^ ]+",
        "U.S. u.s. Mr. etc. e.g. a.m. P.M. No. Inc. vs. www.foo.com http://a.b/c?d=e&f foo@bar.com "
        "1/2 3.5 1,000 $5 €9 £3.50 5% 50's '90s can't Cannot gonna 'tis rock'n'roll o'clock dogs' "
        "\"hi\" ''x'' `z' “c” ‘s’ «g» ... … -- — – (a) [b] {c} <d> </e> &amp; &lt; AT&T m&m's :) "
        "<3 😀 é naïve 日本語 Привет ß İst ΣΊΣ ½ 1½ ⅓ so\xadft \u200b \xa0 \u3000 x-ray "
        "5'10\" (555) 123-4567 12:30pm A.B. Ph.D. D'Angelo y'all 'em ain't lemme 7⁄8 "
        "\x91q\x92 \x80 \x96 ® ° ² № ;-) and/or w/ 24/7",
    )
)


def all_captions() -> dict[int, list[str]]:
    """Return the captions of COCO 2014 by image."""
    return coco_captions("train") | coco_captions("val")


def read_groups(path: Path) -> list[list[str]]:
    """Return the captions of a CSV file, `image,caption`, by image."""
    return [[caption.raw for caption in row.captions] for row in read_rows(path)]


def odd_strings(count: int) -> list[str]:
    """Return sequences of odd words, of characters of many scripts, and of any characters."""
    generator = random.Random(0)
    scripts = [chr(code) for code in (*range(32, 127), *range(160, 592), *range(0x2000, 0x2100))]

    def text() -> str:
        kind = generator.random()
        if kind < 0.6:
            pieces = generator.choices(_PIECES, k=generator.randint(1, 9))
            return "".join(piece + generator.choice(["", " ", "  "]) for piece in pieces)
        if kind < 0.95:
            return "".join(generator.choices(scripts, k=generator.randint(1, 30)))
        return "".join(chr(generator.randrange(1, 0xD800)) for _ in range(generator.randint(1, 12)))

    return [text() for _ in range(count)]


def cpu_seconds() -> float:
    """Return the CPU time of this process and of its children that ended."""
    return sum(os.times()[:4])


def ask_java(arguments: Sequence[str | Path], lines: Sequence[str]) -> tuple[list[str], float]:
    """Return the lines that a JVM prints for these lines, and its CPU seconds."""
    encoding = ("-Dfile.encoding=UTF-8", "-Duser.language=en", "-Duser.country=US")
    start = cpu_seconds()
    answer = subprocess.run(
        [str(find_java()), "-Xmx3G", "-XX:+UseSerialGC", *encoding, *map(str, arguments)],
        input="".join(LINE_BREAKS.sub(" ", line) + "\n" for line in lines).encode(),
        capture_output=True,
        check=True,
    )
    return answer.stdout.decode().split("\n")[:-1], cpu_seconds() - start


def compare_tokens(name: str, captions: list[str]) -> list[str]:
    """Return a row of the table: captions, differences, and speeds."""
    start = cpu_seconds()
    tokens = tokenize({"": captions})[""]
    first = cpu_seconds() - start
    start = cpu_seconds()
    tokenize({"": captions})
    again = cpu_seconds() - start
    program = "edu.stanford.nlp.process.PTBTokenizer"
    arguments = ["-cp", str(metric_file(TOKENIZER)), program, "-preserveLines", "-lowerCase"]
    lines, by_java = ask_java(arguments, captions)
    expected = [
        " ".join(token for token in line.rstrip().split(" ") if token not in _PUNCTUATION)
        for line in lines
    ]
    differences = sum(ours != theirs for ours, theirs in zip(tokens, expected, strict=True))
    speeds = [f"{len(captions) / seconds:,.0f}" for seconds in (first, again, by_java)]
    return [name, f"{len(captions):,}", f"{differences:,}", *speeds]


Pairs = tuple[list[str], list[list[str]]]


def reference_pairs(references: Sequence[Sequence[str]]) -> Pairs:
    """Return the first tokenized caption of each image with each of the others."""
    groups = [[ptb_tokens(caption) for caption in group] for group in references]
    pairs = [(group[0], [other]) for group in groups for other in group[1:]]
    return [candidate for candidate, _ in pairs], [references for _, references in pairs]


def result_pairs(path: Path) -> Pairs:
    """Return the captions of a results file, each with one of its references."""
    references = all_captions()
    pairs = [
        (ptb_tokens(caption), [ptb_tokens(reference)])
        for image_id, caption in read_results(path).items()
        for reference in references.get(int(image_id), ())
    ]
    return [candidate for candidate, _ in pairs], [answers for _, answers in pairs]


def random_pairs(count: int) -> Pairs:
    """Return random words, many of them repeated."""
    generator = random.Random(0)
    words = sorted(
        {word for group in list(all_captions().values())[:9000] for word in group[0].split()}
    )
    texts = []
    for _ in range(count):
        few = generator.sample(words, 8)
        texts.append([" ".join(generator.choices(few, k=generator.randint(0, 40))) for _ in "12"])
    return reference_pairs(texts)


def compare_meteor(name: str, pairs: Pairs) -> list[str]:
    """Return a row of the table: pairs, differing pairs, the largest difference, CPU seconds."""
    candidates, references = pairs
    start = cpu_seconds()
    rows = list(_best_rows(candidates, references))
    seconds = cpu_seconds() - start
    questions = [
        " ||| ".join(["SCORE", *group, candidate.replace("  ", " ")])
        for candidate, group in zip(candidates, references, strict=True)
    ]
    jar: list[str | Path] = ["-jar", metric_file(METEOR), "-", "-", "-stdio", "-l", "en", "-norm"]
    lines, by_java = ask_java(jar, questions)
    # a line of one caption is answered by its score and by that of the set
    scores, _ = ask_java(jar, [f"EVAL ||| {line}" for line in lines])
    expected = [[float(number) for number in line.split()] for line in lines]
    differences = sum(row != answer for row, answer in zip(rows, expected, strict=True))
    values = meteor_values(meteor_statistics(candidates, references))
    largest = max(abs(a - float(b)) for a, b in zip(values, scores[::2], strict=True))
    figures = [f"{len(rows):,}", f"{differences:,}", f"{largest:.1e}"]
    return [name, *figures, f"{seconds:.1f}", f"{by_java:.1f}"]


@click.command()
@click.option("--captions", type=Path, multiple=True, help="CSV file, `image,caption`.")
@click.option("--results", type=Path, multiple=True, help="Results file of COCO.")
@click.option("--images", default=48_000, help="Images of COCO whose references are compared.")
@click.option("--odd", default=20_000, help="Odd strings, and texts of random words.")
def main(captions: tuple[Path, ...], results: tuple[Path, ...], images: int, odd: int) -> None:
    """Count differences to the jars, and print speeds beside theirs."""
    print_machine()
    coco = list(all_captions().values())
    files = {path.parent.name: read_groups(path) for path in captions}
    strings = odd_strings(odd)
    texts = {"COCO 2014": coco} | files | {"odd strings": [strings]}
    rows = [compare_tokens(name, list(chain(*groups))) for name, groups in texts.items()]
    head = ["", "captions", "differences", "captions/s", "known words", "jar"]
    print_table("tokens, speeds in CPU time", head, rows)
    pairs = {"COCO references": reference_pairs(random.Random(0).sample(coco, images))}
    pairs |= {f"{name} references": reference_pairs(groups) for name, groups in files.items()}
    pairs["odd strings"] = reference_pairs(list(zip(strings[::2], strings[1::2], strict=True)))
    pairs["random words"] = random_pairs(odd // 2)
    pairs |= {path.name.partition(".")[0]: result_pairs(path) for path in results}
    rows = [compare_meteor(name, pairs_of_set) for name, pairs_of_set in pairs.items()]
    head = ["", "pairs", "differences", "largest", "CPU s", "jar, CPU s"]
    print_table("METEOR", head, rows)


if __name__ == "__main__":
    main()

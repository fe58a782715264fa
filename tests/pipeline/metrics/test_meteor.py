"""METEOR equals pycocoevalcap with a reduced paraphrase table."""

import shutil
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from a2cap.pipeline.metrics import meteor, paraphrases, tokenization
from a2cap.pipeline.metrics.java import JavaError
from a2cap.pipeline.metrics.meteor import meteor_statistics, meteor_values
from a2cap.pipeline.metrics.score import score
from a2cap.pipeline.metrics.tokenization import pycocoevalcap_folder, tokenize
from tests.data.messages import message_of
from tests.pipeline.metrics.captions import CANDIDATES, NAMES, REFERENCES


def link(source: str, target: str) -> None:
    Path(target).symlink_to(source)


def test_a_caption_without_a_match_scores_zero():
    rows = np.zeros((2, 23))
    rows[0, :4] = 4, 5, 2, 2
    assert meteor_values(rows).tolist() == [0, 0]


def test_a_caption_equal_to_its_reference_scores_one():
    row = [6, 6, 2, 2, 4, 4, 2, 2, *[0] * 12, 1, 6, 6]
    [addable] = meteor._addable(np.array([row], dtype=float))
    assert meteor_values(addable) == pytest.approx(1)


def test_meteor_reports_a_caption_that_it_cannot_score_and_gets_no_line_breaks(monkeypatch, caplog):
    caplog.set_level("INFO")

    class Refusing:
        def ask(self, lines):
            assert lines == ["SCORE ||| c d ||| a b"]
            return ["Error: no reference"]

    monkeypatch.setattr(meteor, "paraphrases_for", lambda *_: b"")
    monkeypatch.setattr(meteor, "java_process", lambda *_, **__: nullcontext(Refusing()))
    assert message_of(
        meteor_statistics, ["7"], ["a\nb|||"], [["c\rd"]], advance=print, error=JavaError
    ) == ("METEOR cannot score image '7': 'Error: no reference'; check its caption and references")
    assert caplog.messages == ["METEOR: 1 JVM with a heap of at most 1G"]


@pytest.mark.slow
def test_meteor_equals_that_of_pycocoevalcap_also_with_two_jvms(java_on_path, monkeypatch, capfd):
    from pycocoevalcap.meteor.meteor import Meteor

    monkeypatch.setattr(meteor, "_FEWEST_PER_JVM", 2)
    progress: list[int] = []
    rows = meteor_statistics(NAMES, CANDIDATES, REFERENCES, advance=progress.append)
    assert rows.shape == (5, 23)
    assert sorted(progress) == [2, 3]
    assert capfd.readouterr() == ("", "")
    reference = Meteor()
    overall, values = reference.compute_score(
        dict(zip(NAMES, REFERENCES, strict=True)),
        {name: [caption] for name, caption in zip(NAMES, CANDIDATES, strict=True)},
    )
    for stream in (reference.meteor_p.stdout, reference.meteor_p.stderr):
        stream.close()
    assert meteor_values(rows) == pytest.approx(np.array(values), abs=1e-12)
    assert meteor_values(rows.sum(axis=0)) == pytest.approx(overall, abs=1e-12)


@pytest.mark.slow
def test_omitted_paraphrases_change_no_count():
    """The captions differ from their references in paraphrases only."""
    table = pycocoevalcap_folder() / "meteor" / "data" / "paraphrase-en.gz"
    pairs = list(
        paraphrases.usable_pairs(table, paraphrases.runs_of([*CANDIDATES, *REFERENCES[0]]))
    )
    phrases = [pair.decode().splitlines()[1:] for pair in pairs]
    candidates = [f"we see {one} here" for one, _ in phrases]
    references = [[f"{other} is what we see"] for _, other in phrases]
    names = [str(index) for index in range(len(phrases))]
    found = meteor_statistics(names, candidates, references, advance=repr)
    assert found[:, 16:20].sum() > 10  # matched as paraphrases
    questions = list(map(meteor._question, candidates, references))
    expected = meteor._answers(names, questions, table, repr)
    assert found.tolist() == expected


@pytest.mark.slow
def test_nothing_is_written_to_the_folder_of_the_jars_which_may_have_a_space(monkeypatch, tmp_path):
    installed = pycocoevalcap_folder()
    folder = tmp_path / "site packages" / "pycocoevalcap"
    for name in ("meteor", "tokenizer"):
        shutil.copytree(installed / name, folder / name, copy_function=link)
    for module in (tokenization, meteor, paraphrases):
        monkeypatch.setattr(module, "pycocoevalcap_folder", lambda: folder)
    before = sorted(folder.rglob("*"))
    scores = score(tokenize({"1": ["A dog."]}), tokenize({"1": ["A dog runs."]}))
    assert scores.metrics["METEOR"] > 0.2
    assert sorted(folder.rglob("*")) == before

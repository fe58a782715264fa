"""Comparison of two runs: differences, their intervals, and runs that cannot be compared."""

import json

import numpy as np
import pytest
from PIL import Image

from a2cap.data.errors import InputError
from a2cap.data.files.sealed_folder import seal
from a2cap.data.scenes.objects import SceneObject
from a2cap.data.scenes.truth import judge_captions
from a2cap.pipeline.evaluation.comparison import compare_runs, compare_scores
from a2cap.pipeline.evaluation.metrics_file import read_baseline, write_scores
from a2cap.pipeline.metrics.all_metrics import Scores, score
from a2cap.pipeline.metrics.bleu import bleu_values
from a2cap.pipeline.metrics.word_groups import score_word_groups
from a2cap.pipeline.report.report import ScoreReport
from tests.data.messages import message_of, written
from tests.experiments import a2

GENERATOR = np.random.default_rng(3)
IMAGES = [f"{number:012d}" for number in range(200)]


def scores(cider, bleu=None):
    """Return scores with these CIDEr values, and with BLEU if counts are given."""
    metrics = {"CIDEr": float(np.mean(cider))}
    statistics = {}
    if bleu is not None:
        values = bleu_values(bleu.sum(axis=0))
        metrics |= {f"Bleu_{n}": float(values[n - 1]) for n in (1, 2, 3, 4)}
        statistics = {"BLEU": dict(zip(IMAGES, bleu.tolist(), strict=True))}
    per_image = {
        image_id: dict.fromkeys(metrics, 0.5) | {"CIDEr": float(value)}
        for image_id, value in zip(IMAGES, cider, strict=False)
    }
    return Scores(metrics, per_image, {}, statistics=statistics)


@pytest.fixture
def run(tmp_path):
    """Write the scores of a run and return its folder."""

    def write(name, scored, *, caption="a dog", **options):
        folder = tmp_path / name
        folder.mkdir()
        captions = dict.fromkeys(scored.per_image, caption)
        references = {image_id: ["a dog"] for image_id in captions}
        write_scores(folder, ScoreReport(name, captions, references, scored, **options))
        return folder

    return write


def test_a_small_difference_between_noisy_scores_is_uncertain(run):
    cider = GENERATOR.random(200)
    first, second = run("a", scores(cider)), run("b", scores(GENERATOR.permutation(cider) + 0.001))
    [row] = compare_runs(first, second).metrics
    assert row.low < 0 < row.high
    assert 0.1 < row.better < 0.9


def test_bleu_is_compared_by_its_sums_and_a_run_equals_itself(run):
    counts = GENERATOR.integers(1, 12, (200, 10)).astype(float)
    more = counts.copy()
    more[:, 6:] += 0.2
    first, second = (run(n, scores(np.ones(200), c)) for n, c in (("a", counts), ("b", more)))
    rows = compare_runs(first, second).metrics
    assert [row.metric for row in rows] == ["Bleu_1", "Bleu_2", "Bleu_3", "Bleu_4", "CIDEr"]
    for row in rows[:4]:
        assert row.low < row.difference < row.high
        assert row.better == 1
    for row in compare_runs(first, first).metrics:
        assert (row.difference, row.low, row.high, row.better) == (0, 0, 0, 0)


def test_groups_of_words_are_compared_by_their_counts_per_image(run, tmp_path):
    groups = {"kinds": {"ball", "cup"}, "colours": {"red", "blue"}, "counts": {"two"}}
    references = {image_id: ["a red ball"] for image_id in IMAGES}
    folders = []
    for name, wrong in (("a", 4), ("b", 8)):
        captions = {
            image_id: "a red ball" if int(image_id) % wrong else "a blue ball"
            for image_id in IMAGES
        }
        group_scores = score_word_groups(captions, references, groups)
        folders.append(run(name, scores(np.ones(200)), word_groups=group_scores))
    compared = {row.metric: row for row in compare_runs(*folders).metrics}
    assert list(compared) == ["CIDEr", "colours F1", "kinds F1"]  # "two" never occurs
    row = compared["colours F1"]
    assert (row.first, row.second) == (0.75, 0.875)
    assert 0 < row.low < row.difference == 0.125 < row.high
    assert compared["kinds F1"].difference == 0
    answer = a2("compare", *folders)
    *titles, header, lines = answer.stdout.split("\n", 3)
    assert titles == ["A a", "B b"]
    assert header.split()[:2] == ["A", "B"]
    assert lines.split()[:3] == ["CIDEr", "1.0000", "1.0000"]


@pytest.mark.usefixtures("without_meteor")
def test_fewer_absent_objects_are_better(run):
    ball = SceneObject("ball", "red", "small", "plain", (10, 10, 30, 30))
    folders = []
    for name, wrong in (("a", 4), ("b", 8)):
        captions = {i: "a red ball" if int(i) % wrong else "a red cup" for i in IMAGES}
        judged = judge_captions(captions, {i: [ball] for i in IMAGES})
        scored = score(captions, {i: ["a red ball"] for i in IMAGES}, judged=judged)
        folders.append(run(name, scored))
    rows = {row.metric: row for row in compare_runs(*folders).metrics}
    for name, difference in (("truth", 0.125), ("CHAIR-i", -0.125), ("CHAIR-s", -0.125)):
        assert rows[name].difference == pytest.approx(difference)
        assert rows[name].better == 1


@pytest.mark.slow
def test_a_kind_of_statement_that_one_has_not_made_is_not_compared():
    scenes = {i: [SceneObject("ball", "red", "small", "plain", (10, 10, 30, 30))] for i in IMAGES}
    pair = []
    for captions in (dict.fromkeys(IMAGES, "a red ball"), dict.fromkeys(IMAGES, "a ball")):
        judged = judge_captions(captions, scenes)
        pair.append(score(captions, {i: ["a red ball"] for i in IMAGES}, judged=judged))
    names = [row.metric for row in compare_scores(*pair)]
    assert "truth" in names
    assert "colour truth" not in names


def test_resamples_without_a_word_of_a_group_are_ignored(run):
    groups = {"colours": {"red"}}
    references = {image_id: ["a ball"] for image_id in IMAGES} | {IMAGES[0]: ["a red ball"]}
    captions = {image_id: group[0] for image_id, group in references.items()}
    group_scores = score_word_groups(captions, references, groups)
    folder = run("a", scores(np.ones(200)), word_groups=group_scores)
    [_, row] = compare_runs(folder, folder).metrics
    assert (row.metric, row.first, row.low, row.high) == ("colours F1", 1.0, 0.0, 0.0)


def test_the_page_shows_both_captions_and_the_different_settings(run, tmp_path):
    runs = (("a", "cat", 0.0, {}), ("b", "dog", 0.5, {"only": "b"}))
    folders = [
        run(
            name,
            scores(np.full(200, cider)),
            provenance={"split": "test", "word": word, **settings},
            caption=f"a {word}",
        )
        for name, word, cider, settings in runs
    ]
    content = compare_runs(*folders)
    assert content.names == ("A a", "B b")
    assert content.settings == {"word": ("cat", "dog"), "only": ("–", "b")}
    assert len(content.images) == 200
    assert content.images[0].captions == ("a cat", "a dog")
    assert content.images[0].change == "fixed"
    assert [metric.better for metric in content.metrics] == [1.0]

    page = tmp_path / "page.html"
    Image.new("RGB", (64, 48)).save(tmp_path / "7.jpg")
    answer = a2("compare", *folders, "--report", page, "--images", tmp_path)
    assert 'class="detail" data-id="000000000007">[{"thumbnail":"data:' in page.read_text()
    assert answer.stdout.splitlines()[-1] == f"report: {page}"
    assert "200 fixed, 0 broken, 0 changed" in " ".join(page.read_text().split())


def test_images_belong_to_the_page(run, tmp_path):
    folder = run("a", scores(np.ones(200)))
    assert a2("compare", folder, folder, "--images", tmp_path, code=2).stderr.splitlines()[-1] == (
        "Error: --images belongs to --report; name a file, or leave it out"
    )


def test_a_run_without_captions_has_no_page(run):
    first, second = run("a", scores(np.ones(200))), run("b", scores(np.ones(200)))
    path = second / "per_image.json"
    path.write_text(path.read_text().replace('"caption"', '"other"'))
    assert compare_runs(first, second).images == []
    assert message_of(compare_runs, first, second, captions=True) == (
        f"no captions in {str(second)!r}; evaluate again with --force"
    )


def test_runs_over_different_images_are_rejected(run):
    long, short = run("a", scores(np.ones(200))), run("b", scores(np.ones(198)))
    assert message_of(compare_runs, long, short) == (
        f"{str(long)!r} has 200 images and {str(short)!r} 198, 2 are in only one of them, such as "
        "'000000000198'; compare runs over the same images"
    )


def test_missing_and_damaged_scores_are_rejected(run, tmp_path):
    folder = run("a", scores(np.ones(200)))
    assert message_of(compare_runs, folder, tmp_path) == (
        f"no scores in {str(tmp_path)!r}: metrics.json is missing; name the folder of an evaluation"
    )
    for damaged in ('{"images": {}}', '{"images": {"1": {}}}', "{}", "[]"):
        (folder / "per_image.json").write_text(damaged)
        with pytest.raises(InputError, match=r"are damaged \(.*\); evaluate again with --force$"):
            compare_runs(folder, folder)


@pytest.mark.parametrize("name", ["metrics.json", "per_image.json"])
def test_scores_that_differ_from_the_manifest_are_not_compared(run, name):
    first, second = run("a", scores(np.ones(200))), run("b", scores(np.ones(200)))
    seal(second, ("metrics.json", "per_image.json"))
    assert [row.difference for row in compare_runs(first, second).metrics] == [0.0]
    path = second / name
    path.write_text(path.read_text().replace("1.0", "7.0"))
    assert message_of(compare_runs, first, second) == (
        f"{str(path)!r} differs from its sha256 in the manifest; "
        f'run "a2 verify --data {second}", which names the command that restores it'
    )


def test_only_common_metrics_are_compared_and_there_must_be_one(run):
    a = run("a", scores(np.ones(200), np.ones((200, 10))))
    assert [row.metric for row in compare_runs(a, run("c", scores(np.zeros(200)))).metrics] == [
        "CIDEr"
    ]
    spice = Scores({"SPICE": 0.2}, {i: {"SPICE": 0.2} for i in IMAGES}, {})
    other = run("b", spice)
    assert message_of(compare_runs, a, other) == (
        f"no metric is in both {str(a)!r} and {str(other)!r}; evaluate both with the same metrics"
    )


def test_a_difference_in_all_images_is_certain_in_the_table_and_in_json(run):
    cider = GENERATOR.random(200)
    folders = [run("a", scores(cider)), run("b", scores(cider + 0.25))]
    answer = a2("compare", *folders, code=0)
    *titles, header, line = answer.stdout.splitlines()
    assert titles == ["A a", "B b"]
    assert " ".join(header.split()) == "A B B − A 95 % B is better in"
    assert line.split()[0] == "CIDEr"
    assert line.split()[3:] == ["+0.2500", "+0.2500", "to", "+0.2500", "100.0", "%"]
    answer = a2("compare", *folders, "--json")
    [row] = json.loads(answer.stdout)
    assert row.keys() == {"metric", "first", "second", "difference", "low", "high", "better"}
    assert row["difference"] == pytest.approx(0.25)
    [back] = compare_runs(*folders[::-1]).metrics
    assert (back.difference, back.better) == (pytest.approx(-0.25), 0)


# --- scores as a baseline -----------------------------------------------------------------------


def test_a_baseline_may_have_no_groups_of_words(tmp_path):
    baseline = read_baseline(written(tmp_path, {"metrics": {"CIDEr": 1}}))
    assert (baseline.metrics, baseline.word_groups) == ({"CIDEr": 1.0}, {})


@pytest.mark.parametrize(
    "content", ["[]", "{}", '{"metrics": []}', '{"metrics": {}, "word_groups": {"kinds": {}}}']
)
def test_a_baseline_without_metrics_is_rejected(tmp_path, content):
    path = written(tmp_path, content)
    assert message_of(read_baseline, path) == (
        f"evaluate.baseline contains no metrics: {str(path)!r}; name a metrics.json"
    )

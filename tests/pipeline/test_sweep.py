"""Sweeps: the grid of their settings, failed combinations, and means over seeds."""

from pathlib import Path

import pytest

from a2cap.data.errors import ConfigError, InputError
from a2cap.data.files.sealed_folder import read_manifest
from a2cap.pipeline.cli.experiment import sweep as command
from a2cap.pipeline.configuration import load_config
from a2cap.pipeline.engine.run import Outcome
from a2cap.pipeline.experiment import Experiment
from a2cap.pipeline.metrics.all_metrics import Scores
from a2cap.pipeline.sweep import grid, read_systems
from tests.data.messages import message_of, written
from tests.experiments import a2, settings

GRID = settings("train.seed=0..2", "model.alignment.fusion=gate,decay", "train.lr=0.5")


TABLES = Path(__file__).parents[2] / "configs" / "tables"


def scored(**metrics):
    """Scores of a run without intervals."""
    return Scores(metrics, {}, {})


def test_a_grid_has_every_combination_of_ranges_and_lists():
    points = grid(["train.seed=1..3", "model.alignment.fusion=gate, decay", "train.lr=0.5"])
    assert [point.varied for point in points] == [
        f"seed {seed}, fusion {fusion}" for seed in (1, 2, 3) for fusion in ("gate", "decay")
    ]
    assert points[1].overrides == ("train.seed=1", "model.alignment.fusion=decay", "train.lr=0.5")
    assert {point.setting for point in points} == {"fusion gate", "fusion decay"}
    assert [(point.varied, point.setting) for point in grid(["train.seed=1"])] == [("all", "all")]


@pytest.mark.parametrize(
    ("override", "values"),
    [
        ("data.split=random(0.8/0.1/0.1, 1)", ["random(0.8/0.1/0.1, 1)"]),
        ("train.betas=[0.9, 0.98],[0.8, 0.9]", ["[0.9, 0.98]", "[0.8, 0.9]"]),
        ('data.images="my, images"', ['"my, images"']),
        ("data.images=../a..b", ["../a..b"]),
        ("evaluate.baseline=", [""]),
        ("train.seed=-1..1", ["-1", "0", "1"]),
    ],
)
def test_a_list_is_split_at_commas_outside_brackets_and_quotes(override, values):
    field = override.partition("=")[0]
    assert [point.overrides for point in grid([override])] == [(f"{field}={v}",) for v in values]


def test_an_empty_range_and_a_huge_grid_are_rejected():
    assert message_of(grid, ["train.seed=4..0"], error=ConfigError) == (
        "'train.seed=4..0' is not a range; write FIRST..LAST, with at most 10,000 values"
    )
    assert message_of(grid, ["train.lr=1e-4..0.5"], error=ConfigError) == (
        "'train.lr=1e-4..0.5' is a range of real numbers, whose values are searched, not listed; "
        "list some, or add --trials"
    )
    assert message_of(grid, ["train.seed=0..999", "scst.seed=0..99"], error=ConfigError) == (
        "the sweep has 100,000 combinations; name at most 10,000"
    )


def test_a_failed_combination_is_named_and_the_others_run(monkeypatch):
    def run(experiment):
        train, fusion = experiment.config.train, experiment.config.model.alignment.fusion
        assert train.lr == 0.5
        if (train.seed, fusion) == (1, "decay"):
            raise InputError("no such thing; name another")
        return scored(CIDEr=0.5 + 0.1 * train.seed, truth=0.9), False

    monkeypatch.setattr(command, "_run", run)
    answer = a2("sweep", *GRID, code=1)
    assert answer.stdout.splitlines() == [
        *(
            f"[{2 * seed + number}/6] seed {seed}, fusion {fusion}"
            for seed in range(3)
            for number, fusion in enumerate(("gate", "decay"), 1)
        ),
        "setting       runs  CIDEr          truth",
        "fusion gate      3  0.600 ± 0.248  0.900 ± 0.000",
        "fusion decay     2  0.600 ± 1.271  0.900 ± 0.000",
    ]
    assert answer.stderr == (
        "a2: seed 1, fusion decay failed: no such thing; name another\n"
        "a2: 1 of 6 failed: seed 1, fusion decay; run the same command again to continue\n"
    )


def test_skipped_items_are_an_exit_code_and_one_run_has_no_interval(monkeypatch):
    monkeypatch.setattr(command, "_run", lambda experiment: (scored(CIDEr=0.5), True))
    answer = a2("sweep", *settings("train.seed=0"), code=3)
    assert answer.stdout == "[1/1] all\nsetting  runs  CIDEr\nall         1  0.500\n"


def test_a_wrong_value_is_an_error_before_anything_runs(monkeypatch):
    monkeypatch.setattr(command, "_run", None)
    answer = a2("sweep", *settings("model.alignment.fusion=gate,gates"), code=2)
    assert "model.alignment.fusion: " in answer.stderr


@pytest.mark.slow
def test_finished_combinations_are_kept_and_a_dry_run_runs_nothing(copy):
    before = copy.finished()
    seeds = settings("train.seed=0,1")
    assert copy.a2("sweep", *seeds, "--dry-run").stdout.splitlines() == [
        "seed 0: done",
        "seed 1: train-xe to run",
    ]
    answer = copy.a2("sweep", *settings("train.seed=0..0"), code=0)
    assert "\nevaluate: up to date: " in answer.stdout
    assert copy.finished() == before


@pytest.mark.slow
def test_the_seeds_of_a_setting_are_evaluated_as_an_ensemble(copy, without_meteor):
    few = settings("train.epochs=1", "train.seed=0,1", "evaluate.attention=none")
    answer = copy.a2("sweep", *few, "--ensemble", code=0)
    lines = answer.stdout.splitlines()
    assert lines[-2].startswith("all") and lines[-2].split()[1] == "2"
    assert lines[-1].startswith("all, ensemble of 2     1  ")
    assert lines.count("all, ensemble of 2") == 1
    [joined] = [
        manifest
        for path in copy.artifacts.glob("evaluate/*")
        if "model.2" in (manifest := read_manifest(path)).origin.inputs
    ]
    members = {name: digest for name, digest in joined.origin.inputs.items() if "model" in name}
    assert len(set(members.values())) == 2
    before = copy.finished()
    assert copy.a2("sweep", *few, "--ensemble").stdout.splitlines()[-1] == lines[-1]
    assert copy.finished() == before


@pytest.mark.slow
def test_the_means_are_printed_when_an_ensemble_fails(copy, without_meteor, monkeypatch):
    run = command._run

    def full(experiment):
        if experiment.config.evaluate.ensemble:
            raise InputError("the disk is full; free some space")
        return run(experiment)

    monkeypatch.setattr(command, "_run", full)
    few = settings("train.epochs=1", "train.seed=0,1", "evaluate.attention=none")
    answer = copy.a2("sweep", *few, "--ensemble", code=1)
    assert answer.stdout.splitlines()[-1].split()[:2] == ["all", "2"]
    assert answer.stderr.splitlines()[-2:] == [
        "a2: all, ensemble of 2 failed: the disk is full; free some space",
        "a2: 1 of 3 failed: all, ensemble of 2; run the same command again to continue",
    ]


def test_an_ensemble_needs_several_seeds():
    answer = a2("sweep", *settings("model.alignment.fusion=gate,none"), "--ensemble", code=2)
    assert answer.stderr.splitlines()[-1] == (
        "Error: --ensemble joins the seeds of a setting, and each setting has one; give several, "
        "as with --set train.seed=0..3"
    )


@pytest.mark.parametrize("path", sorted(TABLES.glob("*.yaml")), ids=lambda path: path.name)
def test_the_systems_of_the_shipped_tables_load_in_every_phase(path):
    table = read_systems(path)
    points = table.points(path.parent, ["data.annotations=mine.json"])
    assert len(points) == len(table.systems) * len(table.phases)
    for point in points:
        config = load_config(point.config, point.overrides)
        assert str(config.data.annotations) == "mine.json"
        assert set(point.setting.split(", ")[:1]) <= table.systems.keys()
        aligned = {"A2", "Max", "Moving", "Decay", "Gate"} & {point.setting.split(",")[0]}
        assert (config.model.alignment.fusion != "none") == bool(aligned), point.setting
        assert (config.scst.epochs == 0) == ("cross-entropy" in point.setting)


def test_a_table_of_systems_has_the_columns_of_the_paper(monkeypatch, tmp_path):
    (tmp_path / "small.yaml").write_text("train: {epochs: 3}")
    table = written(
        tmp_path,
        "set: [train.lr=0.3, train.epochs=5]\n"
        "phases: {first: [scst.epochs=0], second: [scst.epochs=2]}\n"
        "systems: {A_1: {config: small.yaml, set: [train.lr=0.5]}, B: {config: small.yaml}}",
        "table.yaml",
    )

    def run(experiment):
        config = experiment.config
        assert config.train.epochs == 5
        value = config.train.lr / 10 + config.scst.epochs / 100 + config.train.seed / 1000
        metrics = {"CIDEr": value, "Bleu_4": 0.25}
        return Scores(metrics, {}, {}, {"CIDEr": (0.01, 0.1)}), False

    monkeypatch.setattr(command, "_run", run)
    answer = a2("sweep", "--table", table, "--set", "scst.epochs=7", code=0)
    rows = answer.stdout.splitlines()
    assert rows[:2] == ["[1/4] A_1, first", "[2/4] B, first"]
    assert rows[4].split() == ["system", "BLEU-1", "BLEU-4", "METEOR", "ROUGE-L", "CIDEr", "SPICE"]
    assert rows[5].split("  ")[0] == "A_1, first"
    assert rows[5].split() == [
        "A_1,",
        "first",
        "–",
        "25.0",
        "–",
        "–",
        "5.0",
        "(1.0",
        "to",
        "10.0)",
        "–",
    ]
    assert rows[7].split() == [
        "A_1,",
        "second",
        "–",
        "25.0",
        "–",
        "–",
        "7.0",
        "(1.0",
        "to",
        "10.0)",
        "–",
    ]
    assert rows[6].split()[6] == "3.0"  # that of B is the rate of all
    latex = a2("sweep", "--table", table, "--set", "train.seed=0,2", "--latex").stdout
    assert "\\begin{tabular}{lrrrrrr}\nsystem & BLEU-1 & " in latex
    # seeds 0 and 2: 5.0 and 5.2, t quantile 12.7 of one degree of freedom
    assert "A\\_1, first & -- & 25.0 ± 0.0 & -- & -- & 5.1 ± 1.3 & -- \\\\" in latex


def test_systems_of_a_table_are_evaluated_as_an_ensemble_of_each_seed(monkeypatch, tmp_path):
    (tmp_path / "small.yaml").write_text("")
    table = written(
        tmp_path,
        "phases: {first: [train.epochs=1], second: [train.epochs=2]}\n"
        "systems: {A: {config: small.yaml, set: [train.lr=0.5]}, B: {config: small.yaml}}\n"
        "ensembles: {both: {of: [A, B], set: ['evaluate.ensemble_weights=[0.7,0.3]']}}",
        "table.yaml",
    )
    joined = []

    def run(experiment):
        config = experiment.config
        if config.evaluate.ensemble:
            [other] = config.evaluate.ensemble
            joined.append((config.train.lr, str(other), config.evaluate.ensemble_weights))
        elif (config.train.lr, config.train.seed, config.train.epochs) == (1, 3, 2):
            raise InputError("the disk is full")
        return scored(CIDEr=config.train.seed / 10), False

    def result(experiment, name, *, needed_by):
        train = experiment.config.train
        return Outcome(Path(f"{train.lr}-{train.seed}-{train.epochs}"), None, ran=True)

    monkeypatch.setattr(command, "_run", run)
    monkeypatch.setattr(command._Sweep, "require_joinable", lambda sweep: None)
    monkeypatch.setattr(Experiment, "result", result)
    answer = a2("sweep", "--table", table, "--set", "train.seed=1,3")
    assert joined == [(0.5, f"1.0-{seed}", (0.7, 0.3)) for seed in ("1-1", "3-1", "1-2")]
    rows = [line.split() for line in answer.stdout.splitlines() if line.startswith("both, ")]
    means = [row for row in rows if "±" in row]
    assert means == [[*["both,", "first", "–", "–", "–", "–"], "20.0", "±", "127.1", "–"]]
    assert answer.stderr.splitlines()[-2:] == [
        "a2: both, second, seed 3 failed: no captioner of B, second, seed 3; train it first",
        "a2: 2 of 12 failed: B, second, seed 3; both, second, seed 3; run the same command again "
        "to continue",
    ]


@pytest.mark.parametrize(
    ("differing", "problem"),
    [
        ("preprocess.min_count=4", "vocabulary of '{0}/preprocess/"),
        ("extract.max_regions=12", "regions of '{0}/extract/"),
        (
            "train.seed=0,1",
            "an ensemble needs 'B, first', which is not a combination; give its systems the same "
            "values with several combinations",
        ),
    ],
)
def test_an_ensemble_of_other_words_or_features_is_refused_before_training(
    copy, tmp_path, differing, problem
):
    config = copy.experiment.config_file
    table = written(
        tmp_path,
        f"phases: {{first: [train.epochs=7]}}\n"
        f"systems: {{A: {{config: '{config}'}}, B: {{config: '{config}', set: ['{differing}']}}}}\n"
        "ensembles: {both: {of: [A, B]}}",
        "table.yaml",
    )
    trained = sorted((copy.artifacts / "train-xe").iterdir())
    answer = a2("sweep", "--artifacts", copy.artifacts, "--table", table, code=1)
    assert answer.stderr.splitlines()[-1].startswith(f"a2: {problem.format(copy.artifacts)}")
    assert sorted((copy.artifacts / "train-xe").iterdir()) == trained


def test_the_other_systems_run_where_a_member_of_an_ensemble_has_no_captions(copy, tmp_path):
    config, nowhere = copy.experiment.config_file, tmp_path / "nowhere.json"
    table = written(
        tmp_path,
        f"phases: {{first: []}}\n"
        f"systems: {{A: {{config: '{config}'}}, "
        f"B: {{config: '{config}', set: ['data.annotations={nowhere}']}}}}\n"
        "ensembles: {both: {of: [B, A]}}",
        "table.yaml",
    )
    answer = a2("sweep", "--artifacts", copy.artifacts, "--table", table, code=1)
    assert answer.stdout.splitlines()[-1].startswith("A, first")
    missing = f"file of data.annotations not found: {str(nowhere)!r}; check the path"
    assert answer.stderr.splitlines() == [
        f"a2: B, first failed: {missing}",
        "a2: both, first failed: no captioner of B, first; train it first",
        "a2: 2 of 3 failed: B, first; both, first; run the same command again to continue",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("systems: {}", "not a table of systems: {!r} (phases: field required); see "),
        ("phases: {x: []}\nsystems: {A: {configs: a}}", "not a table of systems: {!r} (systems.A"),
        (
            "phases: {x: []}\nsystems: {A: {config: a.yaml}}",
            "no configuration 'a.yaml' beside {!r}",
        ),
        (
            "phases: {x: []}\nsystems: {A: {config: table.yaml}}\nensembles: {B: {of: [A, C]}}",
            "no system 'C' for an ensemble of {!r}; its systems are A",
        ),
        (
            "phases: {x: []}\nsystems: {A: {config: table.yaml}, B: {config: table.yaml}}\n"
            "ensembles: {A: {of: [A, B]}}",
            "ensemble 'A' of {!r} has the name of a system, or a system twice; give it a name of ",
        ),
        (
            "phases: {x: []}\nsystems: {A: {config: table.yaml}}\nensembles: {B: {of: [A, A]}}",
            "ensemble 'B' of {!r} has the name of a system, or a system twice; give it a name of ",
        ),
        (
            "phases: {x: []}\nsystems: {A: {config: table.yaml}}\nensembles: {B: {of: [A]}}",
            "not a table of systems: {!r} (ensembles.B.of: tuple should have at least 2 items",
        ),
    ],
)
def test_another_file_is_not_a_table_of_systems(tmp_path, text, problem):
    path = written(tmp_path, text, "table.yaml")
    assert message_of(read_systems, path, error=ConfigError).startswith(problem.format(str(path)))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--table", TABLES / "table1.yaml", "-c", "x"), "the systems of --table have configurat"),
        (("--latex",), "--latex prints the table of --table; name one"),
    ],
)
def test_options_of_tables_that_exclude_each_other_are_rejected(options, problem):
    answer = a2("sweep", *options, code=2)
    assert answer.stderr.splitlines()[-1].startswith(f"Error: {problem}")

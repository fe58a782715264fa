"""Captioners of other packages: every stage and command, keys, and what a folder may not import."""

import json
import re
import sys
from functools import partial
from importlib import import_module
from statistics import fmean
from types import ModuleType

import pytest
import yaml

import a2cap
from a2cap.data.errors import A2Error, ConfigError
from a2cap.data.files.sealed_folder import read_manifest
from a2cap.model.captioners.kinds import make_captioner
from a2cap.model.errors import PlugInError
from a2cap.model.plug_ins import TRUST, PlugIn, plug_in_of
from a2cap.pipeline.captioning.model_description import load_description
from a2cap.pipeline.configuration import load_config
from a2cap.pipeline.metrics.metric_table import NAMEABLE
from a2cap.pipeline.serving.server import CaptionServer
from tests.data.messages import message_of
from tests.experiments import SECTIONS, a2, detecting
from tests.plug_in import KIND, forget, import_example, write_example

NOT_TRUSTED = (
    f"{KIND!r} is code outside a2, which a file does not make a2 run; if you trust its author, "
    f"set {TRUST}={KIND}"
)
SUBCLASS = "it must be a subclass of a2cap.model.captioners.encoder_decoder.EncoderDecoder"


METRICS = """
def words(captions, references):
    assert len(references) == len(captions) and isinstance(references[0][0], str)
    return [len(caption.split()) for caption in captions]

def fail(captions, references):
    raise OSError("no model")

def leave(captions, references):
    raise SystemExit(3)

def few(captions, references):
    return [1.0] * (len(captions) - 1)

def text(captions, references):
    return captions

def infinite(captions, references):
    return [float("nan")] * len(captions)

def one(captions, references):
    return 0.5

number = 3
"""


def run_stages(copy, tmp_path, monkeypatch):
    """Return the options that train the example by both phases on given features, and evaluate."""
    config = yaml.safe_load(copy.experiment.config_file.read_text())
    train = {**SECTIONS["train"], "epochs": 1}
    forget(monkeypatch, "my_metrics", "my_reward")
    for name in ("my_metrics", "my_reward"):
        (tmp_path / f"{name}.py").write_text(METRICS)
    functions = {
        "scst": {"epochs": 1, "reward": "my_reward:words"},
        "evaluate": {**SECTIONS["evaluate"], "metrics": ["my_metrics:words"]},
    }
    new = {"model": {"kind": KIND, "width": 8}, "train": train, **functions}
    file = tmp_path / "my.yaml"
    file.write_text(yaml.safe_dump({**config, **new}))
    return ("-c", file, "--artifacts", copy.artifacts)


def result(copy, stage):
    """Return the newest result of a stage, that of the example."""
    manifests = (copy.artifacts / stage).glob("*/manifest.json")
    return max(manifests, key=lambda path: path.stat().st_mtime_ns).parent


@pytest.mark.slow
def test_every_stage_and_command_works_and_a_changed_module_trains_again(
    copy, tmp_path, monkeypatch, caplog
):
    module = write_example(tmp_path, monkeypatch)
    options = run_stages(copy, tmp_path, monkeypatch)
    a2("run", *options, code=0)
    trained, xe = result(copy, "train-scst"), result(copy, "train-xe")
    described = json.loads((trained / "model.json").read_text())
    assert described["model"]["kind"] == KIND
    assert described["plug_in"] == {"package": None, "version": None} | {
        "sources": read_manifest(xe).origin.fields["plug_in"]["sources"]
    }
    assert "to run" not in a2("status", *options).stdout
    evaluated = result(copy, "evaluate")
    scores = json.loads((evaluated / "metrics.json").read_text())
    captions = json.loads((evaluated / "captions.json").read_text())
    mean = fmean(len(entry["caption"].split()) for entry in captions)
    assert scores["metrics"]["my_metrics:words"] == pytest.approx(mean)
    assert scores["confidence"].keys() >= {"my_metrics:words", "CIDEr"}
    assert ">words<" in (evaluated / "report.html").read_text()
    assert "words " in a2("compare", evaluated, evaluated).stdout
    a2("verify", "--data", trained, code=0)
    to = ("--output", tmp_path / "analysis")
    a2("analyze", trained, xe, *options[:2], *to, code=0)
    for changed, line in {
        "my_metrics": "metrics.my_metrics:words.sources",
        "my_reward": "plug_in.sources",
    }.items():
        assert line not in a2("status", "--explain", *options).stdout
        (tmp_path / f"{changed}.py").write_text(METRICS + "# changed\n")
        assert line in a2("status", "--explain", *options).stdout
    detecting(trained)  # it was trained on given boxes
    (trained / "manifest.json").unlink()
    image = next((copy.experiment.scenes / "images").iterdir())
    a2("caption", "--model", trained, image, code=0)
    shown = yaml.safe_load(a2("config", "show", *options[:2]).stdout)
    assert shown["model"]["kind"] == KIND
    assert load_config(options[1]).model == load_description(trained)[0].model

    module.write_text(module.read_text() + "# changed\n")
    assert "plug_in.sources" in a2("status", "--explain", *options).stdout
    text = f"the code of {KIND} is not that of its training; captions may differ: {trained}"
    a2("caption", "--model", trained, image)
    assert text in caplog.messages


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_torchrun_a_sweep_and_the_server_take_a_plug_in(copy, two_ranks, tmp_path, monkeypatch):
    write_example(tmp_path, monkeypatch)
    options = (*run_stages(copy, tmp_path, monkeypatch), "--set", "scst.epochs=0")
    assert [answer.exit_code for answer in two_ranks("train", *options)] == [0, 0]
    swept = a2("sweep", *options, "--set", "train.seed=0..1", code=0)
    assert (swept.exit_code, swept.stdout.count("train-xe: up to date")) == (0, 1), swept.output
    trained, answers = result(copy, "train-xe"), []
    detecting(trained)
    (trained / "manifest.json").unlink()
    image = next((copy.experiment.scenes / "images").iterdir())

    def serve_one(server, sockets):
        with image.open("rb") as file, sockets[0]:
            answers.append(json.loads(server.queue.submit(file, as_figure=False).result()))

    monkeypatch.setattr(CaptionServer, "run", serve_one)
    a2("serve", "--model", trained, "--port", 0, code=0)
    line = f"{image}: {answers[0]['caption']}"
    assert a2("caption", "--model", trained, image).stdout.rstrip() == line.rstrip()


def test_a_metric_of_ones_own_is_scored_beside_the_others(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_metrics.py").write_text(METRICS)
    forget(monkeypatch, "my_metrics")
    captions, references = tmp_path / "captions.json", tmp_path / "references.csv"
    captions.write_text(json.dumps({"1": "A red dog.", "2": "two cats"}))
    references.write_text("image,caption\n1,a dog\n2,cats\n")
    options = ("--metric", "my_metrics:words", "--output", tmp_path / "scores")
    printed = a2("score", captions, "--references", references, *options).stdout
    assert "words    2.5000" in printed
    content = json.loads((tmp_path / "scores" / "metrics.json").read_text())
    assert content["metrics"]["my_metrics:words"] == 2.5
    assert "--metric my_metrics:words" in (tmp_path / "scores" / "report.html").read_text()
    score = partial(a2cap.score, ["a dog"], [["a dog"]])
    assert score(metrics=["my_metrics:words"]).metrics == {"my_metrics:words": 2}
    for name, reason in {
        "fail": "failed (OSError: no model; my_metrics.py, line 7); correct it and run again",
        "leave": "failed (SystemExit: 3; my_metrics.py, line 10); correct it and run again",
        "few": "returned 0 numbers for 1 captions; return one number for each",
        "infinite": "returned nan for 1 of 1 captions, first for 'a dog'; return finite numbers",
    }.items():
        assert message_of(score, metrics=[f"my_metrics:{name}"], error=A2Error) == (
            f"metric 'my_metrics:{name}' {reason}"
        )
    text = message_of(score, metrics=["my_metrics:text"], error=A2Error)
    assert "failed (ValueError: could not convert string to float: 'a dog'; plug_ins.py" in text
    thirty = partial(a2cap.score, ["a dog"] * 30, [["a dog"]] * 30)
    assert message_of(thirty, metrics=["my_metrics:one"], error=A2Error) == (
        "metric 'my_metrics:one' returned 1 numbers for 30 captions; return one number for each"
    )
    text = message_of(score, metrics=["my_metrics:number"], error=A2Error)
    assert text == "metric 'my_metrics:number' is not a function; name one"
    metrics = 'evaluate.metrics=["no_module:f", "a b", "my_metrics:number"]'
    assert message_of(load_config, None, [metrics], error=ConfigError).splitlines()[1:] == [
        "  evaluate.metrics.0: cannot import 'no_module' (ModuleNotFoundError: No module named "
        "'no_module'); install its package, or set PYTHONPATH to its folder",
        "  evaluate.metrics.1: unknown metric: 'a b'; use some of "
        f"{', '.join(NAMEABLE)}, or module:function",
        "  evaluate.metrics.2: 'my_metrics:number' is not a function; name one",
    ]


@pytest.fixture
def foreign(copy, tmp_path, monkeypatch):
    """Return a captioner's folder whose file names a module that leaves a mark when it runs."""
    folder = copy.directory("train-xe")
    (folder / "manifest.json").unlink()
    mark = tmp_path / "ran"
    module = write_example(tmp_path, monkeypatch)
    module.write_text(f"open({str(mark)!r}, 'w').close()\n{module.read_text()}")

    def named(kind, **plug_in):
        content = json.loads((folder / "model.json").read_text())
        content["model"] = {"kind": kind, "width": 8}
        content["plug_in"] = {"package": None, "version": None, "sources": "0"} | plug_in
        (folder / "model.json").write_text(json.dumps(content))
        return folder

    return named


def test_a_folder_imports_no_code_that_the_user_does_not_name(copy, foreign, tmp_path, monkeypatch):
    folder, mark = foreign(KIND), tmp_path / "ran"
    image = next((copy.experiment.scenes / "images").iterdir())
    answer = a2("caption", "--model", folder, image, code=1)
    assert answer.stderr == f"a2: captioner {str(folder)!r} cannot be used: {NOT_TRUSTED}\n"
    resolved = folder / "config.yaml"
    text = yaml.safe_load(resolved.read_text()) | {"model": {"kind": KIND}}
    resolved.write_text(yaml.safe_dump(text))
    answer = a2("config", "diff", folder, folder, code=2)
    assert answer.stderr.splitlines()[-1] == f"  model.kind: {NOT_TRUSTED}"
    for command in (["verify", copy.artifacts], ["runs", copy.artifacts], ["clean"], ["status"]):
        name, *rest = command
        copy.a2(name) if not rest and name == "status" else a2(name, *rest)
    assert not mark.exists()
    monkeypatch.setenv(TRUST, f"another:Class, {KIND}")
    assert load_description(folder)[0].model.width == 8
    assert mark.exists()


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("os:system", f"'os:system' is not a captioner: {SUBCLASS}"),
        ("pathlib:Path", f"'pathlib:Path' is not a captioner: {SUBCLASS}"),
        ("os.path:no_such_name", f"'os.path:no_such_name' is not a captioner: {SUBCLASS}"),
        (
            "no_such_module:Captioner",
            "cannot import 'no_such_module' (ModuleNotFoundError: No module named "
            "'no_such_module'); install its package, or set PYTHONPATH to its folder",
        ),
        (
            "my_broken:Captioner",
            "cannot import 'my_broken' (SystemExit: 3); install its package, or set PYTHONPATH to "
            "its folder",
        ),
        (
            "a2cap.model.captioners.encoder_decoder:EncoderDecoder",
            "'a2cap.model.captioners.encoder_decoder:EncoderDecoder' has no settings: set its "
            "attribute `settings` to a subclass of a2cap.model.captioners.captioner_settings."
            "CaptionerSettings",
        ),
    ],
)
def test_a_kind_that_is_not_a_captioner_is_named(kind, text, foreign, tmp_path, monkeypatch):
    import_example(tmp_path, monkeypatch)  # and with it the modules of a2
    (tmp_path / "my_broken.py").write_text("import sys; sys.exit(3)")
    message = message_of(load_config, None, [f"model.kind={kind}"], error=ConfigError)
    assert message == f"1 problem in the configuration:\n  model.kind: {text}"
    assert kind.partition(":")[0] in message_of(load_description, foreign(kind), error=A2Error)


def test_a_class_without_a_file_is_no_kind(tmp_path, monkeypatch):
    import_example(tmp_path, monkeypatch)
    module, _, name = KIND.partition(":")
    made = ModuleType("made")
    setattr(made, name, getattr(sys.modules[module], name))
    monkeypatch.setitem(sys.modules, "made", made)
    message = message_of(load_config, None, [f"model.kind=made:{name}"], error=ConfigError)
    assert message.endswith(
        f"'made:{name}' has no file that others can import; move it into a module"
    )


def test_a_class_that_fails_is_one_line(tmp_path, monkeypatch):
    module = import_example(tmp_path, monkeypatch)

    def fail(*_, **__):
        raise RuntimeError("my own\nfault")

    monkeypatch.setattr(module.DotCaptioner, "__init__", fail)
    config = load_config(None, [f"model.kind={KIND}"])
    sizes = {"feature_width": 8, "vocabulary_size": 9}
    message = message_of(partial(make_captioner, config.model, **sizes), error=PlugInError)
    assert message == f"{KIND!r} failed (RuntimeError: my own fault); correct it and run again"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("query = state.reshape", "query = state.no_such", r"AttributeError: .*; my_captioner.py"),
        ("DecoderOutput(state,", "DecoderOutput(state[:, :-1],", r"RuntimeError: .*; \w+.py"),
    ],
)
def test_a_captioner_that_fails_in_training_is_one_line(
    copy, tmp_path, monkeypatch, old, new, reason
):
    module = write_example(tmp_path, monkeypatch)
    options = run_stages(copy, tmp_path, monkeypatch)
    code = module.read_text()
    assert old in code
    module.write_text(code.replace(old, new))
    answer = a2("train", *options, code=1)
    last = answer.stderr.splitlines()[-1]
    assert re.fullmatch(
        rf"a2: '.*{KIND}.*' failed \({reason}, line \d+\); correct it and run again", last
    )


def test_a_kind_of_any_length_or_with_any_character_is_one_short_line():
    for kind in ("x" * 10**5, "a." * 10**4 + "b:C", "a:b\\n", "os:system\\nos:system", "../x:Y"):
        message = message_of(load_config, None, [f'model.kind="{kind}"'], error=ConfigError)
        _, *lines = message.splitlines()
        assert len(lines) == 1
        assert len(lines[0]) < 600
        assert lines[0].startswith("  model.kind: unknown kind ")


def test_settings_of_a_plug_in_are_checked_by_its_class(tmp_path, monkeypatch):
    write_example(tmp_path, monkeypatch)
    fields = ["kind=" + KIND, "width=-1", "attention_scael=2", "alignment.fussion=gate"]
    message = message_of(load_config, None, [f"model.{f}" for f in fields], error=ConfigError)
    assert message.splitlines() == [
        "3 problems in the configuration:",
        "  model.width: input should be greater than 0: -1; choose a valid value: integer, > 0, "
        "<= 65536; default 512. Width of every state, D",
        "  model.alignment.fussion: unknown field; did you mean 'fusion'?",
        "  model.attention_scael: unknown field; did you mean 'attention_scale'?",
    ]


def install(folder, name="dot-captioner", version="1.2"):
    """Install the example as pip does, as far as importlib.metadata reads it."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[a2cap.captioners]\ndot = {KIND}\n")
    (info / "top_level.txt").write_text("my_captioner\n")


def test_an_entry_point_is_a_kind_and_is_trusted(foreign, tmp_path, monkeypatch):
    folder = foreign(KIND, package="dot-captioner", version="1.2")
    assert message_of(load_description, folder, error=A2Error) == (
        f"captioner {str(folder)!r} needs 'dot-captioner==1.2', which is not installed; if you "
        "trust its author: pip install dot-captioner==1.2"
    )
    install(tmp_path)
    assert load_config(None, ["model.kind=dot"]).model.kind == KIND
    forget(monkeypatch)
    assert load_description(folder)[0].model.kind == KIND
    plug_in = plug_in_of(KIND)
    assert plug_in is not None
    assert (plug_in.package, plug_in.version) == ("dot-captioner", "1.2")
    text = message_of(load_config, None, ["model.kind=dott"], error=ConfigError)
    assert "unknown kind 'dott'; did you mean 'dot'?" in text


def test_a_name_of_a_package_that_pip_would_misread_is_not_repeated():
    for name in ("--index-url=x", "dot; rm -rf", "dot\n", "", None):
        assert PlugIn(name, "1.2", "").requirement == ""


def test_every_module_of_a_package_is_in_its_digest(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "my_digest_package"
    (package / "inner").mkdir(parents=True)
    files = [package / name for name in ("__init__.py", "layers.py", "inner/captioner.py")]
    for file in files:
        file.write_text("")
    import_module("my_digest_package.inner.captioner")
    kind = "my_digest_package.inner.captioner:Captioner"
    plug_ins = [plug_in_of(kind)]
    for file in files:
        file.write_text("1\n")
        plug_ins.append(plug_in_of(kind))
    assert len({plug_in.sources for plug_in in plug_ins}) == 4

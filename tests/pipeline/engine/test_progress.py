"""Progress: a few lines in a log, a bar on a terminal, events inside a stage."""

import io
import json
import logging
import sys
from types import SimpleNamespace

import pytest

from a2cap.pipeline.cli.options import Stderr
from a2cap.pipeline.engine import progress
from a2cap.pipeline.engine.events import EventLog
from a2cap.pipeline.engine.progress import (
    advance_after_each,
    format_bytes,
    format_duration,
    format_speed,
    track,
)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.4, "0 s"),
        (59.6, "1 min 0 s"),
        (200, "3 min 20 s"),
        (3599.4, "59 min 59 s"),
        (3599.6, "1 h 0 min"),
        (18_720, "5 h 12 min"),
        (360_000, "100 h 0 min"),
    ],
)
def test_durations_are_formatted_with_two_units(seconds, words):
    assert format_duration(seconds) == words


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (99_949, "99.9 kB"),
        (999_500, "1.0 MB"),
        (18_200_000_000, "18.2 GB"),
        (2_000_000_000_000_000, "2000 TB"),
    ],
)
def test_bytes_have_three_digits(count, text):
    assert format_bytes(count) == text


class Clock:
    """Clock that a test moves."""

    now = 100.0

    def started_with(self, shown):
        shown.started = shown.logged = shown.written = self.now


@pytest.fixture
def clock(monkeypatch):
    """Replace the clock by one that the test moves."""
    clock = Clock()
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock.now)
    return clock


def on_terminal(monkeypatch):
    """Replace stderr by a terminal and return it; pytest would restore that of a fixture."""
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    return terminal


def test_the_speed_is_shown_where_items_have_a_unit_also_without_a_total(clock, caplog):
    for total in (100, 0):
        with caplog.at_level(logging.INFO), track("caption", total=total, unit="images") as shown:
            clock.started_with(shown)
            clock.now += 16
            shown.advance(40)
    assert caplog.messages == [
        "caption: 40 of 100, 2.5 images/s, 24 s left",
        "caption: 40, 2.5 images/s",
    ]


def test_slow_work_has_a_speed_that_is_not_0():
    speeds = [format_speed(speed, "images") for speed in (12, 0.1, 0.05, 0.001)]
    assert speeds == ["12.0 images/s", "0.1 images/s", "3.0 images/min", "3.6 images/h"]


def test_a_log_gets_a_line_at_most_every_15_seconds(clock, caplog):
    with caplog.at_level(logging.INFO), track("draw", total=100) as shown:
        clock.started_with(shown)
        for _ in range(60):
            clock.now += 1.0
            shown.advance(1)
    assert caplog.messages == [
        "draw: 15 of 100, 1 min 25 s left",
        "draw: 30 of 100, 1 min 10 s left",
        "draw: 45 of 100, 55 s left",
        "draw: 60 of 100, 40 s left",
    ]


def test_work_of_an_earlier_run_counts_as_done_but_not_for_the_speed(clock, caplog):
    with caplog.at_level(logging.INFO), track("draw", total=100, done=80) as shown:
        clock.started_with(shown)
        clock.now += 20.0
        shown.advance(10)
    assert caplog.messages == ["draw: 90 of 100, 20 s left"]


def test_the_end_of_work_logs_no_line(clock, caplog):
    with caplog.at_level(logging.INFO), track("draw", total=2) as shown:
        clock.started_with(shown)
        shown.advance(1)
        clock.now += 60.0
        shown.advance(1)
    assert caplog.messages == []


def test_a_terminal_gets_a_bar_and_no_lines(monkeypatch, caplog):
    terminal = on_terminal(monkeypatch)
    with caplog.at_level(logging.INFO), track("draw", total=4, done=1) as shown:
        shown.advance(2)
    assert "draw" in terminal.getvalue()
    *_, after = terminal.getvalue().rpartition("3/4")
    assert "\x1b[2K" in after  # the bar is erased
    assert caplog.messages == []


def test_work_of_unknown_length_is_counted(clock, monkeypatch):
    terminal = on_terminal(monkeypatch)
    with track("draw", total=0) as shown:
        clock.now += 60
        shown.advance(3)
    assert "3/?" in terminal.getvalue() and "left" not in terminal.getvalue()


@pytest.mark.parametrize(
    ("seconds", "count", "left"),
    [(14, 9, ""), (14, 10, "2 min 6 s left"), (15, 1, "24 min 45 s left"), (50, 100, "0 s left")],
)
def test_time_left_is_named_after_a_tenth_of_the_work_or_15_seconds(
    clock, monkeypatch, seconds, count, left
):
    drawn = []
    on_terminal(monkeypatch)
    with track("draw", total=120, done=20) as shown:
        shown.draw = lambda done, left: drawn.append((done, left))
        clock.started_with(shown)
        clock.now += seconds
        shown.advance(count)
    assert drawn == [(20 + count, left)]


def test_progress_inside_a_stage_is_written_to_its_events(clock, tmp_path):
    log = EventLog(tmp_path)
    with track("draw", total=100, done=10, events=log) as shown:
        clock.started_with(shown)
        for _ in range(40):
            clock.now += 1.0
            shown.advance(2)
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    progress_events = [event for event in events if event["event"] == "progress"]
    assert [(event["what"], event["done"], event["total"]) for event in progress_events] == [
        ("draw", 10, 100),
        ("draw", 40, 100),
        ("draw", 70, 100),
        ("draw", 90, 100),
    ]


def test_each_yielded_item_advances_after_its_use():
    advanced = []
    items = advance_after_each("ab", advanced.append)
    assert next(items) == "a"
    assert advanced == []
    assert list(items) == ["b"]
    assert advanced == [1, 1]


def test_lines_for_a_file_are_not_printed_on_the_terminal(monkeypatch, tmp_path):
    """As in `python program.py > captions.txt`: rich would print them above the bar."""
    on_terminal(monkeypatch)
    with (tmp_path / "out").open("w+") as file:
        monkeypatch.setattr(sys, "stdout", file)
        with track("draw", total=4):
            print("a cat")
        file.seek(0)
        assert file.read() == "a cat\n"


def test_a_bar_of_a_notebook_is_drawn_at_most_ten_times_a_second(clock, monkeypatch):
    drawn = []

    def publish(data, transient, update):
        drawn.append((data["text/plain"], update))

    shell = SimpleNamespace(kernel=None, display_pub=SimpleNamespace(publish=publish))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    with track("caption", total=40) as shown:
        for seconds in (0.01, 0.01, 60):
            clock.now += seconds
            shown.advance(1)
    assert drawn == [("caption 0/40", False), ("caption 3/40", True), ("", True)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Jupyter's packages
def test_a_notebook_gets_a_bar_that_is_erased_at_the_end():
    nbclient = pytest.importorskip("nbclient", reason="no nbclient")
    nbformat = pytest.importorskip("nbformat", reason="no nbformat")
    pytest.importorskip("ipykernel", reason="no ipykernel")
    code = (
        "import time\nfrom a2cap.pipeline.engine.progress import track\n"
        "for total in (3, 0):\n    with track('<b>', total=total) as shown:\n"
        "        for _ in range(2):\n            time.sleep(0.15)\n            shown.advance(1)"
    )
    drawn = []

    class Client(nbclient.NotebookClient):
        def process_message(self, msg, cell, cell_index):
            if "data" in msg["content"]:
                drawn.append(msg["content"]["data"]["text/html"])
            return super().process_message(msg, cell, cell_index)

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    Client(notebook, timeout=60, kernel_name="python3").execute()
    bar = '<progress value="{0}" max="3"></progress> &lt;b&gt; {0}/3'
    for done in range(3):
        assert drawn[done].startswith(bar.format(done))
    assert drawn[2].endswith(" left")
    unknown = [f"<progress></progress> &lt;b&gt; {done}/?" for done in range(3)]
    assert drawn[3:] == ["", *unknown, ""]
    outputs = [output["data"]["text/html"] for output in notebook.cells[0].outputs]
    assert outputs == ["", ""]


def test_a_log_line_is_printed_above_the_bar(monkeypatch):
    terminal = on_terminal(monkeypatch)
    record = logging.LogRecord("a2", logging.INFO, "", 0, "half an hour later", (), None)
    with track("draw", total=4):
        Stderr().emit(record)
        assert sys.stderr is not terminal
    # the line ends where the bar is drawn again
    assert "half an hour later" in terminal.getvalue()
    assert "draw" not in terminal.getvalue().partition("half an hour later")[2].partition("\n")[0]

"""Events of a stage: their fields, one JSON object per line."""

import json
import os
import socket
import time
from contextlib import ExitStack

import pytest

from a2cap.data.errors import A2Error
from a2cap.data.files.sealed_folder import SkippedItem
from a2cap.pipeline.engine.events import EventLog
from a2cap.pipeline.engine.interruption import Interrupted
from a2cap.pipeline.engine.prepared_stage import PreparedStage, StagePaths
from a2cap.pipeline.engine.run import run_stage
from tests.file_sizes import limited_to


def events(folder):
    """Read the events of a directory, without their times."""
    lines = (folder / "events.jsonl").read_text().splitlines()
    lines_read = [json.loads(line) for line in lines]
    assert all(isinstance(event.pop("time"), float) for event in lines_read)
    return lines_read


def stage(work):
    def make(directory, inputs, log):
        (directory / "total.txt").write_text("9")
        return work(log)

    return PreparedStage("count", 1, {}, {}, ("total.txt",), make)


def run(folder, work):
    """Run a stage; return the error it raised and the events of its result or partial directory."""
    ready = stage(work)
    place = StagePaths.in_artifacts(folder, ready)
    try:
        run_stage(ready, place, resolved_config="")
    except BaseException as error:
        return error, events(place.partial)
    return None, events(place.final)


START = {
    "event": "start",
    "stage": "count",
    "key": stage(None).made_from.key,
    "pid": os.getpid(),
    "host": socket.gethostname(),
}


def test_a_run_writes_start_skips_and_end(tmp_path):
    started = time.monotonic()
    _, written = run(tmp_path, lambda log: [SkippedItem("7", "odd"), SkippedItem("8", "even")])
    assert 0 <= written[-1].pop("seconds") <= time.monotonic() - started + 0.001
    assert written == [
        START,
        {"event": "skip", "id": "7", "reason": "odd"},
        {"event": "skip", "id": "8", "reason": "even"},
        {"event": "end", "outcome": "done", "skipped": 2},
    ]


def test_an_item_skipped_during_the_work_is_written_once(tmp_path):
    def work(log):
        log.skip("7", "odd")
        log.write("checkpoint", images=3)
        return [SkippedItem("7", "odd"), SkippedItem("7", "twice")]

    _, written = run(tmp_path, work)
    assert written[1:-1] == [
        {"event": "skip", "id": "7", "reason": "odd"},
        {"event": "checkpoint", "images": 3},
        {"event": "skip", "id": "7", "reason": "twice"},
    ]


@pytest.mark.parametrize(
    ("error", "end"),
    [
        (A2Error("no features; extract"), {"outcome": "failed", "error": "no features; extract"}),
        (RuntimeError(), {"outcome": "failed", "error": "RuntimeError"}),
        (Interrupted(15), {"outcome": "stopped"}),
    ],
)
def test_an_unfinished_run_and_the_next_one_write_their_outcomes(tmp_path, error, end):
    def work(log):
        raise error

    raised, written = run(tmp_path, work)
    assert raised is error
    del written[-1]["seconds"]
    assert written == [START, {"event": "end", **end}]
    _, written = run(tmp_path, lambda log: [])
    assert [event["event"] for event in written] == ["start", "end", "start", "end"]


def test_on_a_full_disk_the_first_error_is_raised(tmp_path):
    def work(log):
        full.enter_context(limited_to(1))
        raise A2Error("the disk is full")

    with ExitStack() as full:
        raised, written = run(tmp_path, work)
    assert str(raised) == "the disk is full"
    assert written == [START]


def test_an_event_starts_a_new_line_after_a_truncated_one(tmp_path):
    (tmp_path / "events.jsonl").write_text('{"event": "sta')
    EventLog(tmp_path).write("start")
    EventLog(tmp_path).write("end")
    cut, *whole = (tmp_path / "events.jsonl").read_text().splitlines()
    assert cut == '{"event": "sta'
    assert [json.loads(line)["event"] for line in whole] == ["start", "end"]


def test_a_watch_is_called_after_each_event(tmp_path):
    seen = []
    log = EventLog(tmp_path, lambda folder: seen.append((folder / "events.jsonl").read_text()))
    log.write("start")
    log.write("end")
    assert [text.count("\n") for text in seen] == [1, 2]

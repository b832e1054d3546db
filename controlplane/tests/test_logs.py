import json
import logging

import pytest
import structlog

from controlplane.base.process import logs


@pytest.fixture
def event() -> logging.LogRecord:
    return logging.LogRecord("weir", logging.INFO, __file__, 1, "policy.published", None, None)


def test_json_lines_contain_the_event_and_its_request(event):
    with structlog.contextvars.bound_contextvars(request_id="r-1"):
        line = json.loads(logs.formatter("json").format(event))
    assert (line["event"], line["request_id"], line["level"], line["logger"]) == (
        "policy.published",
        "r-1",
        "info",
        "weir",
    )


def test_the_console_format_is_one_line(event):
    line = logs.formatter("console").format(event)
    assert "policy.published" in line
    assert "\n" not in line


def test_a_crash_is_logged_with_its_traceback(event):
    try:
        raise RuntimeError("the disk is full")
    except RuntimeError as error:
        event.exc_info = (RuntimeError, error, error.__traceback__)
    assert "the disk is full" in json.loads(logs.formatter("json").format(event))["exception"]

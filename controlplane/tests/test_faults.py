"""Under each fault, everything that the API acknowledged is kept, and no request is lost that could be served."""

import dataclasses

import pytest

from controlplane.tests import faults

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LASTS_S = 5.0
ROWS = {(row.fault, row.subject): row for row in faults.ROWS if row.stage in ("one host", "clock")}
HELD = [
    ("kill -9", "web"),
    ("kill -9", "redis"),
    ("SIGTERM", "control"),
    ("all values corrupted", "redis"),
    ("disk full for 20 s, router-1, web and control killed", "data folder"),
    ("read-only for 20 s", "data folder"),
    ("an hour forward for 20 s, then back", "clock"),
    ("an hour back for 20 s, then forward", "clock"),
]
CUT = {"RemoteDisconnected", "ConnectionResetError", "IncompleteRead"}  # a request in flight on a router that is killed


@pytest.fixture(scope="module")
def worlds():
    """One set-up at a time, reused from row to row."""
    running = {}

    def world(stage):
        if stage not in running:
            for opened in list(running):
                running.pop(opened)[0].__exit__(None, None, None)
            context = faults.setting(stage)
            try:
                running[stage] = context, context.__enter__()
            except faults.Impossible as why:
                pytest.skip(str(why))
        return running[stage][1]

    yield world
    for context, _ in running.values():
        context.__exit__(None, None, None)


@pytest.mark.parametrize("name", HELD, ids=" of ".join)
def test_nothing_acknowledged_and_no_request_is_lost(worlds, name):
    row = ROWS[name]
    world = worlds(row.stage)
    found = faults.run(row, world, LASTS_S)
    assert found.missing == []
    in_flight = CUT if "router-1" in row.fault else set()
    assert found.lost.keys() <= in_flight, f"{found.lost}\n{world.told()}"
    assert found.lost.total() <= 0.1 * found.sent, found.lost
    assert found.published, "nothing was published: the row tells nothing"
    assert found.whole_s is not None, "not whole again"


def test_missing_changes_are_found():
    """The operator believes that more was published than exists; this tests the check itself."""

    class Api(faults.Operator):
        def __init__(self):
            self._weir, self.saved, self.published = None, [10_001, 10_002, 10_003, 10_004], ["one", "two"]
            self.kept = [9_999, 10_003]  # 10_003 could not be published, and was overwritten
            self.experiment = 7

    version = {"number": 1, "reason": "one", "document": {"classes": {"heavy_new_tokens": 10_001}}}
    pages = {
        "/policies/default/versions?limit=100": [version],
        "/audit?limit=200": {"entries": [{"id": 1, "reason": "two"}]},
        "/policies/default/draft": {"document": {"classes": {}}},
        "/experiments/7": {"status": "done"},
        "/experiments/7/results": {"arms": [{}]},
    }
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(faults, "api", lambda weir, path, *_: pages[path])
        assert Api().missing() == [
            "version of two",
            "audit entry of one",
            "draft with 10002",
            "results of experiment 7",
        ]
        pages["/experiments/7"] = {"status": "failed"}
        pages["/experiments/7/results"] = {"experiment": {"cause": ""}}
        assert Api().missing()[-1] == "end of experiment 7, which is failed"


def test_the_names_of_the_rows_are_unique():
    assert len({(row.fault, row.subject) for row in faults.ROWS}) == len(faults.ROWS)
    assert all(dataclasses.is_dataclass(row) for row in faults.ROWS)

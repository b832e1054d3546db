"""Counts by name over the last minute."""

from router.telemetry.recorder import RecentCounts


def test_entries_older_than_a_minute_are_forgotten() -> None:
    counts = RecentCounts()
    for second in range(0, 100, 5):
        counts.add("chat", float(second))
    counts.add("bot", 99.0)
    assert counts.read(99.0) == {"chat": 12, "bot": 1}
    assert counts.read(149.0) == {"chat": 2, "bot": 1}
    assert counts.read(300.0) == {}

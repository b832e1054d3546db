"""A pool's sections described for people: every section, as in the document."""

from controlplane.pages.fleet_pages.section_rows import section_rows
from fleet.models import Pool


def test_each_section_is_described_with_the_titles_and_units_of_its_options() -> None:
    pool = Pool(
        replicas=4,
        update={"strategy": "surge", "max_unavailable": 1, "on_failure": "rollback"},
        placement={"nodes": ["a", "b"], "labels": {"zone": "eu"}, "spread": False, "memory_gib": 32, "gpus": 1},
        schedule={
            "timezone": "Europe/Berlin",
            "windows": [
                {"days": ["mon", "tue", "wed", "fri"], "from": "08:00", "to": "18:30", "replicas": 6},
                {"days": ["sat", "sun"], "from": "22:00", "to": "06:00", "replicas": 1},
                {"from": "00:00", "to": "01:00", "replicas": 2},
            ],
        },
        autoscale={"max": 12, "target_kv": 0.7, "target_queue": None, "down_after_s": 90, "slo_ttft_p90_ms": {}},
        slo={"ttft_p90_ms": {"warm": 400, "heavy": 4000}},
        access={"trusted_keys": ["scheduler", "ci"], "salt_by_key": True, "billing_line": "remove"},
    )
    assert {one.title: dict(one.rows) for one in section_rows(pool)} == {
        "Update": {
            "Strategy": "surge",
            "Extra instances": "1 instance",
            "Out of routing": "1 instance",
            "On failure": "rollback",
        },
        "Placement": {
            "Nodes": "a, b",
            "Labels": "zone = eu",
            "Spread": "off",
            "Memory": "32 GiB",
            "GPUs": "1",
        },
        "Schedule": {
            "Mon–Wed, Fri 08:00–18:30": "6 instances",
            "Sat, Sun 22:00–06:00": "1 instance",
            "daily 00:00–01:00": "2 instances",
            "Otherwise": "4 instances",
            "Time zone": "Europe/Berlin",
        },
        "Autoscaler": {
            "Mode": "advisory",
            "Minimum": "1 instance",
            "Maximum": "12 instances",
            "KV usage": "70 %",
            "Down after": "90 s",
        },
        "Access": {
            "Keys that may steer its engines": "ci, scheduler",
            "Cache in the engines": "apart by API key",
            "Claude Code's billing line": "removed",
        },
        "SLO": {"TTFT p90": "warm 400 ms, heavy 4 s"},
    }


def test_a_pool_without_sections_has_no_rows() -> None:
    assert section_rows(Pool(replicas=4)) == []


def test_an_update_in_place_shows_the_defaults_in_effect() -> None:
    (update,) = section_rows(Pool(replicas=8, update={"on_failure": "halt"}))
    assert dict(update.rows) == {"Strategy": "in place", "Out of routing": "2 instances", "On failure": "halt"}

"""The description of a preview on pages, from its JSON."""

import pytest

from controlplane.evidence.previews import display
from controlplane.evidence.previews.tests.ready_made import metric, of_class, preview, result

CHANGED = "The draft would route 232 of 1,870 requests differently (12.4 %, 95 % CI 10.9–14.1)"
NOTHING = {"decisions": 0, "of": 1870, "share": 0.0, "low": 0.0, "high": 0.002, "classes": {}}


def classes(**metrics):
    return {name: {"n": 800, "metrics": each} for name, each in metrics.items()}


def effects(table):
    return [row.cells[1].effect for row in table.rows]


NO_DIFFERENCE = "no difference in TTFT p90 or E2E p50 that these requests can show"


def test_the_sentence_states_the_share_that_goes_elsewhere_and_the_refused_requests():
    assert display.sentence(result()) == f"{CHANGED}; {NO_DIFFERENCE}; refused requests 0 → 3."


def test_the_sentence_covers_the_declared_latencies_whether_better_or_worse():
    found = classes(all=[metric("ttft_p90_ms", 820.0, 640.0), metric("e2e_p50_ms", 900.0, 1400.0)])
    said = display.sentence(result(classes=found, refused={"live": 3, "draft": 3}))
    assert said == f"{CHANGED}; TTFT p90 820 → 640 ms, better; E2E p50 900 ms → 1.4 s, worse."


@pytest.mark.parametrize(
    "found",
    [
        classes(all=[metric("tpot_p50_ms", 21.0, 10.0, 1.0)], medium=[metric("ttft_p90_ms", 900.0, 300.0)]),
        classes(heavy=[metric("ttft_p90_ms", 1000.0, 1090.0, 400.0)]),
        {"all": of_class(12, 0.2, verdict="too few requests")},
        {},
    ],
)
def test_a_latency_or_class_that_was_not_declared_in_advance_makes_no_headline(found):
    said = display.sentence(result(classes=found, refused={"live": 0, "draft": 0}))
    assert said == f"{CHANGED}; {NO_DIFFERENCE}."


def test_headline_plot_and_table_show_the_same_verdict_for_a_declared_latency():
    barely = metric("e2e_p50_ms", 1000.0, 900.0, 95.0, relative_low=-0.195, relative_high=-0.005)
    found = result(classes=classes(all=[metric("ttft_p90_ms", 820.0, 821.0), barely]))
    assert barely["verdict"] == "better"  # if judged alone
    assert NO_DIFFERENCE in display.sentence(found)
    assert "−10 % (−20.8 % to +0.944 %)" in display.plot(found, "Draft against v3")
    row = effects(display.class_tables(found)[0])[1]
    assert (row.interval, row.verdict) == ("−209 ms to +8.64 ms", "not distinguishable")
    alone = result(classes=classes(all=[barely]))
    assert effects(display.class_tables(alone)[0])[0].verdict == "better"


@pytest.mark.parametrize("ends", [{}, {"low": None}])
def test_undeclared_latencies_are_judged_jointly_over_all_classes(ends):
    barely = metric("tpot_p50_ms", 1000.0, 900.0, 95.0, **ends)
    assert barely["verdict"] == "better"  # if judged alone
    found = result(classes=classes(all=[barely], warm=[metric("ttft_p90_ms", 820.0, 821.0)]))
    assert effects(display.class_tables(found)[0])[0].verdict == "not distinguishable"
    assert "better" not in display.plot(found, "Draft against v3")


def test_a_draft_that_decides_the_same_is_described_so_without_latencies():
    found = classes(all=[metric("ttft_p50_ms", 820.0, 821.0)])
    said = display.sentence(result(changed=NOTHING, classes=found, refused={"live": 0, "draft": 0}))
    assert said == "The draft would decide all 1,870 requests as the live version does."


def test_a_row_has_both_values_the_difference_its_interval_n_and_a_verdict_with_a_shape():
    [table] = display.class_tables(result(classes=classes(medium=[metric("ttft_p50_ms", 820.0, 640.0)])))
    [row] = effects(table)
    assert (row.title, row.before, row.after) == ("TTFT p50", "820 ms", "640 ms")
    assert (row.difference, row.interval) == ("−180 ms (−22 %)", "−190 ms to −170 ms")
    assert (row.n, row.sign, row.verdict) == (800, "●", "better")
    assert [column.n for column in table.columns] == ["", "800"]


def test_an_unknown_value_is_a_dash_and_not_zero():
    [table] = display.class_tables(result(classes=classes(heavy=[metric("ttft_p50_ms", 820.0, None)])))
    [row] = effects(table)
    assert (row.before, row.after, row.difference, row.interval) == ("820 ms", "–", "–", "–")
    assert (row.sign, row.verdict) == ("◌", "unknown")


def test_a_zero_difference_has_no_sign():
    [table] = display.class_tables(result(classes=classes(all=[metric("tpot_p50_ms", 9.5, 9.5, 0.5)])))
    assert (effects(table)[0].difference, effects(table)[0].interval) == ("0 ms (0 %)", "−0.5 ms to +0.5 ms")


def test_a_class_says_what_share_of_its_decisions_changes():
    assert [t.elsewhere for t in display.class_tables(result())] == ["12.4 %", "2.1 %", "25.2 %", "41.7 %"]


def test_classes_are_in_order_with_few_requests_marked_and_verdicts_counted():
    tables = display.class_tables(result())
    assert [(t.name, t.n, t.few) for t in tables] == [
        ("all", 1870, False), ("warm", 1046, False), ("medium", 812, False), ("heavy", 12, True),
    ]  # fmt: skip
    assert tables[2].counts == (("●", 3, "better"), ("◇", 6, "not distinguishable"))
    assert tables[3].counts == (("◌", 9, "too few requests"),)


@pytest.mark.parametrize(
    ("live", "draft", "text"),
    [
        (820, 640, "820 → 640 ms"),
        (980, 1020, "980 ms → 1.02 s"),
        (1_234_000, 2_000, "1,234 → 2 s"),
        (None, 640, "– → 640 ms"),
        (820, None, "820 ms → –"),
    ],
)
def test_a_pair_names_its_unit_once_when_both_have_the_same(live, draft, text):
    assert display.pair(live, draft) == text


def test_instances_are_ordered_by_how_much_changes():
    requests = {"a": (10, 10), "b": (1200, 1000), "c": (0, 7)}
    rows = [{"id": name, "live": live, "draft": draft} for name, (live, draft) in requests.items()]
    found = display.affected(result(instances=rows))
    assert found.rows == (("b", 1200, 1000, "−200"), ("c", 0, 7, "+7"), ("a", 10, 10, "0"))
    assert (found.changed, found.of) == (2, 3)


def test_a_long_list_of_instances_shows_the_largest_changes():
    many = [{"id": f"i{n}", "live": 5, "draft": 5 + n % 7} for n in range(300)]
    found = display.affected(result(instances=many))
    assert (len(found.rows), found.of) == (display.MOST_INSTANCES, 300)
    assert {row[3] for row in found.rows} == {"+6", "+5", "+4"}


def test_the_deviation_of_the_twin_from_the_fleet_is_described():
    said = display.deviation(preview()["twin"]["deviation"])
    assert said == "the twin's TTFT is 8.01 % above what was measured (512 → 553 ms, n = 1,240)"
    below = {**preview()["twin"]["deviation"], "relative": -0.25}
    assert "25 % below" in display.deviation(below)
    assert display.deviation(None).startswith("not compared")


def status_now(revision=2, sha256="d" * 64, live=1):
    return display.status_of(preview(), live=live, draft_revision=revision, draft_sha256=sha256)


def test_a_preview_of_the_same_content_is_current_whatever_the_revision():
    assert status_now(revision=6).current


def test_a_preview_of_an_older_revision_names_it():
    assert status_now(5, "e" * 64).why == "of revision 2, and the draft is now revision 5"


def test_a_preview_against_a_version_that_is_no_longer_live_names_the_live_one():
    assert status_now(live=4).why == "against v1, and v4 is live now"


def test_a_preview_of_a_draft_that_is_gone_says_so():
    assert status_now(None, None).why == "of revision 2 of a draft that is no longer open"


@pytest.mark.parametrize(
    ("status", "done", "total", "said", "line"),
    [
        ("queued", 0, 0, "Preview queued.", "waiting for a worker"),
        ("running", 1200, 3740, "Preview running.", "1,200 of 3,740 simulated requests"),
    ],
)
def test_progress_is_reported_in_the_line_and_not_on_each_tick(status, done, total, said, line):
    found = display.shown(preview(status, done=done, total=total), status_now())
    assert (found.active, found.said, found.line) == (True, said, line)


def test_a_failure_says_its_cause():
    found = display.shown(preview("failed", cause="no law is known for vllm"), status_now())
    assert (found.active, found.said) == (False, "Preview failed. no law is known for vllm")


def test_doubts_about_a_preview_are_shown_before_its_findings():
    doubtful = preview(trust=[{"code": "trace_old", "text": "the newest request is 3 days old"}])
    said = display.shown(doubtful, status_now()).said
    assert said.startswith("Preview done. 1 caveat. The draft would route")


def test_a_class_without_a_finding_does_not_count_against_the_others():
    text = "12 heavy requests were compared, fewer than 20: nothing is said of that class"
    found = display.shown(preview(trust=[{"code": "few_of_class", "text": text}]), status_now())
    assert (found.doubts, found.gaps) == ((), (text,))
    assert "caveat" not in found.said


def test_shares_contain_one_percent_sign():
    assert display.shown(preview(), status_now()).hit_share == "54.2 → 58.1 %"
    assert display.shares({"live": None, "draft": 0.4437}) == "– → 44.4 %"


def test_the_expected_error_names_what_is_unknown():
    shown = display.shown(preview(), status_now())
    assert shown.expected == "TPOT 5 %, E2E 7 %, mean TTFT 10 % of a warm engine; TTFT p99 unknown"
    assert display.shown(preview(twin={**preview()["twin"], "expected": None}), status_now()).expected == ""


CURRENT = display.PreviewStatus(True, "")


@pytest.mark.parametrize(
    ("source", "status", "n", "said"),
    [
        ("recorded", "running", 500, "First answer, from the first 500 of 1,870 requests."),
        ("built-in", "cancelled", 500, "First answer, from the first 500 of 1,870 requests."),
        ("recorded", "running", 1870, "First answer, from all 1,870 requests, without the canary of the draft."),
    ],
)
def test_a_first_answer_states_what_it_covers_and_the_remaining_time(source, status, n, said):
    first = result(classes={"all": of_class(n)})
    found = preview(status, first_result=first, left_s=3.2, done=1000)
    found["trace"]["source"] = source
    shown = display.shown(found, CURRENT)
    assert (shown.first, shown.sentence) == (said, display.sentence(first))
    assert shown.line == f"{said} {shown.sentence}"
    assert shown.progress == "1,000 of 3,740 simulated requests, 4 s left"
    assert display.shown(preview(), CURRENT).first == ""


def test_the_plot_shows_the_differences_of_all_requests_only():
    rows = [metric("ttft_p50_ms", 820.0, 640.0), metric("ttft_p99_ms", 900.0, 400.0), metric("e2e_p50_ms", None, None)]
    svg = display.plot(result(classes=classes(all=rows)), "Draft against v1")
    assert svg.count('<circle class="forest-better"') == svg.count("<svg") == 2
    for text in ("TTFT p50", "−22", 'class="forest-zero"', 'aria-label="Draft against v1"'):
        assert text in svg
    assert display.plot(result(classes={}), "") == ""

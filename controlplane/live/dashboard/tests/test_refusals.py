from controlplane.live.dashboard.frame.totals import words


def test_refusals_of_several_routers_are_added_up_and_the_most_frequent_reason_is_first():
    said = words([{"saturated": 2, "deadline_exceeded": 1}, {"deadline_exceeded": 1, "queue_timeout": 5, "": 1}])
    assert said == "5 queue timeout, 2 queue full, 2 deadline passed, 1 by the engine"


def test_a_reason_without_a_description_is_shown_as_its_code():
    assert words([{"some_new_code": 1}]) == "1 some new code"


def test_without_refusals_nothing_is_reported():
    assert words([{}, {"saturated": 0}]) == ""

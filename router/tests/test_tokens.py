"""Estimate the tokens of a text from what engines report."""

from router.tokenize.ratio import CLIENTS, TokenRatio


def test_the_first_report_is_adopted():
    ratio = TokenRatio()
    ratio.learn(1000, 500)
    assert ratio.estimate(1000) == 500


def test_later_reports_change_the_estimate_gradually():
    ratio = TokenRatio()
    ratio.learn(1000, 500)
    ratio.learn(1000, 250)
    assert 450 < ratio.estimate(1000) < 500


def test_short_prompts_do_not_change_the_estimate():
    ratio = TokenRatio()
    ratio.learn(10, 60)
    assert ratio.estimate(1000) == 250


def test_an_absurd_report_is_bounded():
    ratio = TokenRatio()
    ratio.learn(1000, 10**9)
    assert ratio.estimate(1000) == 2000


def test_an_empty_prompt_has_no_tokens():
    assert TokenRatio().estimate(0) == 0


def taught(client, answers, ratio=None):
    ratio = ratio or TokenRatio()
    for events, tokens in answers:
        ratio.learn_events(client, events, tokens)
    return ratio


def test_events_count_as_several_tokens_if_all_streams_show_it():
    assert 3.9 < taught("a", [(20, 80)] * 300 + [(3, 90)] * 60).per_event <= 4
    ratio = taught("a", [(500, 500), (500, 480), (20, 900)] * 40)  # one third of the streams are tool calls
    assert 1 < ratio.per_event < 2
    assert taught("a", [(100, 0)], ratio).per_event < 1.5


def test_one_clients_streams_with_few_events_cost_no_other_client_more():
    hiding = [(300, 6_800)] * 1_000
    ratio = taught("hides", hiding)
    assert (ratio.in_event("hides") > 20, ratio.in_event("new")) == (True, 1)
    taught("new", [(300, 300)], ratio)
    taught("hides", hiding, ratio)
    assert ratio.in_event("new") == ratio.in_event("hides") == 1
    for client in "abc":
        taught(client, [(20, 80)] * 300, ratio)
    assert 3.9 < ratio.in_event("new") <= 4


def test_clients_whose_streams_were_seen_long_ago_are_forgotten():
    ratio = TokenRatio()
    for number in range(3 * CLIENTS):
        taught(str(number), [(20, 20)] if number < CLIENTS else [(20, 80)] * 300, ratio)
    assert ratio.in_event("new") > 3.9


async def test_a_pool_learns_its_ratio_from_answers(world):
    w = await world(None)
    await w.ask(prompt="x" * 1000)
    assert w.router.pools.get("demo").tokens.per_byte == 0.1

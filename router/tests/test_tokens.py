"""The tokens of a text are estimated by what engines report."""

from router.tokenize.ratio import TokenRatio


def test_the_first_report_is_believed():
    ratio = TokenRatio()
    ratio.learn(1000, 500)
    assert ratio.estimate(1000) == 500


def test_later_reports_move_it_bit_by_bit():
    ratio = TokenRatio()
    ratio.learn(1000, 500)
    ratio.learn(1000, 250)
    assert 450 < ratio.estimate(1000) < 500


def test_short_prompts_teach_nothing():
    ratio = TokenRatio()
    ratio.learn(10, 60)
    assert ratio.estimate(1000) == 250


def test_an_absurd_report_is_bounded():
    ratio = TokenRatio()
    ratio.learn(1000, 10**9)
    assert ratio.estimate(1000) == 2000


def test_an_empty_prompt_has_no_tokens():
    assert TokenRatio().estimate(0) == 0


def test_events_have_several_tokens_where_all_streams_have_them():
    ratio = TokenRatio()
    for events, tokens in [(20, 80)] * 300 + [(3, 90)] * 60:
        ratio.learn_events(events, tokens)
    assert 3.9 < ratio.per_event <= 4
    ratio = TokenRatio()
    for events, tokens in [(500, 500), (500, 480), (20, 900)] * 40:  # a third of them are tool calls
        ratio.learn_events(events, tokens)
    assert 1 < ratio.per_event < 2
    ratio.learn_events(100, 0)
    assert ratio.per_event < 1.5


async def test_a_pool_learns_its_ratio_from_answers(world):
    w = await world(None)
    await w.ask(prompt="x" * 1000)
    assert w.router.pools.get("demo").tokens.per_byte == 0.1

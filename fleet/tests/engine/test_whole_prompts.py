"""Batching without chunked prefill."""

from fleet.engine.engine import Engine
from fleet.engine.law import Law
from fleet.engine.request import EngineRequest
from fleet.engine.scheduler import WHOLE_PROMPTS, Limits

LAW = Law(0.01, 1e-5, 0.0, 0.0, 0.0, 0.0)


def engine(tokens: int = 1_000, sequences: int = 8) -> Engine:
    return Engine(
        LAW, 1_000, Limits(16, sequences, tokens, WHOLE_PROMPTS, async_scheduling=False), api_s=0.0, api_s_per_token=0.0
    )


def request(number: int, prompt: int, output: int = 1) -> EngineRequest:
    return EngineRequest(f"r{number}", prompt, output, ())


def steps(made: Engine) -> list[int]:
    """Return the tokens of each step."""
    found = []
    while (result := made.step()) is not None:
        found.append(result.scheduled)
    return found


def test_a_prompt_that_does_not_fit_waits_for_the_next_step() -> None:
    made = engine()
    for number, prompt in enumerate((600, 300, 200, 800)):
        made.add_request(request(number, prompt), 0.0)
    assert steps(made) == [900, 1000]


def test_a_prompt_longer_than_a_step_runs_alone() -> None:
    made = engine()
    for number, prompt in enumerate((3_000, 10)):
        made.add_request(request(number, prompt), 0.0)
    assert steps(made) == [3_000, 10]


def test_decodes_continue_beside_the_prompts_that_wait() -> None:
    made = engine()
    answers = [request(0, 900, output=3), request(1, 900, output=2)]
    for one in answers:
        made.add_request(one, 0.0)
    assert steps(made)[:3] == [900, 901, 2]
    assert all(one.is_over for one in answers)


def test_a_full_batch_admits_no_prompt() -> None:
    made = engine(sequences=1)
    for number in range(2):
        made.add_request(request(number, 100, output=2), 0.0)
    assert steps(made) == [100, 1, 100, 1]


def test_each_rank_has_its_share_of_a_step() -> None:
    made = Engine(
        LAW, 1_000, Limits(16, 8, 2_000, WHOLE_PROMPTS, async_scheduling=False, ranks=2), api_s=0.0, api_s_per_token=0.0
    )
    for number, prompt in enumerate((600, 700, 500, 300)):
        made.add_request(request(number, prompt), 0.0)
    assert steps(made) == [1_300, 800]

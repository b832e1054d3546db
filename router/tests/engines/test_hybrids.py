"""Real vLLM with windows, recurrent states and speculation: cached tokens of prompts are predicted to within a
block."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from router.tests.engines.hybrids import KINDS, judged, played


@pytest.mark.engines
@pytest.mark.timeout(1200)
def test_prompts_of_models_that_keep_less_than_full_attention_are_predicted_within_a_block() -> None:
    with ThreadPoolExecutor(len(KINDS)) as at_once:
        received = dict(zip(KINDS, at_once.map(played, KINDS), strict=True))
    assert [kind for kind in KINDS if not judged(kind, received[kind])] == []

"""If a strategy refuses every instance, the client gets an error at once and the request is not queued."""

from router.policy.types import Decision


async def test_a_request_that_the_strategy_refuses_is_refused_at_once_with_its_reasons(world, monkeypatch):
    w = await world(None, strategy="mooncake_conductor", admission__refuse_status=503, admission__retry_after_s=7)
    pool = w.router.pools.get("demo")

    def refuse(*_):
        reasons = ("least time to the first token: 40.00 s", "more than the 30 s allowed")
        return Decision("", "warm", "colocated", "mooncake_conductor", "over_ttft_limit", reasons, 0, 9, ())

    monkeypatch.setattr(pool, "decide", refuse)
    answer = await w.ask()
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "over_ttft_limit")
    assert answer.headers["retry-after"] == "7"
    assert "least time to the first token: 40.00 s; more than the 30 s allowed" in answer.json()["error"]["message"]
    assert len(pool.queue) == 0
    receipt = await w.receipt(answer)
    assert (receipt["outcome"], receipt["instance"], receipt["rule"]) == ("refused", None, "over_ttft_limit")

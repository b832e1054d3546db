"""Where the KV of an answer lies is for engines alone."""

from typing import Any

import pytest

from router.serving.kv_location import LocationFilter
from router.tests.engine import reply, stream
from router.tests.flows.test_prefill_answers import PROMPT, offloading

WHERE = '"kv_transfer_params":{"remote_host":"10.0.0.7","remote_block_ids":[[1,2],[3]]}'
TEXT = '"text":"\\"kv_transfer_params\\":{} is text"'
ANSWER = f'{{"id":"a",{WHERE},"choices":[{{{TEXT}}}]}}'
BARE = f'{{"id":"a","kv_transfer_params":null,"choices":[{{{TEXT}}}]}}'


@pytest.mark.parametrize("size", [1, 7, 21, 1000])
@pytest.mark.parametrize("before", ["", '{"id":"kv_transfer_param'])
def test_a_location_is_left_out_wherever_the_bytes_are_parted(size: int, before: str) -> None:
    given, located = (before + ANSWER).encode(), LocationFilter()
    parts = [located.feed(given[at : at + size]) for at in range(0, len(given), size)]
    assert (b"".join(parts) + located.finish()).decode() == before + BARE


@pytest.mark.parametrize("size", [1, 7, 21, 1000])
@pytest.mark.parametrize("leaves", [False, True])
def test_tokens_are_kept_wherever_the_bytes_are_parted_and_left_to_a_client_that_asks(size: int, leaves: bool) -> None:
    ids = '"prompt_token_ids":[1,2],"choices":[{"token_ids":[3]},{"token_ids": [4,5]}]'
    given = (ANSWER[:-1] + "," + ids + "}").encode()
    told = LocationFilter(ids=True, leaves_ids=leaves)
    parts = [told.feed(given[at : at + size]) for at in range(0, len(given), size)]
    bare = '"prompt_token_ids":null,"choices":[{"token_ids":null},{"token_ids": null}]'
    assert (b"".join(parts) + told.finish()).decode() == BARE[:-1] + "," + (ids if leaves else bare) + "}"
    assert (told.prompt_ids, told.answer_ids) == (b"[1,2]", [b"[3]", b"[4,5]"])
    assert told.where.startswith(b'{"remote_host"')


def test_an_answer_that_is_cut_off_in_its_location_ends_there() -> None:
    located = LocationFilter()
    assert located.feed(ANSWER[:40].encode()) + located.finish() == ANSWER[:40].encode()


@pytest.mark.parametrize("streams", [False, True])
async def test_a_decoder_that_lends_its_blocks_tells_no_client_where_they_are(world: Any, streams: bool) -> None:
    params = {"do_remote_prefill": True, "remote_host": "10.0.0.7"}
    w = await offloading(world, "nixl", reply({"choices": [{"text": "x"}], "kv_transfer_params": params}))
    events = [f"data: {line}\n\n".encode() for line in (BARE, ANSWER, "[DONE]")]
    w.engines[1].behaviour = stream(events) if streams else reply({"id": "a", "choices": [{"text": "x"}], **located()})
    response = await w.ask(prompt=PROMPT, stream=streams)
    assert (response.status_code, response.headers["x-weir-flow"]) == (200, "offload_nixl")
    assert "10.0.0.7" in w.engines[1].received[-1].body.decode()
    assert '"kv_transfer_params":null' in response.text.replace(" ", "")
    assert ("10.0.0.7" in response.text, response.text.endswith("[DONE]\n\n")) == (False, streams)


def located() -> dict[str, object]:
    return {"kv_transfer_params": {"remote_host": "10.0.0.7", "remote_port": 5600}}

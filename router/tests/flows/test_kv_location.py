"""The location of an answer's KV is meant only for engines and never reaches a client."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from router.pool.load.lent import LONGEST
from router.serving.answer import kv_location, relay
from router.serving.answer.kv_location import LocationFilter
from router.tests.engine import reply, stream
from router.tests.flows.test_prefill_answers import PROMPT, offloading

WHERE = '"kv_transfer_params":{"remote_host":"10.0.0.7","remote_block_ids":[[1,2],[3]]}'
TEXT = '"text":"\\"kv_transfer_params\\":{} is text"'
ANSWER = f'{{"id":"a",{WHERE},"choices":[{{{TEXT}}}]}}'
BARE = f'{{"id":"a","kv_transfer_params":null,"choices":[{{{TEXT}}}]}}'


@pytest.mark.parametrize("size", [1, 7, 21, 1000])
@pytest.mark.parametrize("before", ["", '{"id":"kv_transfer_param'])
def test_a_location_is_removed_wherever_the_bytes_are_split(size: int, before: str) -> None:
    given, located = (before + ANSWER).encode(), LocationFilter()
    parts = [located.feed(given[at : at + size]) for at in range(0, len(given), size)]
    assert (b"".join(parts) + located.finish()).decode() == before + BARE


@pytest.mark.parametrize("size", [1, 7, 21, 1000])
@pytest.mark.parametrize("leaves", [False, True])
def test_tokens_are_removed_wherever_the_bytes_are_split_but_kept_for_a_client_that_asks(
    size: int, leaves: bool
) -> None:
    ids = '"prompt_token_ids":[1,2],"choices":[{"token_ids":[3]},{"token_ids": [4,5]}]'
    given = (ANSWER[:-1] + "," + ids + "}").encode()
    told = LocationFilter(ids=True, leaves_ids=leaves)
    parts = [told.feed(given[at : at + size]) for at in range(0, len(given), size)]
    bare = '"prompt_token_ids":null,"choices":[{"token_ids":null},{"token_ids": null}]'
    assert (b"".join(parts) + told.finish()).decode() == BARE[:-1] + "," + (ids if leaves else bare) + "}"
    assert (told.prompt_ids, told.answer_ids) == (b"[1,2]", [b"[3]", b"[4,5]"])
    assert told.where.startswith(b'{"remote_host"')


def test_an_answer_cut_off_within_its_location_ends_before_it() -> None:
    located = LocationFilter()
    assert located.feed(ANSWER[:40].encode()) + located.finish() == b'{"id":"a","kv_transfer_params":null'
    located = LocationFilter()
    assert located.feed(ANSWER[:20].encode()) + located.finish() == ANSWER[:20].encode()


class Counted:
    """A pattern that counts the bytes that it searches."""

    def __init__(self, pattern: re.Pattern[bytes]) -> None:
        self.pattern, self.bytes = pattern, 0

    def finditer(self, data: bytes, at: int) -> Iterator[re.Match[bytes]]:
        self.bytes += len(data) - at
        return self.pattern.finditer(data, at)


@pytest.mark.parametrize("size", [1, 4096])
def test_each_byte_of_a_value_is_searched_once(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    counted = Counted(kv_location._BRACKETS[b"["])
    monkeypatch.setitem(kv_location._BRACKETS, b"[", counted)
    told, ids = LocationFilter(ids=True), json.dumps(list(range(20_000))).encode()
    assert told.feed(b'{"prompt_token_ids":') == b"{"
    for at in range(0, len(ids), size):
        assert told.feed(ids[at : at + size]) == (b"" if at else b'"prompt_token_ids":null')
    assert (counted.bytes, told.prompt_ids) == (len(ids), ids)
    assert told.feed(b"}") + told.finish() == b"}"


@pytest.mark.parametrize("leaves", [False, True])
def test_tokens_beyond_the_kept_limit_reach_no_client_that_did_not_ask_and_are_not_learned(leaves: bool) -> None:
    ids = b"[" + b"123456, " * (LONGEST // 8) + b"1]"
    given = b'{"prompt_token_ids":' + ids + b',"token_ids":[4],' + WHERE.encode() + b"}"
    told = LocationFilter(ids=True, leaves_ids=leaves)
    passed = b"".join(told.feed(given[at : at + 65_536]) for at in range(0, len(given), 65_536)) + told.finish()
    told_ids, answer = (ids, b"[4]") if leaves else (b"null", b"null")
    assert passed == b'{"prompt_token_ids":' + told_ids + b',"token_ids":' + answer + b',"kv_transfer_params":null}'
    assert (told.where, told.prompt_ids, told.answer_ids) == (b"", b"", [])


@pytest.mark.parametrize("streams", [False, True])
async def test_a_decoder_that_lends_its_blocks_reveals_their_location_to_no_client(
    world: Any, monkeypatch: pytest.MonkeyPatch, streams: bool
) -> None:
    noted, note = [], relay._Relay._note

    def noting(relayed: Any, data: bytes) -> None:
        noted.append(data)
        note(relayed, data)

    monkeypatch.setattr(relay._Relay, "_note", noting)
    params = {"do_remote_prefill": True, "remote_host": "10.0.0.7"}
    w = await offloading(world, "nixl", reply({"choices": [{"text": "x"}], "kv_transfer_params": params}))
    events = [f"data: {line}\n\n".encode() for line in (BARE, ANSWER, "[DONE]")]
    w.engines[1].behaviour = stream(events) if streams else reply({"id": "a", "choices": [{"text": "x"}], **located()})
    response = await w.ask(prompt=PROMPT, stream=streams)
    assert (response.status_code, response.headers["x-weir-flow"]) == (200, "offload_nixl")
    assert "10.0.0.7" in w.engines[1].received[-1].body.decode()
    assert '"kv_transfer_params":null' in response.text.replace(" ", "")
    assert noted
    assert b"10.0.0.7" not in b"".join(noted)  # the readers of the answer's end do not see the location either
    assert ("10.0.0.7" in response.text, response.text.endswith("[DONE]\n\n")) == (False, streams)


def located() -> dict[str, object]:
    return {"kv_transfer_params": {"remote_host": "10.0.0.7", "remote_port": 5600}}

"""Calls for files and batches by the unmodified `openai` package, as installed with the real engines."""

import json
import subprocess
from typing import Any

import pytest

from controlplane.tests.real_up import CODE
from controlplane.traffic.batches.models import StoredFile
from controlplane.traffic.batches.tests.test_batches import Caller, StandIn, alice, router, run  # noqa: F401 - fixtures
from controlplane.traffic.batches.tests.test_lines import CHAT, line

pytestmark = [pytest.mark.engines, pytest.mark.django_db(transaction=True)]

BEFORE = """
import io, sys, openai
client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key=sys.argv[2], max_retries=0)
lines = sys.stdin.buffer.read()
file = client.files.create(file=("in.jsonl", io.BytesIO(lines)), purpose="batch")
assert client.files.retrieve(file.id).bytes == len(lines) == file.bytes
assert client.files.content(file.id).read() == lines
assert [one.id for one in client.files.list(purpose="batch")] == [file.id]
batch = client.batches.create(
    input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"of": "ci"}
)
assert batch.status == "validating" and batch.metadata == {"of": "ci"}, batch
unwanted = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="1h")
assert client.batches.cancel(unwanted.id).status in ("cancelling", "cancelled")
assert [one.id for one in client.batches.list(limit=1)] == [unwanted.id, batch.id]  # page by page
spare = client.files.create(file=("spare.jsonl", io.BytesIO(lines)), purpose="batch")
assert client.files.delete(spare.id).deleted
try:
    client.files.retrieve(spare.id)
except openai.NotFoundError as refused:
    assert refused.code == "not_found"
print(batch.id)
"""
AFTER = """
import json, sys, openai
client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key=sys.argv[2], max_retries=0)
batch = client.batches.retrieve(sys.stdin.read().strip())
assert (batch.status, batch.request_counts.completed, batch.request_counts.total) == ("completed", 2, 2), batch
assert batch.usage.total_tokens == 6
lines = client.files.content(batch.output_file_id).text.splitlines()
print(*sorted(json.loads(one)["custom_id"] for one in lines))
"""


def said(program: str, url: str, secret: str, given: bytes) -> str:
    argv: list[Any] = [CODE / ".engines/bin/python", "-c", program, url, secret]
    done = subprocess.run(argv, input=given, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().strip()


def test_files_and_batches_calls_work_unchanged(live_server: Any, alice: Caller, router: StandIn) -> None:  # noqa: F811
    lines = b"".join(line(name, body={"model": "m"}) for name in ("a", "b"))
    name = said(BEFORE, live_server.url, alice.secret, lines)
    assert StoredFile.objects.count() == 1
    run(name)
    assert said(AFTER, live_server.url, alice.secret, name.encode()) == "a b"
    assert [body["model"] for _, body in router.asked] == ["m", "m"]
    assert json.loads(lines.splitlines()[0])["url"] == CHAT

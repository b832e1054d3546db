"""The sim kind: one process that behaves like a vLLM server, with a model of the engine in place of the GPU.

    app       HTTP in and out; formats/ holds one file per API shape
    service   asks become requests of the engine, its tokens become answers
    driver    the engine's virtual time against the wall clock
    metrics   /metrics under vLLM's names; kv_events: vLLM's KV events over ZMQ
    tokens    4 bytes are one token; answers: what is said is a function of seed and prompt

Chat prompts are rendered as `<|role|>\\ncontent\\n` per message and `<|assistant|>\\n`; tools are not rendered.
"""

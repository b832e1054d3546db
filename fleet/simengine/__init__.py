"""The simulated engine: a process that behaves like a vLLM server, with a model of the engine instead of a GPU.

    http/        the ASGI application; formats/ has one file per API
    service      starts engine requests and delivers their tokens
    driver       runs the engine's virtual time by the wall clock
    kv/          KV transfers between engines; registration: as a worker in etcd
    metrics      /metrics with vLLM's names; kv_events: vLLM's KV events over ZMQ
    tokens       4 bytes are one token; generation: the text as a function of seed and prompt

Chat prompts are rendered as `<|role|>\\ncontent\\n` per message and `<|assistant|>\\n`; tools are not rendered.
"""

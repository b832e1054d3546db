"""How simulated engines transfer KV blocks: the protocols of vLLM, Neuron and TensorRT-LLM, with realistic durations.

connector   interface of every connector
choose      the connector that a command line names
peers       engine to engine: blocks are held until another engine pulls them (nixl, mooncake_p2p, neuron, trtllm)
wire        messages between engines, and to the store
dialects    the request and response parameters of each peer connector
pooled      a store that all engines share (mooncake_store)
"""

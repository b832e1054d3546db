"""Transfers of KV blocks by simulated engines: the protocols of vLLM, Neuron, TensorRT-LLM and SGLang, with realistic
durations.

    connector   interface of every connector
    choose      the connector that a command line names
    peers       engine to engine: blocks are held until another engine pulls them (all but mooncake_store)
    wire        messages between engines, and to the store
    dialects    the request and response parameters of each peer connector
    pooled      a store that all engines share (mooncake_store)
"""

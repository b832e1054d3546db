"""Servers of a mixture of experts in DWDP (distributed weight data parallelism) and DEP, in the context phase. Pure.

DEP: attention in data parallel, experts spread over N GPUs, two all-to-alls a layer at which all wait for the slowest.
DWDP: each GPU holds L of the E experts and copies the others of the next layer while it computes this one.

Sources: [P] arXiv 2604.01621; [N] public notes on it; [T] TensorRT-LLM pull requests 12136 and 12974; [S] SGLang 29778.
Bandwidths are one way. Times are in ms, per MoE layer unless a name says otherwise.
"""

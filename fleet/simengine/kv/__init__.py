"""How simulated engines hand KV blocks to one another, in vLLM's words and with the time that it takes.

connector   what a request asks for (Wish), and what every way of moving blocks can do
link        how long a transfer takes
peers       blocks held for another engine and blocks pulled from one: nixl, mooncake_p2p, neuron
ways        the three dialects of `peers`: what they read in a request and what they answer
pooled      blocks in a store that all engines share: mooncake_store
"""

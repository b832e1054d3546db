"""KV tiers below HBM as closed forms and one queue: loading, memory, money and wear, and the published load of LEval.

[P n]: arXiv 2605.03375 (Tutti), figure or table n; [fit n]: solved from figure n; [a]: assumed.
"""

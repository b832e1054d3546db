"""DWDP against DEP: number of GPUs, published figures, settings. The servers are in fleet/engine/dwdp. Pure.

Letters of sources and units are the same as there.
"""

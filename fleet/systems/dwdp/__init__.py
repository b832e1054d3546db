"""DWDP against DEP: how many GPUs, the published figures, the settings. The servers are in fleet/engine/dwdp. Pure.

Sources by letter, and units: as there.
"""

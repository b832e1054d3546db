"""Connections to other processes: allowed addresses, name resolution, HTTP clients, retry times."""

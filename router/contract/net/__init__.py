"""Connections to other processes: which addresses are allowed, names resolved once, HTTP clients, when to come back."""

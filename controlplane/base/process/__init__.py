"""The parts of a control plane process that need no Django: its environment, log, private files and Redis server."""

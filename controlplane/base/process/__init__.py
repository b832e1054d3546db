"""Parts of a process of the control plane without Django: its environment, log, private files and Redis server."""

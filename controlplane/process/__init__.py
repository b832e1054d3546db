"""What a process of the control plane has before Django: its environment, log, private files and Redis server."""

"""`manage.py up`: every process of Weir on one machine, started in order, watched, and stopped in order.
plan.py lists the processes (pure), preflight.py checks the machine before the first start, child.py is one process,
ready.py checks whether it serves, supervisor.py runs them all; weir.py prepares the database and the fleet.

    CannotStart
    ├── from preflight: a port in use, a folder that cannot be written, another `up` on the same folder
    └── a process that ended, or made no progress for long, during the start
"""


class CannotStart(Exception):
    """Weir cannot be started; the message is the line shown to the operator."""

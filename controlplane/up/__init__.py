"""`manage.py up`: every process of Weir on one machine, started in order, watched, and stopped in order.

plan.py says which processes there are (pure); preflight.py refuses what cannot work before anything is started;
child.py is one process, ready.py how to see that it serves; supervisor.py brings them together.

CannotStart
├── preflight's findings: a port in use, a folder that cannot be written, another `up` on the same folder
└── a process that ended or kept silent while it was being started
"""


class CannotStart(Exception):
    """Weir cannot be brought up; the message is the one line that the operator gets."""

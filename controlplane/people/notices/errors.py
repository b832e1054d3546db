"""The error of a notice that cannot be sent now; its message is stored as the outcome."""


class Unsendable(Exception):
    """The receiver refused the notice, did not answer, or must not be contacted. The message never contains the
    channel's URL."""

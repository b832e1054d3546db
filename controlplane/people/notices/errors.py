"""The error of a notice that cannot be sent now; its message is kept as the outcome."""


class Unsendable(Exception):
    """The receiver refused, did not answer, or must not be reached. The message never holds the channel's URL."""

"""Errors of channels and notices.

InvalidInput   a field of a channel or a note is refused; `.problem` has path, value and what is allowed
Unsendable     a notice cannot be sent now; the message is kept as its outcome
"""

from router.contract.problem import Problem


class InvalidInput(ValueError):
    def __init__(self, path: str, value: object, message: str, allowed: str = "") -> None:
        self.problem = Problem(path, value, message, allowed)
        super().__init__(self.problem.text)


class Unsendable(Exception):
    """The receiver refused, did not answer, or must not be reached. The message never holds the channel's URL."""

"""Weir from a shell or a pipeline. One file for Python 3.9 or newer, without dependencies.
WEIR_URL names the control plane (https://weir.example), WEIR_TOKEN holds an API token. WEIR_REASON is used by commands
without --reason.
Exit status: 0 pass, 1 fail, 2 inconclusive, 3 error.
"""

VERSION = "unknown"  # set by the control plane that serves this command

"""The folder, or the archive that the control plane makes of it, as a command."""

import signal
import sys

from .main import main

# A shell without job control starts `cmd &` with SIGINT ignored; SIGTERM ends a wait in any case, as Ctrl-C does.
signal.signal(signal.SIGTERM, signal.default_int_handler)
sys.exit(main())

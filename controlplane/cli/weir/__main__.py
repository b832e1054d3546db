"""The folder, or the archive that the control plane makes of it, as a command."""

import sys

from .main import main

sys.exit(main())

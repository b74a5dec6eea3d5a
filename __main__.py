"""`python -m ringpost` is the `ringpost` command."""

import sys

from .actors.cli import main

sys.exit(main())

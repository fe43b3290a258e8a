"""`python -m eductor`."""

import sys

from eductor.cli import main

sys.exit(main())

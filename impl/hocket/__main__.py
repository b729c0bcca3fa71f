"""`python -m hocket` is the `hocket` command."""

import sys

from hocket.cli.main import main

sys.exit(main())

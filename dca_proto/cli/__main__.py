"""Runs the `dca` command as `python -m dca_proto.cli`."""

import sys

from dca_proto.cli import main

sys.exit(main())

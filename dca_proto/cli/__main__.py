"""`python -m dca_proto.cli`: the `dca` command where no script of that name is on the path."""

import sys

from dca_proto.cli import main

sys.exit(main())

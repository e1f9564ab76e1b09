"""`python -m dca_proto CONFIG` runs one actor without the command line's libraries."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import NoReturn

from dca_proto import version_line
from dca_proto.errors import DcaError

_DESCRIPTION = "Run one actor - a client, a Compute node or a trainer - from its TOML file."
_EXAMPLES = """examples:
  python -m dca_proto client.toml             a client, until Ctrl-C
  python -m dca_proto client.toml --log-json  the same, with logs for programs
  python -m dca_proto trainer.toml            one round, as its file describes it
"""


class _Parser(argparse.ArgumentParser):
    """Reports a wrong call in one line, as `dca` does."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"dca: {message}; see `{self.prog} --help`\n")


class _Version(argparse.Action):
    """Prints the versions of the package and of the protocol."""

    def __call__(self, parser: argparse.ArgumentParser, *arguments: object) -> NoReturn:
        print(version_line())
        parser.exit()


def main() -> int:
    """Parse the arguments, run the actor, and report an error in one line."""
    parser = _Parser(
        prog="python -m dca_proto",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("config", type=Path, help="the actor's TOML file")
    parser.add_argument("--log-json", action="store_true", help="logs as one JSON object per line")
    parser.add_argument("--verbose", action="store_true", help="also log every event of every single client")
    parser.add_argument("--debug", action="store_true", help="show a traceback with an error")
    parser.add_argument("--version", action=_Version, nargs=0, help="show the versions, and exit")
    given = parser.parse_args()
    from dca_proto.runtime import device  # imported late, so that --help is fast

    try:
        return device.run(given.config, json_logs=given.log_json, verbose=given.verbose)
    except KeyboardInterrupt:
        return 130
    except DcaError as error:
        if given.debug:
            raise
        sys.stderr.write(f"dca: {error}\n")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())

"""Results of rounds and runs as records: `--json` writes them, and `dca_proto.report` shows them."""

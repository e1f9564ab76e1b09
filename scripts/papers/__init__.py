"""What only the papers' experiments need: their data, their algorithms as published, tables and figures."""

"""The experiments of three papers: their data, their algorithms as published, tables and figures."""

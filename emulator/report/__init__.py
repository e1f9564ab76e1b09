"""The tables and pages of emulations, sweeps, coalitions, audits and scaling, made of the parts of `dca_proto.report`.

Each module turns the record of one kind into a `Page`; terminals show the same tables.
"""

"""What rounds released, as models take it: sums and LDP reports, checked, with the noise that they carry.

terms       whether what reports state of themselves can be so
reports     reports and sums in the shape of the models
"""

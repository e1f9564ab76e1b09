"""Released sums and LDP reports, checked and with the noise that they carry, in the form that models take.

terms       checks that the stated terms of reports are consistent
reports     reports and sums in the shape of the models
"""

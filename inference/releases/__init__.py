"""Released sums and LDP reports in the form that models take: checked, and with their noise.

terms       checks that the stated terms of reports are consistent
reports     reports and sums in the shape of the models
"""

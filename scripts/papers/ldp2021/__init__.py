"""Experiments of the LDP paper (Kulkarni, Jälkö, Kaski and Honkela 2021), and `trust`, which goes beyond it."""

"""Experiments on distributed Bayesian regression (Alparslan, Yıldırım and Birbil, ICML 2023), and beyond it."""

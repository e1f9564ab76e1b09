"""Many columns from one sum: a table of their figures, overall or by a public group."""

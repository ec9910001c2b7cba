"""Measures plans on a GPU, for one call or on random problems, and fits the choice among plans to the times."""

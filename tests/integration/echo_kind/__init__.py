"""A kind of job that the farm does not have: it gives back its text."""

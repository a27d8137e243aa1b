"""Counts of farm/ and docs/, and the rules of the source tree that no linter checks."""

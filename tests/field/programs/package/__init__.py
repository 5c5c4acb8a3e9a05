"""A package started with -m."""

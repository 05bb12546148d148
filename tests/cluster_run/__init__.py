"""Clusters of real processes, what is done to them, and whether their clients' histories are consistent."""

"""Runs that begin with an adapter from elsewhere, forks of kept runs, and the champion as an opponent."""

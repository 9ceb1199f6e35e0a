"""One copy of the base weights for engine and trainer."""

"""Tasks of other packages: an adapter each, by the name before the colon. packages.py chooses among them."""

"""Add-ons: a folder for each feature beside the core, which may be opened, changed or deleted."""

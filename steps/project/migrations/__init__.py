"""Revisions of the ledger's schema, which Alembic applies: steps/project/revisions.py says how."""

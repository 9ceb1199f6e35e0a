"""Decisions say who made them. Those from before stay without a name."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision, down_revision = "1.1", "1.0"


def upgrade() -> None:
    op.add_column("decisions", sa.Column("decided_by", sa.String))

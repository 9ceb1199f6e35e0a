"""The tables from before there were revisions. A database of that time has any of them; those stay as they are."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision, down_revision = "1.0", None


def upgrade() -> None:
    moment = sa.DateTime(timezone=True)
    op.create_table(
        "replies",
        sa.Column("key", sa.String(64), primary_key=True),
        sa.Column("model", sa.String, nullable=False),
        sa.Column("request", sa.JSON, nullable=False),
        sa.Column("reply", sa.JSON, nullable=False),
        sa.Column("input_tokens", sa.Integer, nullable=False),
        sa.Column("output_tokens", sa.Integer, nullable=False),
        sa.Column("cost", sa.Float, nullable=False),
        sa.Column("latency_seconds", sa.Float, nullable=False),
        sa.Column("retries", sa.Integer, nullable=False),
        sa.Column("created", moment, nullable=False),
        if_not_exists=True,
    )
    op.create_table(
        "nodes",
        sa.Column("kind", sa.String, primary_key=True),
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("data", sa.JSON, nullable=False),
        if_not_exists=True,
    )
    op.create_table(
        "edges",
        sa.Column("parent_kind", sa.String, primary_key=True),
        sa.Column("parent_id", sa.String, primary_key=True),
        sa.Column("role", sa.String, primary_key=True),
        sa.Column("child_kind", sa.String, primary_key=True),
        sa.Column("child_id", sa.String, primary_key=True),
        sa.Column("data", sa.JSON, nullable=False),
        if_not_exists=True,
    )
    op.create_index("edges_by_child", "edges", ["child_kind", "child_id"], if_not_exists=True)
    op.create_table(
        "decisions",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("event", sa.String, nullable=False),
        sa.Column("model", sa.String, nullable=False),
        sa.Column("version", sa.String, nullable=False),
        sa.Column("adapter", sa.String),
        sa.Column("champion", sa.String),
        sa.Column("champion_adapter", sa.String),
        sa.Column("why", sa.String, nullable=False),
        sa.Column("verdict", sa.String),
        sa.Column("evidence", sa.JSON),
        sa.Column("created", moment, nullable=False),
        if_not_exists=True,
    )
    op.create_table(
        "looks",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("model", sa.String, nullable=False),
        sa.Column("scenarios", sa.String, nullable=False),
        sa.Column("ids", sa.JSON),
        sa.Column("challenger", sa.String, nullable=False),
        sa.Column("against", sa.String, nullable=False),
        sa.Column("created", moment, nullable=False),
        sa.UniqueConstraint("model", "scenarios", "challenger", "against"),
        if_not_exists=True,
    )

-- A ledger as the code from before revisions made it on PostgreSQL: its own CREATE statements, and rows in every table. For SQLite,
-- SERIAL is INTEGER and TIMESTAMP WITH TIME ZONE is DATETIME (tests/project/test_migrations.py).
CREATE TABLE IF NOT EXISTS replies (
	key VARCHAR(64) NOT NULL,
	model VARCHAR NOT NULL,
	request JSON NOT NULL,
	reply JSON NOT NULL,
	input_tokens INTEGER NOT NULL,
	output_tokens INTEGER NOT NULL,
	cost FLOAT NOT NULL,
	latency_seconds FLOAT NOT NULL,
	retries INTEGER NOT NULL,
	created TIMESTAMP WITH TIME ZONE NOT NULL,
	PRIMARY KEY (key)
);
INSERT INTO replies VALUES ('k1', 'judge', '{"messages": ["네, مرحبا"]}', '{"message": {"role": "assistant", "content": "7"}}', 3, 5, 0.25, 0.5, 1, '2026-11-20 10:00:00');
INSERT INTO replies VALUES ('k2', 'judge', '{"messages": [""]}', '{"message": {"role": "assistant", "content": null}}', 0, 0, 0.0, 1e-05, 0, '2026-11-20 10:00:01');
CREATE TABLE IF NOT EXISTS nodes (
	kind VARCHAR NOT NULL,
	id VARCHAR NOT NULL,
	data JSON NOT NULL,
	PRIMARY KEY (kind, id)
);
INSERT INTO nodes VALUES ('scenario', 's1', '{"split": "train"}');
INSERT INTO nodes VALUES ('run', 'r1', '{"task": "toy", "seed": 3}');
CREATE TABLE IF NOT EXISTS edges (
	parent_kind VARCHAR NOT NULL,
	parent_id VARCHAR NOT NULL,
	role VARCHAR NOT NULL,
	child_kind VARCHAR NOT NULL,
	child_id VARCHAR NOT NULL,
	data JSON NOT NULL,
	PRIMARY KEY (parent_kind, parent_id, role, child_kind, child_id)
);
CREATE INDEX IF NOT EXISTS edges_by_child ON edges (child_kind, child_id);
INSERT INTO edges VALUES ('scenario', 's1', 'drawn', 'run', 'r1', '{}');
CREATE TABLE IF NOT EXISTS decisions (
	id SERIAL NOT NULL,
	event VARCHAR NOT NULL,
	model VARCHAR NOT NULL,
	version VARCHAR NOT NULL,
	adapter VARCHAR,
	champion VARCHAR,
	champion_adapter VARCHAR,
	why VARCHAR NOT NULL,
	verdict VARCHAR,
	evidence JSON,
	created TIMESTAMP WITH TIME ZONE NOT NULL,
	PRIMARY KEY (id)
);
INSERT INTO decisions (event, model, version, adapter, champion, champion_adapter, why, verdict, evidence, created) VALUES ('refusal', 'toy', '2', 'a2', '1', 'a1', 'no better', 'v1', '{"verdict": {"n": 30, "scenarios": "h1", "against": "champion", "sides": {"challenger": {"adapter_hash": "a2"}, "champion": {"adapter_hash": "a1"}}}}', '2026-11-20 11:00:00');
INSERT INTO decisions (event, model, version, adapter, champion, champion_adapter, why, verdict, evidence, created) VALUES ('rollback', 'toy', '1', 'a1', '3', 'a3', 'it''s slow', NULL, NULL, '2026-11-20 12:00:00');
CREATE TABLE IF NOT EXISTS looks (
	id SERIAL NOT NULL,
	model VARCHAR NOT NULL,
	scenarios VARCHAR NOT NULL,
	ids JSON,
	challenger VARCHAR NOT NULL,
	against VARCHAR NOT NULL,
	created TIMESTAMP WITH TIME ZONE NOT NULL,
	PRIMARY KEY (id),
	UNIQUE (model, scenarios, challenger, against)
);
INSERT INTO looks (model, scenarios, ids, challenger, against, created) VALUES ('toy', 'h1', '["t1", "t2"]', 'a2', 'a1', '2026-11-20 11:00:00');

"""A policy at work: serving, capture, trials, traces, ingestion and the nightly flywheel."""

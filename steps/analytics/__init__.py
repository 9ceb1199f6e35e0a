"""Questions to stored runs: success, errors, waste, baselines, transcripts."""

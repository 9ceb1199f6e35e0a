"""What tasks share, under the contract (environments/base.py) and beside it: tools, transcripts, scenarios, players, games
of two sides, agents of one's own, several tasks at once, the sandbox; programs of others, and requests over HTTP."""

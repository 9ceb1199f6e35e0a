"""The policy: its chat template, its adapter's hash, loading it, and the machine it runs on."""

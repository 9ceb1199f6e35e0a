"""The policy: its chat template, its adapter's name, loading it, and the machine it runs on."""

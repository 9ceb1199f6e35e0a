ledger: install  ## rebuild the ledger's index of run/ (stored answers of models stay)
	@$(RUN) python -m addons.lineage rebuild

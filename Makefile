# Everything happens in a virtual environment inside the tree.
#   make test PYTHON=python3.12     another interpreter for a new environment
#   make test VENV=/tmp/venv        another place for it
#   make test PYTEST_ARGS="-k ring" a part of the tests
#   make test TEST_JOBS=0           one test at a time, in one process
#   make serve SERVE_ARGS="--port 9000 --max-model-len 4096"
PYTHON ?= python3
VENV ?= .venv
PROMPT ?= What is the capital of France? Name two things to see there.
PYTEST_ARGS ?=
# Many tests wait for processes, and leave a core to others meanwhile. Those of a file stay together, for its fixtures.
TEST_JOBS ?= 2
SERVE_ARGS ?=

BIN := $(VENV)/bin
BIN_FROM_BUILD := $(if $(filter /%,$(VENV)),$(BIN),../$(BIN))
# -P keeps the tree off sys.path: its `sched` would hide the standard library's.
PIP := $(BIN)/python -P -m pip --quiet --disable-pip-version-check --no-input
INSTALL := $(PIP) install --root-user-action=ignore --no-warn-script-location
# mypy looks into the directory it runs in first, so it runs where only the built package can be found.
MYPY := cd build && MYPYPATH=wheel $(BIN_FROM_BUILD)/mypy --config-file ../pyproject.toml --cache-dir ../.mypy_cache
PYTEST := $(BIN)/pytest -q --dist loadfile -n $(TEST_JOBS)
CACHES := .pytest_cache .mypy_cache .ruff_cache .hypothesis

.DEFAULT_GOAL := help
.PHONY: help demo serve test test-long check format clean

# $(call step,title,command,advice): the command, with a title before it and advice when it fails.
define step
@echo "== $(1)"
@$(2) || { echo "== failed: $(1). $(3)" >&2; exit 1; }
endef

help:
	@echo "make demo       install, then stream an answer of the demo model (fetched once) through the server"
	@echo "make serve      install, then serve OpenAI's API at http://127.0.0.1:8000; options in SERVE_ARGS"
	@echo "make test       install, then run the tests with reduced counts"
	@echo "make test-long  the tests with full counts as well"
	@echo "make check      format, lint, types over the built wheel, structure of the tree"
	@echo "make format     format the code and apply the linter's safe fixes"
	@echo "make clean      remove build outputs and caches ($(VENV) stays)"

# The server writes its line into a pipe with a name, so that this shell has its process id as well as its output. Both
# commands run in the background: a shell that waits can be interrupted, and then stops what it started.
define DEMO
fail() { echo "== failed: $$1 The lines above name the cause; the first run needs a network to fetch the model." >&2; exit 1; }
pipes=$$(mktemp -d) && mkfifo "$$pipes/line" || exit 1
trap 'trap "" HUP INT TERM; kill $$server $$chat 2>/dev/null; wait; rm -rf "$$pipes"' EXIT
trap 'exit 130' HUP INT TERM
echo "== ringpost serve"
$(BIN)/ringpost serve --port 0 $(SERVE_ARGS) >"$$pipes/line" & server=$$!
exec 3<"$$pipes/line"
read -r line <&3 || fail "the server did not start."
echo "$$line"
url=$${line##* at } && url=$${url%% *}
echo "== ringpost chat --url $$url \"$$PROMPT\""
$(BIN)/ringpost chat --url "$$url" --temperature 0 -- "$$PROMPT" & chat=$$!
wait "$$chat" || fail "no answer."
echo "== next: make serve, then the curl lines of README.md; or $(BIN)/ringpost chat"
endef
export DEMO PROMPT

demo: $(VENV)/.installed
	@eval "$$DEMO"

serve: $(VENV)/.installed
	@exec $(BIN)/ringpost serve $(SERVE_ARGS)

test: $(VENV)/.installed-test
	$(call step,tests,$(PYTEST) -m "not long" $(PYTEST_ARGS),One test alone: $(BIN)/pytest FILE::NAME)

test-long: $(VENV)/.installed-test
	$(call step,tests with full counts,$(PYTEST) -m "long or not long" $(PYTEST_ARGS),One test alone: $(BIN)/pytest FILE::NAME)

check: $(VENV)/.installed-test
	$(call step,lint,$(BIN)/ruff check --quiet .,make format fixes what can be fixed by itself.)
	$(call step,format,$(BIN)/ruff format --check --quiet .,make format puts it right.)
	@# A stale build/lib would hide that a package is missing from the list in pyproject.toml.
	@rm -rf build/lib build/bdist.* build/wheel *.egg-info
	$(call step,wheel,$(INSTALL) --no-deps --no-build-isolation --no-compile --target build/wheel .,pyproject.toml lists the packages.)
	$(call step,types of the package,$(MYPY) -p ringpost,A module that is not found may be missing from the packages in pyproject.toml.)
	@# Without namespace packages a test is a module of its own name; with them the tree's root would be its package.
	$(call step,types of the tests,$(MYPY) --no-namespace-packages $(addprefix ../,tests $(wildcard examples/*.py)),Test files need unique names.)
	$(call step,structure,$(BIN)/pytest -q tests/arch,Each message names the file and the rule.)

format: $(VENV)/.installed-test
	@$(BIN)/ruff check --quiet --fix-only .
	@$(BIN)/ruff format --quiet .

clean:
	@rm -rf build *.egg-info $(CACHES)
	@find . -name .venv -prune -o -path "./$(VENV)" -prune -o -type d -name __pycache__ -exec rm -rf {} +

# Debian's python3 without python3-venv leaves an environment without pip: pip is the sign of success.
$(BIN)/pip:
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11))" \
	  || { echo "== $(PYTHON) is missing or older than 3.11. Name another: make PYTHON=python3.12" >&2; exit 1; }
	$(call step,virtual environment in $(VENV),$(PYTHON) -P -m venv $(VENV),On Debian and Ubuntu: apt-get install python3-venv)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/pip
	$(call step,install (torch is large; the first time takes minutes),$(INSTALL) -c constraints.txt -e .,pip names the package; without a network it needs a local index or find-links in pip.conf.)
	@touch $@

$(VENV)/.installed-test: pyproject.toml constraints.txt | $(BIN)/pip
	$(call step,install with test tools (torch is large; the first time takes minutes),$(INSTALL) -c constraints.txt -e ".[test]",pip names the package; without a network it needs a local index or find-links in pip.conf.)
	@touch $(VENV)/.installed $@

# SPDX-License-Identifier: GPL-3.0-or-later
# Every target does its own set-up, once, and says so. Only git, make and python3 must be there before.
PYTHON ?= $(if $(wildcard /usr/bin/python3),/usr/bin/python3,python3)
VENV := .venv/bin/python

.DEFAULT_GOAL := help
.PHONY: help demo test test-matrix test-kernel lint bench clean

help: ## print this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

demo: ## boot a bare two-node host under QEMU, provision it with one reboot, ask its server and time it (ARGS=--help)
	@$(PYTHON) tools/bootstrap.py --testhost
	@$(VENV) tools/demo.py $(ARGS)

test: ## lint, unit tests, browser, runtime, tarball, playbooks, sanity, kernel sample, molecule (STAGES="lint unit" for some)
	@$(PYTHON) tools/bootstrap.py --testhost --browser --tests
	@$(VENV) tools/run_tests.py $(STAGES)

test-matrix: ## unit tests on Python 3.9 to 3.13 and ansible-core 2.19 to 2.21, as far as interpreters are found
	@$(PYTHON) tools/bootstrap.py
	@$(VENV) tools/run_matrix.py

test-kernel: ## all command lines against the real kernel, five boots in a row, UEFI (an hour)
	@$(PYTHON) tools/bootstrap.py --testhost
	@$(VENV) tools/run_tests.py kernel-all boots uefi

lint: ## ansible-lint, yamllint, ruff, mypy, changelog fragments
	@$(PYTHON) tools/bootstrap.py
	@$(VENV) tools/run_tests.py lint

bench: ## print the benchmark tables and write build/bench/*.json
	@$(PYTHON) tools/bootstrap.py --bench
	@$(VENV) tools/run_bench.py

clean: ## remove what was built here; the images of the test host stay in ~/.cache/firsttouch
	rm -rf build .venv .ansible .mypy_cache .pytest_cache runtime/.pytest_cache .ruff_cache .hypothesis firsttouch-host-*.tar.gz

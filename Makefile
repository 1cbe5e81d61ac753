# Everything a person types here. `make` alone lists it; README.md and .ci/run use nothing else.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.NOTPARALLEL:
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-vm lint types unit sanity sanity-all docs docs-browser dashboard-browser dist importer release docs-lint test-lab \
  test-stages test-day-two test-vm-cell test-arguments test-engine \
  benchmarks bench-packing-full format lab-down clean

export PATH := $(CURDIR)/.venv/bin:$(PATH)
export LC_ALL := C.UTF-8
export MOLECULE_GLOB := molecule/*/molecule.yml
export MOLECULE_COMMAND_BORDERS := false

# A lab is made for each file, so that two files can be tried at once.
fabric_tests := containers doctor fabric fabric_network link_proof
stage_tests := checkpoint nfs_share engram_pack image nccl serve entry site readme
day_two_tests := recovery fleet fences monitoring benchmark

measured := --results docs/performance
step := python tools/step.py run
node_code := $(addprefix collections/ansible_collections/sparkfleet/cluster/plugins/,modules module_utils)

help: ## list these targets
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 28
	@echo '  LAB_NAME=x                works with another lab than the usual one; several can exist side by side'
	@echo '  LAB_CELLS=2               lets `make demo` serve from two pairs behind a router'
	@echo '  LAB_ENGINE=sglang         lets `make demo` serve with the real SGLang and a toy model (7 GB)'

setup: ## install what is missing on this machine, and the pinned tools into .venv
	@tools/setup

demo: export LAB_NAME ?= lab
demo: export LAB_ENGINE ?= standin
demo: engine_variables = $(if $(filter sglang,$(LAB_ENGINE)),lab/sglang/demo.yml,/var/lib/sparkfleet-lab/$(LAB_NAME)/standin.yml)
demo: fleet = -i /var/lib/sparkfleet-lab/$(LAB_NAME)/inventory.yml
demo: setup ## build a lab of four virtual Sparks and run the product against it
	@$(step) 'lab up' -- python -m lab up --bare $(if $(LAB_CELLS),--cells $(LAB_CELLS))
	$(step) 'what a cell is served from' -- python -m lab $(LAB_ENGINE)
	$(step) 'site.yml on the lab' -- ansible-playbook $(if $(LAB_CELLS),playbooks/fleet.yml $(fleet),site.yml -i inventories/lab.yml) \
		-e @$(engine_variables) -e preflight_report_path=$(CURDIR)/.cache/demo.json
	if [ -n '$(LAB_CELLS)' ]; then
	  $(step) 'the router before the cells' -- ansible-playbook playbooks/router.yml $(fleet) -e @$(engine_variables)
	  $(step) 'requests to the fleet' -- ansible-playbook playbooks/verify.yml $(fleet) -e @$(engine_variables) -e spark_group=cell_a \
	    -e verify_url=http://127.0.0.1:8080 -e verify_key_file=/etc/sparkfleet/router-keys -e verify_model=deepseek-v4.1-flash \
	    -e '{"verify_checks": ["load", "chat", "streaming", "auth", "closed"]}'
	fi
	python -m lab summary --report .cache/demo.json
	printf '\nThe lab stays up. Look around: python -m lab --help. Remove it: make lab-down\n'

test: lint types unit sanity docs-lint test-lab ## everything except virtual machines

lint: setup ## style of the checkout, then ansible-lint on the built and installed collection
	@failed=0
	$(step) yamllint -- yamllint --strict . || failed=1
	$(step) 'ruff check' -- ruff check . || failed=1
	$(step) 'ruff format' -- ruff format --check . || failed=1
	$(step) shellcheck -- shellcheck tools/setup .ci/run || failed=1
	$(step) 'ansible-lint, beside the collection' -- \
	  ansible-lint --nocolor site.yml sparks inventories molecule .config || failed=1
	$(step) 'ansible-lint, installed' -- python tools/installed.py lint || failed=1
	exit $$failed

types: setup ## static types; what runs on nodes also as Python 3.10
	@failed=0
	$(step) mypy -- mypy || failed=1
	$(step) 'mypy as on a node' -- mypy --python-version 3.10 $(node_code) || failed=1
	exit $$failed

unit: setup ## unit and conventions tests: no lab, no root, no network
	@$(step) 'unit tests' --junit .cache/junit/unit.xml -- pytest -n auto

sanity: setup ## ansible-test sanity on the built and installed collection
	@$(step) 'ansible-test sanity' -- python tools/installed.py sanity

sanity-all: setup ## ansible-test sanity on core 2.19, 2.20 and 2.21, with Python 3.11, 3.12 and 3.13 where they are there
	@$(step) 'ansible-test sanity, every core' -- python tools/sanity_all.py

docs: setup ## the documentation as a site in .cache/docs/site, no warning allowed; looked at in a browser by docs-browser
	@$(step) documentation -- python -m tools.docs

docs-browser: docs ## open every page of the site once in Chromium, which is installed when missing
	@$(step) 'documentation in a browser' --junit .cache/junit/docs.xml -- pytest tests/docs/test_site.py

dashboard-browser: setup ## draw the dashboard once in Chromium with Grafana's components of npm, about a minute at first
	@$(step) 'dashboard in a browser' --junit .cache/junit/dashboard.xml -- pytest tests/dashboard

dist: setup ## the artifact of the last commit in .cache/dist, installed into an empty environment and used
	@$(step) 'artifact' --junit .cache/junit/dist.xml -- pytest tests/dist

importer: setup ## galaxy-importer on the artifact of the last commit; wants REPOSITORY=URL, which galaxy.yml does not name yet
	@$(step) galaxy-importer -- python -m tools.dist importer

release: setup ## VERSION=1.0.0: the version, and the changelog out of its fragments, as one commit with a tag
	@[[ '$(VERSION)' =~ ^[0-9]+\.[0-9]+\.[0-9]+$$ ]] || { echo 'which version? next: make release VERSION=1.0.0'; exit 1; }
	[ -z "$$(git status --porcelain)" ] || { echo 'there are changes that are not committed; next: git status'; exit 1; }
	sed -i 's/^version: .*/version: $(VERSION)/' galaxy.yml
	antsibull-changelog release
	git add --all
	git commit --quiet --message 'Release $(VERSION)'
	git tag '$(VERSION)'

docs-lint: setup ## changelog, documentation and playbook names of the installed collection
	@$(step) 'documentation and playbooks, installed' -- python tools/installed.py docs syntax

test-lab: export LAB_NAME ?= test
test-lab: setup ## the lab, preflight and fabric in container labs, then molecule; leaves no lab behind
	@trap 'python -m lab down --family' EXIT
	$(step) 'container lab' --junit .cache/junit/containers.xml -- \
	  pytest $(addprefix tests/lab/test_,$(addsuffix .py,$(fabric_tests))) -m containers -n 2 --dist loadfile
	rm -rf .cache/molecule # where molecule remembers that it made a lab, which may be gone by now
	MOLECULE_EPHEMERAL_DIRECTORY=$(CURDIR)/.cache/molecule $(step) molecule -- molecule test --all

test-stages: export LAB_NAME ?= stages
test-stages: setup ## weights, tables, image, ranks, entry and the whole site in container labs: half an hour and more
	@trap 'python -m lab down --family' EXIT
	$(step) 'stages in container labs' --junit .cache/junit/stages.xml -- \
	  pytest $(addprefix tests/lab/test_,$(addsuffix .py,$(stage_tests))) -m containers -n 2 --dist loadfile

test-day-two: export LAB_NAME ?= later
test-day-two: setup ## recovery, router and upgrade, fences, monitoring and benchmark in container labs: an hour
	@trap 'python -m lab down --family' EXIT
	$(step) 'day two in container labs' --junit .cache/junit/day-two.xml -- \
	  pytest $(addprefix tests/lab/test_,$(addsuffix .py,$(day_two_tests))) -m containers -n 2 --dist loadfile

test-vm: export LAB_NAME ?= vmtest
test-vm: setup ## what the virtual-machine lab itself can do; leaves no lab behind
	@trap 'python -m lab down --family' EXIT
	$(step) 'virtual-machine lab' --junit .cache/junit/vm.xml -- pytest tests/lab/test_vm.py -m vm

test-vm-cell: export LAB_NAME ?= vmtest
test-vm-cell: setup ## fabric, share, packing and the whole site in virtual machines: two hours where they are emulated
	@trap 'python -m lab down --family' EXIT
	$(step) 'a cell of virtual machines' --junit .cache/junit/vm-cell.xml -- \
	  pytest tests/lab/test_vm_cell.py tests/lab/test_nfs_share.py -m vm

test-arguments: setup ## server arguments of every profile, by SGLang's own parser; installs 7 GB once
	@$(step) 'server arguments' --junit .cache/junit/arguments.xml -- pytest tests/engine/test_arguments.py

test-engine: export LAB_NAME ?= engine
test-engine: setup ## the real SGLang with a toy model as four ranks in a container lab; installs 7 GB once
	@trap 'python -m lab down --family' EXIT
	$(step) 'real SGLang' --junit .cache/junit/engine.xml -- pytest tests/engine

benchmarks: export LAB_NAME ?= bench
benchmarks: export PYTHONPATH := collections
benchmarks: setup ## measure every claim on this machine, into the tables of docs/performance.md: half an hour, needs root
	@failed=0
	$(step) planning -- python -m benchmarks.planning $(measured) || failed=1
	$(step) GIDs -- python -m benchmarks.gid_walk $(measured) || failed=1
	$(step) packing -- python -m benchmarks.packing .cache/packing $(measured) || failed=1
	$(step) 'no change' -- python -m benchmarks.no_change $(measured) || failed=1
	$(step) tables -- env UPDATE_GOLDEN=1 pytest -q tests/unit/test_docs.py -k table || failed=1
	exit $$failed

bench-packing-full: setup ## packing one rank-layer of the real size: needs 26 GB of disk, and root
	@PYTHONPATH=collections $(step) 'packing, full size' -- python -m benchmarks.packing .cache/packing --full-size

format: setup ## rewrite Python files the way `make lint` wants them
	@ruff check --fix --quiet . || true
	ruff format .

lab-down: export LAB_NAME ?= lab
lab-down: setup ## remove the lab (LAB_NAME) and all it made
	@python -m lab down

clean: ## remove what the tools wrote into the checkout; labs are not touched
	@rm -rf .venv .cache .ansible

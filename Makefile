# heddle: the commands that stay. `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS := -s -w -X main.version=$(VERSION)
BINARIES := heddle heddle-node heddle-topo-master
# Modules of their own: kube-scheduler with a plugin, and Volcano's scheduler with two.
SCHEDULERS := cmd/heddle-scheduler cmd/heddle-vc-scheduler
HELM := go tool -modfile=tools/helm/go.mod helm
# gotestsum names what failed and counts what was skipped, with the reasons.
GOTESTSUM := go tool -modfile=tools/gotestsum/go.mod gotestsum --jsonfile $(CURDIR)/bin/tests.json
# Without vet, whose checks `make lint` has.
TEST := $(GOTESTSUM) --format pkgname -- -vet=off
# End-to-end tests run one after another: two clusters on two processors wait for each other. Each test is
# named as it ends: a run that is cut off has shown how far it came.
E2E := $(GOTESTSUM) --format testname -- -vet=off -tags e2e,grpcnotrace -count=1 -p 1 -parallel 1 -timeout 60m
# The packages with goroutines: those that import sync or errgroup.
CONCURRENT := go list -f '{{$$p := .ImportPath}}{{range .Imports}}{{if or (eq . "sync") (eq . "golang.org/x/sync/errgroup")}}{{println $$p}}{{end}}{{end}}' ./... | sort -u

# The groups of `make e2e`, in order. Those of ./test/e2e are told apart by the names of their tests.
GROUPS_OF_E2E := cluster devices gangs fabric install page versions claims soak
GANGS := Gang|Scheduler|PodGroup|Kueue|Volcano|MPIJob|TFSmoke|Assignment|Why|Documented
FABRIC := Topo|Fabric
VERSIONS := ^(TestVersions|TestOldestKubelet|TestOldestClaims|TestCRIO)$$
e2e_cluster := ./test/cluster/... ./test/demo/... ./test/vm/...
e2e_devices := -skip '^TestSoak$$|$(VERSIONS)' ./test/e2e/devices/...
e2e_gangs := -run '$(GANGS)' ./test/e2e
e2e_fabric := -run '$(FABRIC)' -skip '$(GANGS)' ./test/e2e
e2e_install := -skip '^TestSmoke$$|$(GANGS)|$(FABRIC)' ./test/e2e
e2e_page := ./test/e2e/page/...
e2e_versions := -run '$(VERSIONS)' ./test/e2e/versions/... ./test/e2e/devices
e2e_claims := -run '^TestClaim' ./test/e2e/devices # Again, as on 1.36.
e2e_soak := -run '^TestSoak$$' ./test/e2e/devices
GROUP ?= $(GROUPS_OF_E2E)

# Deepcopy functions and CRDs, from the types under api/.
GENERATE := go tool -modfile=tools/controllergen/go.mod controller-gen object crd:maxDescLen=400 paths=./api/topology/...
# The page's script and style sheet, into the folder that follows.
PAGE := go tool -modfile=tools/page/go.mod esbuild page=topo/master/httpapi/ui/src/main.js page=topo/master/httpapi/ui/src/main.css \
	--bundle --format=iife --minify --line-limit=200 --log-level=warning \
	'--banner:js=// Bundled from src by make generate.' '--banner:css=/* Bundled from src by make generate. */' --allow-overwrite --outdir
LINT := go tool -modfile=tools/lint/go.mod golangci-lint
FUZZTIME ?= 20s
NODES ?= 73
# Architectures of the images.
ARCH ?= amd64,arm64
# Steps of the soak: each of its faults once.
SOAK ?= 20
# Real machines, as public sources show them; tests that read them skip without.
export HEDDLE_FIXTURES ?=
# What is compiled does not depend on where the repository lies, so that another clone
# on the same machine, and the images, take it from Go's cache.
#
# gRPC without its pages of traces: their html/template makes the linker keep every exported
# method, a sixth of heddle-node. The tag is named wherever a program that is shipped is built.
export GOFLAGS ?= -trimpath -tags=grpcnotrace

.PHONY: help
help: ## List the commands
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

.PHONY: build
build: ## Build the binaries into bin/
	go build -trimpath -tags grpcnotrace -ldflags '$(LDFLAGS)' -o bin/ $(addprefix ./cmd/,$(BINARIES))
	CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o bin/ ./cmd/heddle-cdi-hook
	for dir in $(SCHEDULERS); do go build -C $$dir -trimpath -tags grpcnotrace -ldflags '$(LDFLAGS)' -o $(CURDIR)/bin/ .; done

.PHONY: test
test: ## Unit and integration tests, with the race detector where there are goroutines
	$(TEST) -race -timeout 15m -skip '^TestFleets$$' $$($(CONCURRENT))
	$(TEST) -timeout 15m $$(comm -13 <($(CONCURRENT)) <(go list ./... | sort))
	go test -vet=off -timeout 15m -run '^TestFleets$$' ./topo/fabric # A simulation without goroutines.
	for dir in $(SCHEDULERS) tools/release; do go test -C $$dir -vet=off -timeout 15m ./...; done

.PHONY: check
check: ## The fast loop: vet, test and lint the packages that differ from BASE (HEAD)
	tools/check.sh

.PHONY: smoke
smoke: ## One real cluster with heddle installed: GPUs, shares, HCAs, restarts, labels, the map, a gang, preemption, the page, uninstall
	$(E2E) -run '^TestSmoke$$' ./test/e2e

.PHONY: e2e
e2e: ## All end-to-end tests, or GROUP=cluster|devices|gangs|fabric|install|page|versions|claims|soak; needs root
	@failed= times=; \
	$(foreach g,$(GROUP),echo "== $(g)"; begin=$$SECONDS; \
	HEDDLE_EMULATED_VERSION=$(if $(filter claims,$(g)),1.36) HEDDLE_VERSIONS=all HEDDLE_SOAK=$(SOAK) HEDDLE_SOAK_SEED=$(SEED) $(E2E) $(e2e_$(g)) || failed+=" $(g)"; \
	times+=" $(g) $$((SECONDS - begin))"; ) \
	echo "seconds:$$times"; [[ -z $$failed ]] || { echo "failed:$$failed" >&2; exit 1; }

.PHONY: soak
soak: ## SOAK (20) random faults of everything on a real node, one after another; SEED=N chooses others, STEP=N repeats one of them
	HEDDLE_SOAK=$(SOAK) HEDDLE_SOAK_SEED=$(SEED) HEDDLE_SOAK_STEP=$(STEP) \
	  go test -tags e2e,grpcnotrace -run '^TestSoak$$' -count=1 -timeout 0 -v ./test/e2e/devices

.PHONY: hardware
hardware: ## The tests of real GPUs with all that they need, for a machine without Go: dist/hardware
	tools/hardware.sh

.PHONY: lint
lint: ## golangci-lint, helm lint, the English of docs, and whether generated files are current
	$(LINT) run ./...
	for dir in $(SCHEDULERS); do (cd $$dir && go tool -modfile=$(CURDIR)/tools/lint/go.mod golangci-lint run ./...); done
	$(HELM) lint --quiet deploy/helm/heddle --set localImages=true
	go tool -modfile=tools/vale/go.mod vale --config=tools/vale/vale.ini --glob='!{*zh-CN*,docs/zh-CN/*}' *.md docs test/*/README.md
	@$(MANIFEST) | diff -q deploy/kustomize/base/heddle.yaml - >/dev/null || \
	  { echo "deploy/kustomize/base/heddle.yaml is old: make manifest" >&2; exit 1; }
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && \
	  $(GENERATE) output:object:dir="$$dir" output:crd:dir="$$dir" && \
	  diff api/topology/v1alpha1/zz_generated.deepcopy.go "$$dir"/zz_generated.deepcopy.go && \
	  $(PAGE)="$$dir" && diff -q topo/master/httpapi/ui/page.js "$$dir"/page.js && \
	  diff -q topo/master/httpapi/ui/page.css "$$dir"/page.css && \
	  diff deploy/helm/heddle/crds/topology.heddle.dev_nodetopologies.yaml "$$dir"/topology.heddle.dev_nodetopologies.yaml || \
	  { echo "generated files are old: make generate" >&2; exit 1; }

.PHONY: generate
generate: ## Deepcopy functions and CRDs from the types under api/, the page's bundle and the plain manifest
	go generate ./api/...
	$(PAGE)=topo/master/httpapi/ui
	$(MAKE) --no-print-directory manifest

.PHONY: fuzz
fuzz: ## Every fuzz target for FUZZTIME (20s) each
	@grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n1 dirname | sort -u | while read -r dir; do \
	  for target in $$(grep -ho '^func Fuzz[A-Za-z0-9]*' $$dir/*_test.go | cut -c6-); do \
	    echo "== $$dir $$target"; go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) $$dir; \
	  done; done

.PHONY: bench
bench: ## The figures that the documentation states
	go run ./test/bench

.PHONY: chart
chart: ## Package the Helm chart into dist/; it takes the images that have the tag VERSION
	mkdir -p dist
	$(HELM) package deploy/helm/heddle --app-version $(VERSION) --destination dist

# All daemons without Helm; deploy/kustomize builds on it.
MANIFEST := $(HELM) template heddle deploy/helm/heddle --namespace heddle-system --include-crds --no-hooks \
  --set image.repository=registry.example.com/gpu,gpuDevice.enabled=true,topoDiscovery.enabled=true,gpuScheduler.enabled=true

.PHONY: manifest
manifest: ## The chart with its defaults and all daemons as one file, deploy/kustomize/base/heddle.yaml
	$(MANIFEST) > deploy/kustomize/base/heddle.yaml

.PHONY: images
images: ## OCI images for ARCH (amd64,arm64) into dist/images; off Debian and Ubuntu by docker or podman
	tools/images.sh $(VERSION) $(ARCH)

.PHONY: push
push: ## Push dist/images to REGISTRY=DOMAIN/PROJECT
	go run -C tools/release . push -from $(CURDIR)/dist/images $(REGISTRY)

.PHONY: bundle
bundle: ## One file with images and chart for sites without a network: dist/heddle-images.run push DOMAIN/PROJECT
	tools/release/pack.sh bundle dist/images dist/heddle-images.run

.PHONY: cli
cli: ## Archives of the CLI for Linux and macOS, with checksums: dist/cli
	tools/release/pack.sh cli dist/cli $(VERSION)

.PHONY: fleet
fleet: ## A simulated fleet of NODES (73) machines with a real topo-master; no cluster, no root, no C compiler
	@echo "heddle is built first: half a minute, some minutes where Go has built none of its libraries."
	@CGO_ENABLED=0 go build -o bin/heddle ./cmd/heddle
	@CGO_ENABLED=0 go run ./test/demo/fleet --nodes $(NODES)

.PHONY: demo
demo: ## A real one-node Kubernetes with a simulated fleet, to look at
	go run ./test/demo up

.PHONY: demo-down
demo-down: ## Take the demo away; nothing stays outside the cache
	go run ./test/demo down

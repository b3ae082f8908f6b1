# The targets that developers and CI use. `make check` is the gate.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

BIN := $(CURDIR)/.bin
BUF_VERSION := 1.75.0
AZURITE_VERSION := 3.35.0
export CGO_ENABLED ?= 1

.PHONY: check ci generate generate-check tidy-check lint proto-lint proto-freeze api-check test test-storage test-clouds servers qemu-guest test-qemu kube-servers test-kube e2e e2e-bridge test-browser operator-components examples sim sim-build sim-replay sim-planted scenarios build size bench bench-kube bench-orders fuzz clean

check: tidy-check generate-check lint proto-lint api-check test examples ## everything but the scenarios

ci: check size scenarios

# Tools live in their own modules, never in the product's graph.
$(BIN)/tools.stamp: tools/go.mod tools/go.sum
	mkdir -p $(BIN)
	cd tools && CGO_ENABLED=0 go build -trimpath -o $(BIN)/ tool
	touch $@

$(BIN)/buf.stamp: Makefile
	mkdir -p $(BIN)
	npm install --silent --no-save --no-package-lock --no-audit --no-fund --prefix $(BIN)/npm @bufbuild/buf@$(BUF_VERSION)
	ln -sf npm/node_modules/.bin/buf $(BIN)/buf
	touch $@

$(BIN)/controller-gen: tools/controllergen/go.mod tools/controllergen/go.sum
	mkdir -p $(BIN)
	cd tools/controllergen && CGO_ENABLED=0 go build -trimpath -o $(BIN)/ tool
	touch $@

generate: $(BIN)/tools.stamp $(BIN)/buf.stamp $(BIN)/controller-gen ## generated code and documentation
	$(BIN)/buf generate
	$(BIN)/controller-gen object crd paths=./operator/api/... output:crd:dir=operator/config/crd
	$(BIN)/controller-gen rbac:roleName=nstance-operator paths=./operator/... output:rbac:dir=operator/config/rbac
	$(BIN)/controller-gen webhook paths=./operator/webhooks/... output:webhook:dir=operator/config/webhook
	$(BIN)/controller-gen rbac:roleName=nstance-operator-program paths=./internal/operatorcmd/... output:rbac:dir=operator/config/manager
	go generate ./...

generate-check: generate
	git diff --exit-code -- api docs operator || { echo "generated files are stale: run make generate and commit"; exit 1; }

tidy-check:
	go mod tidy -diff
	cd examples && go mod tidy -diff
	cd internal/test/browser && go mod tidy -diff
	go mod verify

lint: $(BIN)/tools.stamp
	test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); echo "run gofmt -w"; exit 1; }
	go vet ./...
	$(BIN)/golangci-lint run ./...
	cd examples && $(BIN)/golangci-lint run ./...
	cd internal/test/browser && $(BIN)/golangci-lint run ./...

proto-lint: $(BIN)/buf.stamp
	$(BIN)/buf lint
	$(BIN)/buf breaking --against api/frozen.binpb

proto-freeze: $(BIN)/buf.stamp ## after a release: what clients may rely on from now on
	$(BIN)/buf build -o api/frozen.binpb

api-check: $(BIN)/tools.stamp ## what the last release promised to Go programs
	api/check.sh $(BIN)

test: ## everything under the race detector but the tests of programs, which build these without it
	go test -race $$(go list ./... | grep -v /cmd/)

# Servers that the storage drivers are tested against; each has its own module.
$(BIN)/versitygw: tools/versitygw/go.mod tools/versitygw/go.sum
	mkdir -p $(BIN)
	cd tools/versitygw && CGO_ENABLED=0 go build -trimpath -o $(BIN)/ tool
	touch $@

$(BIN)/fake-gcs-server: tools/fakegcs/go.mod tools/fakegcs/go.sum
	mkdir -p $(BIN)
	cd tools/fakegcs && CGO_ENABLED=0 go build -trimpath -o $(BIN)/ tool
	touch $@

$(BIN)/azurite-$(AZURITE_VERSION).stamp:
	mkdir -p $(BIN)
	npm install --silent --no-save --no-package-lock --no-audit --no-fund --prefix $(BIN)/azurite azurite@$(AZURITE_VERSION)
	ln -sf azurite/node_modules/.bin/azurite-blob $(BIN)/azurite-blob
	touch $@

servers: $(BIN)/versitygw $(BIN)/fake-gcs-server $(BIN)/azurite-$(AZURITE_VERSION).stamp

test-storage: servers ## drivers, and whole servers, against real storage servers; their data is in memory where possible
	NSTANCE_TEST_SERVERS=$(BIN) GOTMPDIR=$${TMPDIR:-/tmp} TMPDIR=$$(test -w /dev/shm && echo /dev/shm || echo $${TMPDIR:-/tmp}) \
		go test -race -count=1 -timeout 15m -tags servers -run '^TestServers' ./storage/blob ./server ./internal/dev

# Packages whose test cloud is checked with programs other than Go's. The checks of the others are part of `make test`:
# the discovery document and the older client for gce, Microsoft's generated fakes for arm, go-proxmox's recorded answers for pve.
CLOUDS := ./internal/test/testcloud/ec2 ./provider/aws

# A metadata service that others wrote, for the detectors of package spot.
$(BIN)/ec2-metadata-mock: tools/ec2metadatamock/go.mod tools/ec2metadatamock/go.sum
	mkdir -p $(BIN)
	cd tools/ec2metadatamock && CGO_ENABLED=0 go build -trimpath -o $@ github.com/aws/amazon-ec2-metadata-mock/cmd
	touch $@

test-clouds: $(BIN)/ec2-metadata-mock ## test clouds, providers and detectors against the clouds' own models and programs; needs python3 and the aws command
	go test -count=1 -timeout 15m -tags servers $(CLOUDS)
	go test -count=1 -timeout 15m -tags servers -run '^TestServers' ./reconcile
	NSTANCE_TEST_SERVERS=$(BIN) go test -race -count=1 -timeout 5m -tags servers -run '^TestServers' ./spot

$(BIN)/qemu/agent: FORCE
	mkdir -p $(BIN)/qemu
	CGO_ENABLED=0 go build -tags grpcnotrace -trimpath -ldflags "-s -w" -o $@ ./cmd/nstance-agent

FORCE:

qemu-guest: $(BIN)/qemu/agent ## kernel and initramfs with the agent, for provider qemu; needs busybox-static and cpio
	deploy/qemu/guest.sh $(BIN)/qemu $(BIN)/qemu/agent

test-qemu: qemu-guest ## virtual machines, and a shard whose agents run in them; needs qemu-system-x86 and qemu-utils
	NSTANCE_TEST_QEMU=$(BIN)/qemu go test -race -count=1 -timeout 20m -p 1 -tags qemu -run '^TestQEMU' ./provider/qemu ./internal/dev

# Go's scheduler is built to make its random choices from the seed.
sim-build:
	go run ./internal/test/sim/exact/cmd -o $(BIN)/exact
	CGO_ENABLED=0 go build -overlay $(BIN)/exact/overlay.json -o $(BIN)/sim ./internal/test/sim/cmd

sim: sim-build ## play a shard from seeds, until stopped; FROM=1 SEEDS=100 plays those
	$(BIN)/sim -from $${FROM:-0} -seeds $${SEEDS:-0}

sim-replay: sim-build ## play seeds twice, and compare everything that happened
	$(BIN)/sim -replay -from $${FROM:-1} -seeds $${SEEDS:-10}

sim-planted: ## plant bugs one at a time, and play seeds until each is found
	go run ./internal/test/sim/planted -seeds $${SEEDS:-200}

# The servers of a Kubernetes cluster and Cluster API's own manager, unmodified. Each has its own module, because their
# versions of k8s.io differ from the product's.
KUBE := $(BIN)/kube
KUBE_VERSION := v1.36.3
KUBE_FLAGS := $(foreach p,k8s.io/component-base/version k8s.io/client-go/pkg/version,-X $(p).gitVersion=$(KUBE_VERSION) -X $(p).gitMajor=1 -X $(p).gitMinor=36 -X $(p).gitTreeState=clean)

$(KUBE)/k8s.stamp: tools/k8s/go.mod tools/k8s/go.sum
	mkdir -p $(KUBE)
	cd tools/k8s && CGO_ENABLED=0 go build -trimpath -ldflags "-s -w $(KUBE_FLAGS)" -o $(KUBE)/ tool
	touch $@

$(KUBE)/etcd: tools/etcd/go.mod tools/etcd/go.sum
	mkdir -p $(KUBE)
	cd tools/etcd && CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o $@ go.etcd.io/etcd/server/v3

$(KUBE)/kwok: tools/kwok/go.mod tools/kwok/go.sum
	mkdir -p $(KUBE)
	cd tools/kwok && CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o $@ sigs.k8s.io/kwok/cmd/kwok

$(KUBE)/capi-manager: tools/capi/go.mod tools/capi/go.sum
	mkdir -p $(KUBE)
	cd tools/capi && CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o $@ sigs.k8s.io/cluster-api

$(KUBE)/capi-manifests.stamp: tools/capi/go.mod tools/capi/go.sum
	mkdir -p $(KUBE)/crds $(KUBE)/webhooks
	cd tools/capi && install -m 644 $$(go list -m -f '{{.Dir}}' sigs.k8s.io/cluster-api)/config/crd/bases/*.yaml $(KUBE)/crds/
	cd tools/capi && install -m 644 $$(go list -m -f '{{.Dir}}' sigs.k8s.io/cluster-api)/config/webhook/manifests.yaml $(KUBE)/webhooks/capi.yaml
	touch $@

# What renders and checks the packaging of the operator.
$(BIN)/helm: tools/helm/go.mod tools/helm/go.sum
	mkdir -p $(BIN)
	cd tools/helm && CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o $(BIN)/ tool
	touch $@

$(BIN)/kustomize: tools/kustomize/go.mod tools/kustomize/go.sum
	mkdir -p $(BIN)
	cd tools/kustomize && CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o $(BIN)/ tool
	touch $@

$(BIN)/clusterctl: tools/clusterctl/go.mod tools/clusterctl/go.sum
	mkdir -p $(BIN)
	cd tools/clusterctl && CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o $(BIN)/ tool
	touch $@

kube-servers: $(KUBE)/k8s.stamp $(KUBE)/etcd $(KUBE)/kwok $(KUBE)/capi-manager $(KUBE)/capi-manifests.stamp

KUBE_PACKAGES := ./drain/kube ./operator ./operator/webhooks ./internal/operatorcmd ./internal/test/packaging ./internal/test/operatorclouds

E2E_SERVERS := kube-servers $(BIN)/helm $(BIN)/versitygw
E2E = mkdir -p $(BIN)/e2e && \
	go build -o $(BIN)/e2e/ ./cmd/nstance-server ./cmd/nstance-operator ./cmd/nstance-admin && \
	KUBEBUILDER_ASSETS=$(KUBE) NSTANCE_TEST_SERVERS=$(BIN) NSTANCE_E2E_PROGRAMS=$(BIN)/e2e go test -count=1 -timeout 20m -tags kube -v ./internal/test/e2e -run

e2e: $(E2E_SERVERS) ## servers, operator, agents and Cluster API together, with kills in between
	$(E2E) '^TestEndToEnd'

e2e-bridge: $(E2E_SERVERS) ## three reclaims at once in a group with a warm pool and in one without, while clients send requests
	$(E2E) '^TestBridgeEndToEnd'

test-kube: kube-servers $(BIN)/helm $(BIN)/kustomize $(BIN)/clusterctl ## drains and controllers against a real API server and Cluster API's own manager
	KUBEBUILDER_ASSETS=$(KUBE) go test -race -count=1 -timeout 20m -p 1 -tags kube -run '^TestKube' $(KUBE_PACKAGES)

examples: ## whole programs of another module, each of which ends by itself
	cd examples && go vet ./... && go test -race ./...
	cd examples && for d in */ shortest/*/; do test $$d = shortest/ || { echo "== $$d"; go run "./$$d" || exit 1; }; done

test-browser: ## the status page in Chromium, beside real shards; NSTANCE_SCREENSHOTS=directory keeps pictures
	mkdir -p $(BIN)/browser
	go build -o $(BIN)/browser/ ./cmd/nstance-server ./cmd/nstance-admin
	cd internal/test/browser && NSTANCE_BROWSER_PROGRAMS=$(BIN)/browser go test -count=1 -timeout 10m ./...

operator-components: $(BIN)/kustomize ## what clusterctl installs
	mkdir -p dist
	$(BIN)/kustomize build operator/config/default > dist/infrastructure-components.yaml
	cp operator/config/metadata.yaml dist/metadata.yaml

build: ## the reference programs, static
	mkdir -p dist
	CGO_ENABLED=0 go build -tags grpcnotrace -trimpath -ldflags "-s -w" -o dist/ ./cmd/...

size: build ## the agent must stay small enough for every machine
	@bytes=$$(stat -c %s dist/nstance-agent); echo "agent: $$bytes bytes"; test $$bytes -le $$((14 << 20))

scenarios: build ## the main job on this machine, where the tests of cmd do not play it: with more machines, and failover on each cloud
	dist/nstance-server dev --scenario mass --count 50 --json | tail -n 1
	dist/nstance-server dev --scenario kill --count 12 --seed 7 --json | tail -n 1
	for cloud in azure gcp proxmox; do dist/nstance-server dev --provider $$cloud --scenario failover --election-ttl 3s --json | tail -n 1; done
	dist/nstance-dev --scenario bridge --park hibernated --metadata gcp --json | tail -n 1

bench: ## measured beside their floors; see docs/benchmarks.md
	go test -run '^$$' -bench . -benchmem ./...

bench-kube: kube-servers ## nodes of 1,000 machines: notice to cordon, and the operator's memory
	KUBEBUILDER_ASSETS=$(KUBE) go test -timeout 60m -tags kube -run '^$$' -bench '^BenchmarkKube' -benchtime 1x ./operator

bench-orders: ## interruptions and cost of each order of shapes; NSTANCE_SPOT_TRACES=folders of traces, separated by colons
	go test -timeout 60m -count=1 -run '^TestOrdersCompared$$' -v ./reconcile

fuzz: ## each fuzz target for a short while
	for p in $$(go list ./...); do for f in $$(go test -list '^Fuzz' $$p | grep '^Fuzz' || true); do go test -run '^$$' -fuzz "^$$f$$" -fuzztime $${FUZZTIME:-10s} $$p; done; done

clean:
	rm -rf $(BIN) dist

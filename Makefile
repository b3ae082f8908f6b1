# The targets that developers and CI use. `make check` is the gate.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

BIN := $(CURDIR)/.bin
export CGO_ENABLED ?= 1

# A program with the race detector, which many tests are and start, does not wait a second
# before it ends.
export GORACE ?= atexit_sleep_ms=0

# Modules, each after those that it requires. The folder of a module is its path below the root.
ADAPTERS := internal/bucket sqlite aws gcp azure proxmox kubernetes clouds
PROGRAMS := cmd/nstance-server cmd/nstance-admin cmd/nstance-operator
ALL_MODULES := . $(ADAPTERS) $(PROGRAMS) integration examples

comma := ,

# Runs a command in the folder of every module of a list: $(call each,MODULES,COMMAND).
each = for m in $(1); do echo "== $$m"; (cd "$$m" && $(2)) || exit 1; done

# The folder of a module that go.mod names, which is fetched if it is not there: $(call module,PATH).
module = $$(go mod download $(1) && go list -m -f '{{.Dir}}' $(1))

.PHONY: check ci tools fresh release-commit release-check tags generate generate-check tidy tidy-check lint proto-lint proto-freeze api-check test test-all test-race test-programs test-storage test-clouds servers qemu-guest test-qemu test-units kube-servers test-kube test-kube-kills e2e e2e-bridge test-tutorial test-browser operator-components examples sim sim-build sim-replay sim-planted scenarios build size vulncheck release release-packages-check image image-push workflows-check bench bench-kube bench-karpenter bench-machineset bench-handler bench-orders mutants fuzz clean

check: tidy-check generate-check lint proto-lint api-check test-all test-race test-programs examples ## everything but the scenarios

ci: check size scenarios

# Tools live in their own modules, never in the product's graph.
$(BIN)/tools.stamp: tools/go.mod tools/go.sum
	mkdir -p $(BIN)
	cd tools && CGO_ENABLED=0 go build -trimpath -o $(BIN)/ tool
	touch $@

# Exactly what a lock file names, with its hashes: $(call npm,TOOL,FOLDER).
npm = mkdir -p $(2) && cp tools/npm/$(1)/package.json tools/npm/$(1)/package-lock.json $(2)/ && npm ci --loglevel=error --fetch-retries=5 --no-audit --no-fund --prefix $(2)

$(BIN)/buf.stamp: tools/npm/buf/package-lock.json
	$(call npm,buf,$(BIN)/npm)
	ln -sf npm/node_modules/.bin/buf $(BIN)/buf
	touch $@

$(BIN)/controller-gen: tools/controllergen/go.mod tools/controllergen/go.sum
	mkdir -p $(BIN)
	cd tools/controllergen && CGO_ENABLED=0 go build -trimpath -o $(BIN)/ tool
	touch $@

generate: $(BIN)/tools.stamp $(BIN)/buf.stamp $(BIN)/controller-gen ## generated code and documentation
	$(BIN)/buf generate
	cd kubernetes && $(BIN)/controller-gen object crd paths=./api/... output:crd:dir=config/crd
	cd kubernetes && $(BIN)/controller-gen rbac:roleName=nstance-operator paths=./operator/... output:rbac:dir=config/rbac
	cd kubernetes && $(BIN)/controller-gen rbac:roleName=nstance-operator-secrets paths=./internal/identity/... output:rbac:dir=config/secrets
	cd kubernetes && $(BIN)/controller-gen webhook paths=./webhooks/... output:webhook:dir=config/webhook
	cd cmd/nstance-operator && $(BIN)/controller-gen rbac:roleName=nstance-operator-program paths=./internal/program/... output:rbac:dir=../../kubernetes/config/manager
	go generate ./...

# Files that are as they were keep their times: Go takes tests that read them as passed.
generate-check:
	@times=$$(mktemp -d) && git ls-files -z api docs kubernetes | xargs -0 cp -a --parents -t $$times && $(MAKE) generate && \
		{ git diff --exit-code -- api docs kubernetes || { echo "generated files are stale: run make generate and commit"; exit 1; }; } && \
		git ls-files -z api docs kubernetes | while IFS= read -r -d '' f; do touch -h -r "$$times/$$f" "$$f"; done && rm -rf $$times

tidy: ## what the modules require
	@$(call each,$(ALL_MODULES),go mod tidy)

tidy-check:
	@$(call each,$(ALL_MODULES),go mod tidy -diff)
	go mod verify

# All modules in one workspace: what several of them link is looked at once. It is compiled
# as the race detector's tests need it.
lint: $(BIN)/tools.stamp
	test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); echo "run gofmt -w"; exit 1; }
	rm -rf $(BIN)/workspace && mkdir $(BIN)/workspace
	cd $(BIN)/workspace && go work init $(ALL_MODULES:%=$(CURDIR)/%)
	GOFLAGS=-race GOWORK=$(BIN)/workspace/go.work $(BIN)/golangci-lint run --build-tags servers$(comma)kube$(comma)browser$(comma)systemd$(comma)qemu $(patsubst %,./%/...,$(ALL_MODULES))

proto-lint: $(BIN)/buf.stamp
	$(BIN)/buf lint
	$(BIN)/buf breaking --against api/frozen.binpb

proto-freeze: $(BIN)/buf.stamp ## after a release: what clients may rely on from now on
	$(BIN)/buf build -o api/frozen.binpb

api-check: $(BIN)/tools.stamp ## what the last release promised to Go programs
	api/check.sh $(BIN)

test: ## the core's tests, as the README runs them
	go test ./...

test-all: ## the tests of every module
	@$(call each,$(ALL_MODULES),go test ./...)

# The tests of programs build these without the race detector, so they are not repeated.
# Those of module kubernetes run in test-kube, with the servers. Vet is the linters' part.
# With -short, tests that repeat one computation do so less often: the plain run does all. What
# internal/test/repository tests is files.
test-race: ## the tests of packages under the race detector, in every module but kubernetes
	@$(call each,. $(filter-out kubernetes,$(ADAPTERS)) integration,go test -race -short -vet=off -timeout 30m $$(go list ./... | grep -v '/cmd/\|/internal/test/repository$$'))

test-programs: ## the tests of programs that are modules of their own
	@$(call each,$(PROGRAMS),go test ./...)

# Servers that the storage drivers are tested against; each has its own module.
$(BIN)/versitygw: tools/versitygw/go.mod tools/versitygw/go.sum
	mkdir -p $(BIN)
	cd tools/versitygw && CGO_ENABLED=0 go build -trimpath -o $(BIN)/ tool
	touch $@

$(BIN)/fake-gcs-server: tools/fakegcs/go.mod tools/fakegcs/go.sum
	mkdir -p $(BIN)
	cd tools/fakegcs && CGO_ENABLED=0 go build -trimpath -o $(BIN)/ tool
	touch $@

$(BIN)/azurite.stamp: tools/npm/azurite/package-lock.json
	$(call npm,azurite,$(BIN)/azurite)
	ln -sf azurite/node_modules/.bin/azurite-blob $(BIN)/azurite-blob
	touch $@

# The folder with them is named for their versions: so Go knows which tests need not run again.
SERVERS := $(BIN)/servers-$(shell cat tools/{versitygw,fakegcs,ec2metadatamock}/go.{mod,sum} tools/npm/azurite/package-lock.json | sha256sum | head -c 12)

servers: $(BIN)/versitygw $(BIN)/fake-gcs-server $(BIN)/azurite.stamp
	ln -sfn . $(SERVERS)

test-storage: servers ## drivers, and whole servers, against real storage servers; their data is in memory where possible
	cd integration && NSTANCE_TEST_SERVERS=$(SERVERS) GOTMPDIR=$${TMPDIR:-/tmp} TMPDIR=$$(test -w /dev/shm && echo /dev/shm || echo $${TMPDIR:-/tmp}) \
		go test -exec 'env -u GOTMPDIR' -race -timeout 30m -tags servers -run '^TestServers' ./storage ./server ./dev

# The test cloud for EC2 is checked with programs other than Go's. The checks of the others are part of `make test-all`:
# the discovery document and the older client for gcetest, Microsoft's generated fakes for armtest, go-proxmox's recorded
# answers for pvetest.

# A metadata service that others wrote, for the detectors of package spot.
$(BIN)/ec2-metadata-mock: tools/ec2metadatamock/go.mod tools/ec2metadatamock/go.sum
	mkdir -p $(BIN)
	cd tools/ec2metadatamock && CGO_ENABLED=0 go build -trimpath -o $@ github.com/aws/amazon-ec2-metadata-mock/cmd
	touch $@

test-clouds: $(BIN)/ec2-metadata-mock ## test clouds, providers and detectors against the clouds' own models and programs; needs python3 and the aws command
	cd aws && go test -count=1 -timeout 30m -tags servers . ./ec2test
	ln -sfn . $(SERVERS)
	cd integration && go test -timeout 30m -tags servers -run '^TestServers' ./reconcile
	cd integration && NSTANCE_TEST_SERVERS=$(SERVERS) go test -race -timeout 15m -tags servers -run '^TestServers' ./spot

$(BIN)/qemu/agent: FORCE
	mkdir -p $(BIN)/qemu
	CGO_ENABLED=0 go build -tags grpcnotrace -trimpath -ldflags "-s -w" -o $@ ./cmd/nstance-agent

FORCE:

qemu-guest: $(BIN)/qemu/agent ## kernel and initramfs with the agent, for provider qemu; needs busybox-static and cpio
	deploy/qemu/guest.sh $(BIN)/qemu $(BIN)/qemu/agent

test-qemu: qemu-guest ## virtual machines, and a shard whose agents run in them; needs qemu-system-x86 and qemu-utils
	NSTANCE_TEST_QEMU=$(BIN)/qemu go test -race -count=1 -timeout 20m -p 1 -tags qemu -run '^TestQEMU' ./provider/qemu ./internal/dev

test-units: ## the shipped units under a systemd in namespaces of its own; needs root
	mkdir -p $(BIN)/units
	CGO_ENABLED=0 go build -tags grpcnotrace -trimpath -o $(BIN)/units/ ./cmd/nstance-agent
	cd cmd/nstance-server && CGO_ENABLED=0 go build -tags grpcnotrace -trimpath -o $(BIN)/units/ .
	cd integration && NSTANCE_UNIT_PROGRAMS=$(BIN)/units go test -count=1 -timeout 20m -tags systemd -run '^TestUnitOf' ./server

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
# versions of k8s.io differ from the product's. The name of their folder says which they are, so that go runs the tests
# beside them again when one changes.
KUBE := $(BIN)/kube-$(shell cat tools/{k8s,etcd,kwok,capi,clusterctl,karpenter}/go.{mod,sum} | sha256sum | head -c 12)
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
	cd tools/capi && install -m 644 $(call module,sigs.k8s.io/cluster-api)/config/crd/bases/*.yaml $(KUBE)/crds/
	cd tools/capi && install -m 644 $(call module,sigs.k8s.io/cluster-api)/config/webhook/manifests.yaml $(KUBE)/webhooks/capi.yaml
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

# Builds programs into a folder: $(call programs,FOLDER,PROGRAMS).
programs = for m in $(2); do (cd "$$m" && go build -o $(1)/ .) || exit 1; done

E2E_SERVERS := kube-servers $(BIN)/helm $(BIN)/versitygw
E2E = mkdir -p $(BIN)/e2e && \
	$(call programs,$(BIN)/e2e,$(PROGRAMS)) && \
	cd integration && KUBEBUILDER_ASSETS=$(KUBE) NSTANCE_TEST_SERVERS=$(BIN) NSTANCE_E2E_PROGRAMS=$(BIN)/e2e go test -count=1 -timeout 20m -tags kube -v ./e2e -run

e2e: $(E2E_SERVERS) ## servers, operator, agents and Cluster API together, with kills in between
	$(E2E) '^TestEndToEnd'

e2e-bridge: $(E2E_SERVERS) ## three reclaims at once in a group with a warm pool and in one without, while clients send requests
	$(E2E) '^TestBridgeEndToEnd'

TEST_KUBE = KUBEBUILDER_ASSETS=$(KUBE) go test -race -vet=off -timeout 60m -p 1 -tags kube ./...

test-kube: kube-servers $(BIN)/helm $(BIN)/kustomize $(BIN)/clusterctl ## drains and controllers against a real API server and Cluster API's own manager
	cd kubernetes && $(TEST_KUBE)
	$(call each,cmd/nstance-operator integration,$(TEST_KUBE) -count=1 -run '^TestKube')

test-kube-kills: kube-servers $(BIN)/helm $(BIN)/kustomize $(BIN)/clusterctl ## an operator killed at each of its changes in turn, of which test-kube takes some
	cd kubernetes && NSTANCE_TEST_KILL_EVERY=1 KUBEBUILDER_ASSETS=$(KUBE) go test -vet=off -count=1 -timeout 180m -tags kube -run '^TestKubeOperatorKilled$$' ./operator

examples: ## whole programs of another module, each of which ends by itself
	cd examples && go test -race ./...
	cd examples && for d in */ shortest/*/; do test $$d = shortest/ || { echo "== $$d"; go run "./$$d" || exit 1; }; done

$(BIN)/axe.stamp: tools/npm/axe/package-lock.json
	$(call npm,axe,$(BIN)/axe)
	touch $@

test-tutorial: $(BIN)/versitygw $(BIN)/fake-gcs-server ## the commands of docs/tutorial.md and of the clouds' first days, word for word; needs curl, openssl, iproute2 and the aws command
	mkdir -p $(BIN)/tutorial
	$(call programs,$(BIN)/tutorial,cmd/nstance-server cmd/nstance-admin cmd/nstance-agent)
	ln -sf ../versitygw ../fake-gcs-server $(BIN)/tutorial/
	cd integration && NSTANCE_TUTORIAL_PROGRAMS=$(BIN)/tutorial go test -count=1 -timeout 10m -parallel 5 -tags servers -run '^TestServers' ./tutorial

test-browser: $(BIN)/axe.stamp ## the status page in Chromium, beside real shards; NSTANCE_SCREENSHOTS=directory keeps pictures
	mkdir -p $(BIN)/browser
	$(call programs,$(BIN)/browser,cmd/nstance-server cmd/nstance-admin)
	cd integration && NSTANCE_BROWSER_PROGRAMS=$(BIN)/browser NSTANCE_AXE=$(BIN)/axe/node_modules/axe-core/axe.min.js go test -count=1 -timeout 10m -tags browser ./browser

operator-components: $(BIN)/kustomize ## what clusterctl installs
	mkdir -p dist
	$(BIN)/kustomize build kubernetes/config/default > dist/infrastructure-components.yaml
	cp kubernetes/config/metadata.yaml dist/metadata.yaml

build: ## the reference programs, static
	mkdir -p dist
	CGO_ENABLED=0 go build -tags grpcnotrace -trimpath -ldflags "-s -w" -o dist/ ./cmd/...
	@$(call each,$(PROGRAMS),CGO_ENABLED=0 go build -tags grpcnotrace -trimpath -ldflags "-s -w" -o $(CURDIR)/dist/ .)

$(BIN)/supply.stamp: tools/supply/go.mod tools/supply/go.sum
	mkdir -p $(BIN)
	cd tools/supply && CGO_ENABLED=0 go build -trimpath -o $(BIN)/ tool
	touch $@

# The database of known weaknesses comes through the module proxy, at the version that tools/supply/go.mod names.
vulncheck: $(BIN)/supply.stamp ## known weaknesses that the programs call; go get -tool golang.org/x/vulndb/cmd/indexdb@latest in tools/supply renews the list
	mkdir -p $(BIN)/vuln
	rm -rf $(BIN)/vulndb
	cd tools/supply && $(BIN)/indexdb -vulns $(call module,golang.org/x/vulndb)/data/osv -out $(BIN)/vulndb
	CGO_ENABLED=0 go build -tags grpcnotrace -trimpath -o $(BIN)/vuln/ ./cmd/...
	@$(call each,$(PROGRAMS),CGO_ENABLED=0 go build -tags grpcnotrace -trimpath -o $(BIN)/vuln/ .)
	$(RELEASE)
	for p in $(BIN)/vuln/*; do $(BIN)/govulncheck -db file://$(BIN)/vulndb -mode binary -format json $$p | $(BIN)/release vulns $$(basename $$p); done

# What makes packages and images. None of it needs a daemon.
$(BIN)/packages.stamp: tools/packages/go.mod tools/packages/go.sum $(wildcard tools/packages/image/*.go)
	mkdir -p $(BIN)
	cd tools/packages && CGO_ENABLED=0 go build -trimpath -o $(BIN)/ tool && CGO_ENABLED=0 go build -trimpath -o $(BIN)/ ./image
	touch $@

PLATFORMS ?= linux/amd64 linux/arm64 darwin/amd64 darwin/arm64
RELEASE_TOOLS := $(BIN)/supply.stamp $(BIN)/packages.stamp

release: $(RELEASE_TOOLS) ## in dist/release: programs for each of PLATFORMS, with a list of what each links (CycloneDX), packages, images, checksums
	rm -rf dist/release
	PLATFORMS="$(PLATFORMS)" TOOLS=$(BIN) tools/release/build.sh dist/release

release-packages-check: $(RELEASE_TOOLS) ## packages, images and checksums of dist/release, installed and run in trees of their own; needs root, Linux and rpm
	cd tools/packages && go test -count=1 ./...
	TOOLS=$(BIN) tools/release/check-packages.sh dist/release

# One release has the images of all platforms.
IMAGE_ARCHIVE = dist/release/$(PROGRAM)-$(shell sed -n 's/^const Software = "\(.*\)"/\1/p' internal/version/version.go).oci.tar

image: $(BIN)/packages.stamp ## an image of dist/release for `docker load`, in dist/PROGRAM.tar: PROGRAM=nstance-server IMAGE=name:tag PLATFORM=linux/amd64
	$(BIN)/image docker -from $(IMAGE_ARCHIVE) -to dist/$(PROGRAM).tar -platform $(or $(PLATFORM),linux/amd64) $(IMAGE)

image-push: $(BIN)/packages.stamp ## an image of dist/release to a registry, for all platforms: PROGRAM=nstance-server IMAGE=name:tag
	$(BIN)/image push -from $(IMAGE_ARCHIVE) $(IMAGE)

# Go refuses to install a program by its version if its module has a replace directive, so the tags of a release point to
# a commit of their own, beside the main branch.
RELEASE = cd tools/release && go build -o $(BIN)/release .

tools: $(BIN)/tools.stamp $(BIN)/buf.stamp $(BIN)/controller-gen $(BIN)/actionlint kube-servers servers $(BIN)/helm $(BIN)/kustomize $(BIN)/clusterctl $(BIN)/ec2-metadata-mock $(BIN)/axe.stamp $(RELEASE_TOOLS) ## what others wrote, and tests and releases use
	$(RELEASE)

release-commit: ## the commit that the tags of this version point to; prints its hash
	test -z "$$(git status --porcelain)" || { echo "commit your changes first"; exit 1; }
	$(RELEASE)
	test ! -e $(BIN)/release-modules || chmod -R u+w $(BIN)/release-modules
	rm -rf $(BIN)/release-tree $(BIN)/release-proxy $(BIN)/release-modules
	git clone -q . $(BIN)/release-tree
	$(BIN)/release commit -dir $(BIN)/release-tree -proxy $(BIN)/release-proxy -modcache $(BIN)/release-modules
	git fetch -q $(BIN)/release-tree HEAD
	@git rev-parse FETCH_HEAD

$(BIN)/actionlint: tools/actionlint/go.mod tools/actionlint/go.sum
	mkdir -p $(BIN)
	cd tools/actionlint && CGO_ENABLED=0 go build -trimpath -o $(BIN)/ tool
	touch $@

workflows-check: $(BIN)/actionlint ## the workflows of .github
	$(BIN)/actionlint

release-check: ## that a release of this tree can be installed and embedded
	tools/release/check.sh

tags: ## the tags to push for this version, all at the commit of release-commit
	@$(RELEASE)
	@$(BIN)/release tags -dir .

fresh: ## the README's two commands on empty caches
	tools/fresh.sh

size: build ## the agent must stay small enough for every machine
	@bytes=$$(stat -c %s dist/nstance-agent); echo "agent: $$bytes bytes"; test $$bytes -le $$((14 << 20))

# Data goes to memory where that can be written: beside the gate's other lane a disk takes seconds for a write.
scenarios: export TMPDIR := $(shell test -w /dev/shm && echo /dev/shm || echo $${TMPDIR:-/tmp})
scenarios: build ## the main job on this machine, where the tests of cmd do not play it: with more machines, and failover on each cloud
	dist/nstance-server dev --scenario mass --count 50 --json | tail -n 1
	dist/nstance-server dev --scenario kill --count 12 --seed 7 --json | tail -n 1
	for cloud in azure gcp proxmox; do dist/nstance-server dev --provider $$cloud --scenario failover --election-ttl 3s --json | tail -n 1; done
	dist/nstance-dev --scenario bridge --park hibernated --metadata gcp --json | tail -n 1

bench: ## everything measured beside its floor, in less than 20 minutes, to JSON=bench.json; see docs/benchmarks.md
	go run ./bench/all -json $${JSON:-bench.json}

$(KUBE)/karpenter: tools/karpenter/go.mod tools/karpenter/go.sum
	mkdir -p $(KUBE)/karpenter-crds
	cd tools/karpenter && install -m 644 $(call module,sigs.k8s.io/karpenter)/pkg/apis/crds/*.yaml $(call module,sigs.k8s.io/karpenter)/kwok/apis/crds/*.yaml $(KUBE)/karpenter-crds/
	cd tools/karpenter && CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o $@ sigs.k8s.io/karpenter/kwok

bench-karpenter: kube-servers $(KUBE)/karpenter ## Karpenter with kwok beside a shard: 1,000 nodes, of which 500 are lost at once
	cd kubernetes && KUBEBUILDER_ASSETS=$(KUBE) go test -timeout 60m -tags kube -run '^$$' -bench '^BenchmarkKubeBesideKarpenter' -benchtime 1x ./operator

bench-machineset: kube-servers ## Cluster API's MachineSet controller beside a shard: as bench-karpenter; each as it is shipped
	cd kubernetes && GOGC=100 KUBEBUILDER_ASSETS=$(KUBE) go test -timeout 90m -tags kube -run '^$$' -bench '^BenchmarkKubeBesideMachineSet' -benchtime 1x ./operator

$(BIN)/aws-node-termination-handler: tools/handler/go.mod tools/handler/go.sum
	cd tools/handler && CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o $@ github.com/aws/aws-node-termination-handler/cmd

bench-handler: $(E2E_SERVERS) $(BIN)/aws-node-termination-handler ## notice to cordon, beside AWS Node Termination Handler; needs root, for a mount namespace
	$(E2E) '^$$' -bench '^BenchmarkNoticeToCordon' -benchtime 12x

bench-kube: kube-servers ## nodes of 1,000 machines: notice to cordon, and the operator's memory
	cd kubernetes && KUBEBUILDER_ASSETS=$(KUBE) go test -timeout 60m -tags kube -run '^$$' -bench '^BenchmarkKube(Cordon|Pool)' -benchtime 1x ./operator

bench-orders: ## interruptions and cost of each order of shapes; NSTANCE_SPOT_TRACES=folders of traces, separated by colons
	go test -timeout 60m -count=1 -run '^TestOrdersCompared$$' -v ./reconcile

mutants: ## small changes to a package of the core, one at a time, that its tests must notice: PKG=./reconcile/plan, and TESTS=./other,./third if not its own
	go run ./internal/test/mutants -tests "$(TESTS)" $(PKG)

fuzz: ## each fuzz target for a short while
	for p in $$(go list ./...); do for f in $$(go test -list '^Fuzz' $$p | grep '^Fuzz' || true); do go test -run '^$$' -fuzz "^$$f$$" -fuzztime $${FUZZTIME:-10s} $$p; done; done

clean:
	rm -rf $(BIN) dist

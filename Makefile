# SPDX-License-Identifier: Apache-2.0

BIN     := bin
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
LDFLAGS := -s -w -X github.com/sluice-net/sluice/cmd/version.number=$(VERSION)
IMAGE   ?= sluice:$(VERSION)
# Arguments of the agent for make run, such as ARGS=--manifests=testdata/demo.
ARGS    ?=
# Time for each fuzzer and each benchmark.
FUZZTIME  ?= 10s
BENCHTIME ?= 1s
# Arguments of cmd/bench, such as BENCHARGS="--parts=policy --policy-samples=50".
BENCHARGS ?=

# With CI=true tests that need privileges fail instead of being skipped.
ifeq ($(CI),true)
export SLUICE_REQUIRE_PRIVILEGED := 1
endif

.DEFAULT_GOAL := help

.PHONY: help
help: ## List the targets
	@awk 'BEGIN { FS = ":.*## " } /^[a-z0-9-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build bin/sluice and bin/sluice-cni, static binaries
	CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN)/ ./cmd/sluice ./cmd/sluice-cni

.PHONY: run
run: build ## Build, and run the agent on the embedded demo, maps in memory; ARGS adds flags
	@$(BIN)/sluice agent --node-name=node-1 --bpf=memory $(ARGS) # a node of the demo, and nothing of this machine

.PHONY: demo
demo: build ## Show egress gateways and network policy at work, in a cluster of network namespaces; needs root
	@$(BIN)/sluice demo

# Longer than go test's 10 minutes: those with packets are slow on a busy machine.
TESTTIMEOUT := 40m

# What takes longest begins first. The results come in this order.
.PHONY: test
test: ## Run the tests that this machine allows
	go test -timeout $(TESTTIMEOUT) ./cmd/lab ./cmd/agent ./...

.PHONY: race
race: ## Run the tests with the race detector
	go test -race -timeout $(TESTTIMEOUT) ./...

.PHONY: fuzz
fuzz: ## Run each fuzzer for FUZZTIME
	@set -e; for package in $$(go list ./...); do \
		for fuzzer in $$(go test -list '^Fuzz' $$package | grep '^Fuzz' || true); do \
			echo "$$package $$fuzzer"; \
			go test -run '^$$' -fuzz "^$$fuzzer\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x $$package; \
		done; \
	done

# How often make soak repeats the attacks, and for how long it sends packets of the fuzzer, and has
# addresses that move beside busy processes.
SOAKCOUNT ?= 20
SOAKTIME  ?= 1h
ATTACKS   := OverlayForged.*|OverlayKeysRotate|Traffic(Ports|Connections)AreShared|TrafficExternalIPs
ATTACKS   := ^Test($(ATTACKS)|Policy(BridgeCopies|Link|ForgottenPod|Tampered|Services|NodePorts|BridgeServices))$$
FRAMES    := ^Test(ChecksumsWrittenLater|TaggedFrames|FragmentsAreNotTheHosts|RepliesThatTheHostForgot|ServiceEntriesAreShared)$$

.PHONY: soak
soak: ## Repeat the attacks of docs/security.md, kill gateways, send packets of the fuzzer for SOAKTIME, and look for races; needs root, hours
	SLUICE_REQUIRE_PRIVILEGED=1 go test -count=$(SOAKCOUNT) -timeout 12h -run '$(ATTACKS)' ./cmd/lab
	SLUICE_REQUIRE_PRIVILEGED=1 go test -count=$(SOAKCOUNT) -timeout 12h -run '$(FRAMES)' ./bpf/datapath
	SLUICE_REQUIRE_PRIVILEGED=1 SLUICE_RANDOM_SEEDS=$(SOAKCOUNT) go test -count=1 -timeout 12h -run '^TestTrafficEgressIPRandom$$' ./cmd/lab
	SLUICE_REQUIRE_PRIVILEGED=1 SLUICE_TEST_BUSY=$(SOAKTIME) go test -v -count=1 -timeout 12h -run '^TestTrafficEgressIPBusy$$' ./cmd/lab
	SLUICE_REQUIRE_PRIVILEGED=1 SLUICE_TEST_KILLS=1000 go test -v -count=1 -timeout 12h -run '^TestTrafficEgressIPKills$$' ./cmd/lab
	go test -count=1 -timeout 1h -run '^TestMemoryIsBounded$$' ./cmd/agent
	SLUICE_REQUIRE_PRIVILEGED=1 go test -run '^$$' -fuzz '^FuzzPackets$$' -fuzztime $(SOAKTIME) -fuzzminimizetime 10x ./bpf/datapath
	$(MAKE) race

# Pods of make zero-start with the CNI plugin, and as many without.
PODS ?= 10000

.PHONY: zero-start
zero-start: ## Start PODS pods in the lab, and judge their packets from the first instant; needs root
	SLUICE_REQUIRE_PRIVILEGED=1 SLUICE_ZERO_START_PODS=$(PODS) go test -v -count=1 -timeout 5h -run "^TestZeroStart$$" ./cmd/lab

# One package at a time, as latency is measured; -v shows it, and what is skipped.
E2E := SLUICE_E2E_KUBERNETES=$(abspath $(BIN))/kubernetes SLUICE_E2E_HELM=$(abspath $(BIN))/helm \
	go test -tags e2e -v -count=1 -p 1 -timeout 20m

.PHONY: browser
browser: ## Install the browser of the tests of the page (Debian, root)
	@command -v chromium >/dev/null || \
		{ apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends chromium; }

.PHONY: e2e
e2e: build kubernetes helm ## Test the binary against a real API server
	SLUICE_E2E_BINARY=$(abspath $(BIN))/sluice $(E2E) ./cmd/e2e/...

.PHONY: e2e-race
e2e-race: kubernetes helm ## The same, with the race detector in tests and agent
	CGO_ENABLED=1 go build -race -o $(BIN)/sluice-race ./cmd/sluice
	SLUICE_E2E_BINARY=$(abspath $(BIN))/sluice-race $(E2E) -race ./cmd/e2e/...

# What go has linked from the same inputs stays as it is: the first time takes 10 to
# 20 minutes, later ones a few seconds. The version is what kubectl and Helm ask for.
KUBERNETES_BUILD = -trimpath -buildvcs=false \
	-ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$$version \
		-X k8s.io/component-base/version.gitMajor=$$(echo $$version | tr -d v | cut -d. -f1) \
		-X k8s.io/component-base/version.gitMinor=$$(echo $$version | cut -d. -f2)"

.PHONY: kubernetes
kubernetes:
	cd testdata/kubernetes && version=$$(go list -m -f '{{.Version}}' k8s.io/kubernetes) && \
		CGO_ENABLED=0 go build $(KUBERNETES_BUILD) -o $(abspath $(BIN))/ .

# The tests of Kubernetes, and the server that their pods run.
.PHONY: kubernetes-tests
kubernetes-tests:
	cd testdata/kubernetes && version=$$(go list -m -f '{{.Version}}' k8s.io/kubernetes) && \
		CGO_ENABLED=0 go build $(KUBERNETES_BUILD) -o $(abspath $(BIN))/ k8s.io/kubernetes/test/images/agnhost && \
		CGO_ENABLED=0 go test -c $(KUBERNETES_BUILD) -o $(abspath $(BIN))/e2e.test ./e2e

# What a node has, besides what is built here. containerd is only unpacked: it is not a
# service of this machine.
NODETOOLS := iproute2 iptables nftables conntrack runc containernetworking-plugins util-linux

.PHONY: node-tools
node-tools: ## Install what the nodes of the cluster need (Debian, root)
	@dpkg -s $(NODETOOLS) >/dev/null 2>&1 || \
		{ apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $(NODETOOLS); }
	@test -x $(BIN)/containerd/usr/bin/containerd || \
		{ mkdir -p $(BIN)/containerd && cd $(BIN)/containerd && \
		{ apt-get download containerd || { apt-get update && apt-get download containerd; }; } && \
		dpkg -x containerd_*.deb . && rm containerd_*.deb; }

.PHONY: cluster-binaries
cluster-binaries: build kubernetes kubernetes-tests helm node-tools ## Build what go run ./cmd/cluster needs
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o $(BIN)/pod ./cmd/cluster/traffic/pod

.PHONY: helm
helm:
	cd testdata/helm && CGO_ENABLED=0 go build -trimpath -buildvcs=false -o $(abspath $(BIN))/helm helm.sh/helm/v4/cmd/helm

# With packets, and so slow on a busy machine.
.PHONY: cluster
cluster: cluster-binaries ## Test Sluice on a Kubernetes cluster of three nodes (root)
	SLUICE_CLUSTER_BIN=$(abspath $(BIN)) go test -tags cluster -v -count=1 -timeout 30m ./cmd/cluster

# What upstream's tests run in pods. busybox is only unpacked: the machine may have
# busybox-static, which cannot look up names.
PODTOOLS := curl netcat-openbsd wget

# Ginkgo runs Kubernetes' tests, three at once.
.PHONY: cluster-full-binaries
cluster-full-binaries: cluster-binaries
	@dpkg -s $(PODTOOLS) >/dev/null 2>&1 || \
		{ apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $(PODTOOLS); }
	@test -x $(BIN)/busybox/bin/busybox || \
		{ mkdir -p $(BIN)/busybox && cd $(BIN)/busybox && \
		{ apt-get download busybox || { apt-get update && apt-get download busybox; }; } && \
		dpkg -x busybox_*.deb . && rm busybox_*.deb; }
	cd testdata/kubernetes && CGO_ENABLED=0 go build $(KUBERNETES_BUILD) -o $(abspath $(BIN))/ github.com/onsi/ginkgo/v2/ginkgo
	cd testdata/cyclonus && CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags '-s -w' -o $(abspath $(BIN))/cyclonus . && \
		CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags '-s -w' -o $(abspath $(BIN))/cyclonus-worker ./worker

# Each cluster has another mode of kube-proxy, or another main CNI plugin. STEP is one of
# docs/conformance.md, such as STEP=Netpol; FULLARGS are flags, such as FULLARGS=-keep.
STEP         ?= .*
FULLARGS     ?=
FULLCLUSTERS ?= iptables+bridge nftables+bridge iptables+ptp
.PHONY: cluster-full
cluster-full: cluster-full-binaries ## Run upstream's network tests, Cyclonus and long tests on clusters (root, hours)
	@status=0; for cluster in $(FULLCLUSTERS); do \
		SLUICE_CLUSTER_BIN=$(abspath $(BIN)) go test -tags cluster,full -v -count=1 -timeout 6h -run '^TestFull$$/^$(STEP)$$' \
			./cmd/cluster -proxy=$${cluster%+*} -cni=$${cluster#*+} $(FULLARGS) || status=1; \
	done; exit $$status

.PHONY: manifests
manifests: ## Write what follows from the chart and from the agent's flags: deploy/
	go test -count=1 -run '^TestChartFlags$$' ./cmd/sluice -update
	cd testdata/helm && go run . manifests

.PHONY: chart
chart: manifests ## Check that deploy/ is what the chart makes, and test the chart
	@test -z "$$(git status --porcelain -- deploy)" || { git status --short -- deploy; git diff --stat -- deploy; exit 1; }
	cd testdata/helm && go vet ./... && go test ./...

.PHONY: bench
bench: ## Measure the whole agent, then its parts
	go run ./cmd/bench $(BENCHARGS)
	go test -run '^$$' -bench . -benchtime $(BENCHTIME) ./...

.PHONY: monitoring
monitoring: ## Check alerts and dashboard of deploy/monitoring
	cd testdata/monitoring && go test ./...

.PHONY: lint
lint: ## Check format, go vet and staticcheck
	@unformatted=$$(gofmt -l $$(git ls-files --cached --others --exclude-standard '*.go')); \
		if [ -n "$$unformatted" ]; then echo "not formatted: $$unformatted"; exit 1; fi
	go vet ./...
	go vet -tags e2e ./cmd/e2e/...
	go vet -tags cluster,full ./cmd/cluster/...
	go tool staticcheck ./...

# What builds the programs of bpf/programs. Needed to change them only: the
# objects are committed.
TOOLCHAIN := clang-19 llvm-19 libbpf-dev linux-libc-dev

.PHONY: toolchain
toolchain: ## Install the compiler of BPF programs (Debian 12 or newer, root)
	@dpkg -s $(TOOLCHAIN) >/dev/null 2>&1 || \
		{ apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $(TOOLCHAIN); }

.PHONY: generate
generate: ## Generate what is generated and committed
	go generate ./...

.PHONY: generated
generated: generate ## Check that what is committed is what is generated
	@test -z "$$(git status --porcelain -- bpf)" || { git status --short -- bpf; git diff --stat -- bpf; exit 1; }

# An SVG says of which source it was made, as fonts and versions differ: a test compares that.
.PHONY: pictures
pictures: ## Draw docs/pictures/*.dot; needs graphviz
	@set -e; for source in docs/pictures/*.dot; do \
		dot -Tsvg "$$source" | sed "2i <!-- made by make pictures of $$(sha256sum < "$$source" | cut -d' ' -f1) -->" > "$${source%.dot}.svg"; \
	done

# When the sources were changed last: the time of all files of a release.
SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)
RELEASE := $(abspath $(BIN))/release

.PHONY: release
release: ## Write binaries, SBOMs, chart and manifests to bin/release, with checksums
	rm -rf $(RELEASE)
	cd testdata/release && SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH) go run . binaries --version=$(VERSION) --output=$(RELEASE)
	cd testdata/helm && go run . package --version=$(VERSION) --output=$(RELEASE)
	cd testdata/release && go run . checksums $(RELEASE)

# The rest of the tree is built for the other platform with what is built already.
.PHONY: reproducible
reproducible: release ## Check that a copy of the sources elsewhere makes the same release
	cd testdata/release && go vet ./... && go test ./...
	GOARCH=arm64 CGO_ENABLED=0 go build -trimpath ./...
	@copy=$$(mktemp -d) && trap 'rm -rf "$$copy"' EXIT && \
		git ls-files -z --cached --others --exclude-standard | tar --create --null --files-from=- | tar --extract --directory="$$copy" && \
		$(MAKE) --directory="$$copy" release VERSION=$(VERSION) SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH) && \
		diff $(RELEASE)/SHA256SUMS "$$copy/bin/release/SHA256SUMS" && cd $(RELEASE) && sha256sum --check SHA256SUMS

.PHONY: image
image: ## Build the container image
	docker build -f deploy/Dockerfile --build-arg VERSION=$(VERSION) -t $(IMAGE) .

.PHONY: clean
clean: ## Remove what was built
	rm -rf $(BIN)

// SPDX-License-Identifier: Apache-2.0

// Command cluster runs a Kubernetes cluster on this machine, the one of the
// tests: see package kubernetes. The tests are here, too, under the build tag
// cluster: make cluster runs them.
//
//	make cluster-binaries
//	go run ./cmd/cluster up                           # until interrupted
//	go run ./cmd/cluster exec kubectl get pods -A     # in another terminal
//	go run ./cmd/cluster node worker-1 bash
package main

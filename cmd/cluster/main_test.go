// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/sluice-net/sluice/cmd/cluster/kubernetes"
)

// binVariable names the directory that make cluster-binaries fills.
const binVariable = "SLUICE_CLUSTER_BIN"

var (
	options kubernetes.Options
	keep    = flag.Bool("keep", false, "after a failure keep the cluster until interrupted")

	// running is the cluster of all tests.
	running *kubernetes.Cluster
)

// TestMain brings the cluster up, runs the tests and removes it.
func TestMain(m *testing.M) {
	kubernetes.Init()
	flag.StringVar(&options.Proxy, "proxy", kubernetes.IPTables,
		"mode of kube-proxy: iptables or nftables")
	flag.StringVar(&options.CNI, "cni", kubernetes.Bridge, "main CNI plugin: bridge or ptp")
	flag.Parse()
	code, err := runTests(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func runTests(m *testing.M) (code int, err error) {
	root, err := filepath.Abs(filepath.Join("..", "..")) // of the module
	if err != nil {
		return 1, err
	}
	if options.Bin = os.Getenv(binVariable); options.Bin == "" {
		return 1, fmt.Errorf("%s is not set: run make cluster", binVariable)
	}
	code, inside, err := kubernetes.RunIsolated(options)
	if !inside {
		return code, err
	}
	sluice, err := sluiceImage(root)
	if err != nil {
		return 1, err
	}
	options.Images = []kubernetes.Image{sluice}
	if running, err = kubernetes.Start(context.Background(), options); err != nil {
		return 1, err
	}
	if code = m.Run(); code != 0 && *keep {
		fmt.Println("The cluster is kept until interrupted. In another terminal:",
			"go run ./cmd/cluster exec kubectl get pods -A")
		interrupted := make(chan os.Signal, 1)
		signal.Notify(interrupted, syscall.SIGINT, syscall.SIGTERM)
		<-interrupted
	}
	return code, running.Alive()
}

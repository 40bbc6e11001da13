// SPDX-License-Identifier: Apache-2.0

// Package e2e is Kubernetes' own end-to-end suite, with its network tests
// only: go test -c makes a small e2e.test of it.
package e2e

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"k8s.io/kubernetes/test/e2e"
	"k8s.io/kubernetes/test/e2e/framework"
	"k8s.io/kubernetes/test/e2e/framework/config"
	"k8s.io/kubernetes/test/e2e/framework/testfiles"
	e2etestingmanifests "k8s.io/kubernetes/test/e2e/testing-manifests"

	_ "k8s.io/kubernetes/test/e2e/feature"                // the labels that tests have
	_ "k8s.io/kubernetes/test/e2e/framework/debug/init"   // dumps of a namespace in which a test failed
	_ "k8s.io/kubernetes/test/e2e/framework/metrics/init" // --gather-metrics-at-teardown
	_ "k8s.io/kubernetes/test/e2e/framework/node/init"    // waits until all nodes are ready
	_ "k8s.io/kubernetes/test/e2e/network"                // the tests
	_ "k8s.io/kubernetes/test/utils/format"               // objects in failures as YAML
)

// TestMain does what the suite of upstream does before its tests: package
// k8s.io/kubernetes/test/e2e has that in a test file, with the imports of all tests.
func TestMain(m *testing.M) {
	config.CopyFlags(config.Flags, flag.CommandLine)
	framework.RegisterCommonFlags(flag.CommandLine)
	framework.RegisterClusterFlags(flag.CommandLine)
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "unknown arguments:", flag.Args())
		os.Exit(2)
	}
	testfiles.AddFileSource(e2etestingmanifests.GetE2ETestingManifestsFS())
	framework.AfterReadingAllFlags(&framework.TestContext)
	os.Exit(m.Run())
}

func TestE2E(t *testing.T) { e2e.RunE2ETests(t) }

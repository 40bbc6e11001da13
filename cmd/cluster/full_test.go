// SPDX-License-Identifier: Apache-2.0

//go:build cluster && full

package main

import "testing"

// TestFull runs suites that others have written, and what takes long, on a
// cluster with Sluice: docs/conformance.md has the results. With -run, as in
// TestFull/Netpol, only the steps wanted run: they do not build on each other.
func TestFull(t *testing.T) {
	createPods(t)
	testInstall(t)
	importTools(t)
	serveDNS(t)
	for _, suite := range suites {
		t.Run(suite.name, suite.run)
	}
	t.Run("NodePort", testNodePort)
	t.Run("HostNetwork", testHostNetwork)
	t.Run("PowerOff", testPowerOff)
	t.Run("TimeZero", testManyTimeZero)
	t.Run("Cyclonus", testCyclonus)
}

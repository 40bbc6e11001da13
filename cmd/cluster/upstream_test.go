// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// upstreamTests are tests of Kubernetes' own suite for network policies: one of
// each kind. Each list runs in a process of its own, all at once.
var upstreamTests = [][]string{
	{
		"NetworkPolicy between server and client should support a 'default-deny-all' policy",
		"NetworkPolicy between server and client should enforce policy based on Ports",
		"NetworkPolicy between server and client should allow egress access to server in CIDR block",
		"NetworkPolicy between server and client using UDP should support a 'default-deny-ingress' policy",
	},
	{
		"NetworkPolicy between server and client should enforce policy based on PodSelector and NamespaceSelector",
		"NetworkPolicy between server and client should enforce updated policy",
		"NetworkPolicy between server and client should allow ingress access from updated pod",
	},
	{
		"NetworkPolicy between server and client should work with Ingress, Egress specified together",
		"NetworkPolicy between server and client should enforce except clause while egress access to server in CIDR block",
		"NetworkPolicy between server and client should enforce multiple, stacked policies with overlapping podSelectors",
		"API should support creating NetworkPolicy API operations",
	},
}

// testUpstream runs tests of Kubernetes' own suite.
func testUpstream(t *testing.T) {
	t.Run("group", func(t *testing.T) { // ends when all processes have
		for i, names := range upstreamTests {
			t.Run(fmt.Sprint(i+1), func(t *testing.T) {
				t.Parallel()
				runUpstream(t, names)
			})
		}
	})
}

// ranSpecs is the summary of a run.
var ranSpecs = regexp.MustCompile(`Ran (\d+) of \d+ Specs`)

// runUpstream runs tests by their names, without those that need SCTP in the kernel.
func runUpstream(t *testing.T, names []string) {
	var focus []string
	for _, name := range names {
		focus = append(focus, regexp.QuoteMeta(name)+"( |$)")
	}
	logPath := filepath.Join(options.Bin, "cluster", "log",
		strings.ReplaceAll(t.Name(), "/", "-")+".log")
	log, err := os.Create(logPath)
	require.NoError(t, err)
	defer log.Close()
	cmd := exec.CommandContext(t.Context(), filepath.Join(options.Bin, "e2e.test"),
		"-kubeconfig="+running.Kubeconfig(), "-provider=local", "-num-nodes=3",
		"-disable-log-dump", "-dump-logs-on-failure=false", "-report-dir="+t.TempDir(),
		"-ginkgo.focus="+strings.Join(focus, "|"), "-ginkgo.skip=Feature:SCTPConnectivity",
		"-ginkgo.v", "-ginkgo.no-color")
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
	cmd.Stdout, cmd.Stderr = log, log
	runErr := cmd.Run()
	text, err := os.ReadFile(logPath)
	require.NoError(t, err)
	summary := ranSpecs.FindSubmatch(text)
	require.NotNil(t, summary, "%s has no summary: %v", logPath, runErr)
	assert.Equal(t, fmt.Sprint(len(names)), string(summary[1]), "tests that ran")
	if _, failures, failed := strings.Cut(string(text), "Summarizing"); failed || runErr != nil {
		t.Errorf("%v: see %s: %s", runErr, logPath, failures)
	}
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"flag"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/cmd/lab"
)

// TestDemoAgent is no test: the test binary is the agent of the demo's nodes.
func TestDemoAgent(t *testing.T) {
	if flag.NArg() == 0 {
		t.Skip("for processes that the test of the demo starts")
	}
	lab.AgentMain(append(os.Args[:1:1], flag.Args()...))
}

func demoOptions(t *testing.T) lab.Options {
	if os.Geteuid() != 0 {
		require.Empty(t, os.Getenv("SLUICE_REQUIRE_PRIVILEGED"), lab.ErrNotRoot)
		t.Skip(lab.ErrNotRoot)
	}
	return lab.Options{Agent: []string{os.Args[0], "-test.run=^TestDemoAgent$", "--", "agent"}}
}

func newTestDemo(t *testing.T, out io.Writer) *demo {
	d := &demo{steps: demoSteps(), out: out}
	t.Cleanup(func() {
		if d.Cluster != nil && !t.Failed() {
			require.NoError(t, os.RemoveAll(d.Dir())) // where the logs stay after a failure
		}
	})
	return d
}

func TestDemo(t *testing.T) {
	options := demoOptions(t)
	var out bytes.Buffer
	d := newTestDemo(t, &out)
	require.NoError(t, d.run(t.Context(), options, false), "%s", &out)
	for _, s := range d.steps {
		require.Contains(t, out.String(), s.title)
	}
	require.GreaterOrEqual(t, strings.Count(out.String(), "sees 203.0.113.102"), 5, "%s", &out)
	require.Contains(t, out.String(), "DENIED: default deny")
	require.Equal(t, 2, strings.Count(out.String(), "no answer"), "%s", &out)
	require.NoDirExists(t, d.Dir())
}

// What is not as expected is said, and the logs stay.
func TestDemoFails(t *testing.T) {
	options := demoOptions(t)
	var out bytes.Buffer
	d := newTestDemo(t, &out)
	d.steps = []demoStep{{"1. Wrong", "", func(ctx context.Context, d *demo) error {
		d.observe(ctx, observation{d.other, "udp", lab.ServerIPv4, nil})
		return nil
	}}}
	require.ErrorContains(t, d.run(t.Context(), options, false), "is not as expected")
	require.Contains(t, out.String(), "WRONG")
	require.Contains(t, out.String(), d.Dir())
	require.FileExists(t, d.Nodes[0].Agent.LogPath())
}

// An interrupted demo is removed too.
func TestDemoInterrupted(t *testing.T) {
	options := demoOptions(t)
	ctx, interrupt := context.WithCancel(t.Context())
	var out bytes.Buffer
	d := newTestDemo(t, &out)
	d.steps = []demoStep{{"1. Waiting", "", func(ctx context.Context, d *demo) error {
		interrupt()
		return d.Nodes[0].Agent.AwaitPolicy(ctx, "none")
	}}}
	require.ErrorIs(t, d.run(ctx, options, false), context.Canceled)
	require.NoDirExists(t, d.Dir())
	for _, n := range d.Nodes {
		require.False(t, n.Agent.Running())
	}
}

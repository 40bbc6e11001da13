// SPDX-License-Identifier: Apache-2.0

//go:build cluster && full

package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/cmd/cluster/kubernetes"
)

var firstCase = flag.Int("first", 1, "number of the first test case of the step Cyclonus")

// workerImage is what the pods of Cyclonus run.
const workerImage = "docker.io/mfenwick100/cyclonus-worker:latest"

// cyclonusExcluded are tags of test cases that are left out: of SCTP, which the
// kernel does not have, copies of what the suite of Kubernetes does, and, as
// Cyclonus does unless told otherwise, combinations of two peers.
const cyclonusExcluded = "sctp,upstream-e2e,example,multi-peer"

// testCyclonus compares connections between pods with the model of Cyclonus:
// to the addresses of pods, then to services.
func testCyclonus(t *testing.T) {
	require.NoError(t, running.Import(t.Context(), kubernetes.Image{
		Names: []string{workerImage},
		Files: map[string]string{
			"agnhost": filepath.Join(options.Bin, "agnhost"),
			"worker":  filepath.Join(options.Bin, "cyclonus-worker"),
		},
		Env: []string{kubernetes.SearchPath},
	}))
	for _, destination := range []string{"pod-ip", "service-ip"} {
		t.Run(destination, func(t *testing.T) { runCyclonus(t, destination) })
	}
}

func runCyclonus(t *testing.T, destination string) {
	logPath := filepath.Join(options.Bin, "cluster", "log", "cyclonus-"+destination+".log")
	log, err := os.Create(logPath)
	require.NoError(t, err)
	defer log.Close()
	cmd := exec.CommandContext(t.Context(), filepath.Join(options.Bin, "cyclonus"),
		"-destination="+destination, "-exclude="+cyclonusExcluded,
		"-first="+strconv.Itoa(*firstCase))
	cmd.Env = append(os.Environ(), "KUBECONFIG="+running.Kubeconfig())
	cmd.Stdout, cmd.Stderr = log, log
	runErr := cmd.Run() // fails if a connection differs; the summary has how many

	text, err := os.ReadFile(logPath)
	require.NoError(t, err)
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	var summary struct {
		Cases, Steps, Connections, Different, Retried, Seconds int
		Failed                                                 []int
	}
	require.NoError(t, json.Unmarshal(lines[len(lines)-1], &summary), "%v: see %s", runErr, logPath)
	t.Logf("Cyclonus to %s, kube-proxy %s, CNI %s: %d test cases, %d connections compared, %d differ "+
		"(cases %v), %d of %d steps tried twice, %d s", destination, options.Proxy, options.CNI,
		summary.Cases, summary.Connections, summary.Different, summary.Failed,
		summary.Retried, summary.Steps, summary.Seconds)
	assert.NotZero(t, summary.Connections)
	assert.NoError(t, runErr, "see %s", logPath)
}

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

// cyclonusDestinations are what is connected to, and tags of cases that are left out with
// it: Cyclonus v0.5.6 knows no service address of pods that it makes or changes, and has the
// other pods connect to themselves instead (pkg/connectivity/probe: NewPod, Pod.SetLabels).
var cyclonusDestinations = []struct{ name, excluded string }{
	{"pod-ip", ""},
	{"service-ip", ",create-namespace,create-pod,set-pod-labels"},
}

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
	for _, d := range cyclonusDestinations {
		t.Run(d.name, func(t *testing.T) { runCyclonus(t, d.name, cyclonusExcluded+d.excluded) })
	}
}

func runCyclonus(t *testing.T, destination, excluded string) {
	logPath := filepath.Join(options.Bin, "cluster", "log", "cyclonus-"+destination+".log")
	log, err := os.Create(logPath)
	require.NoError(t, err)
	defer log.Close()
	cmd := exec.CommandContext(t.Context(), filepath.Join(options.Bin, "cyclonus"),
		"-destination="+destination, "-exclude="+excluded,
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

// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/cmd/cluster/traffic"
)

// testTimeZero runs pods that send with their first instruction: the server
// outside sees none of them with another address than the egress IP.
func testTimeZero(t *testing.T) {
	const pods, requests = 18, 5
	apply(t, fmt.Sprintf(`
apiVersion: batch/v1
kind: Job
metadata: {name: time-zero, namespace: %s}
spec:
  completions: %d
  parallelism: 6
  template:
    metadata: {labels: {app: checkout}}
    spec: %s
`, shop, pods, podSpec("", "Never", "send", "-interval=0s", "-count="+strconv.Itoa(requests), outside)))
	waitFor(t, shop, "condition=Complete", "job/time-zero")
	sources := running.Outside.Sources("time-zero-")
	t.Logf("%d pods sent %d requests each over UDP and TCP; the server has seen %v",
		pods, requests, sources)
	assert.Equal(t, []string{egressIP}, slices.Collect(maps.Keys(sources)), "source addresses")
	seen := map[string]bool{}
	for _, request := range running.Outside.Requests("time-zero-") {
		if request.Text == fmt.Sprintf("%s %d", request.Name, requests) && request.Protocol == "tcp" {
			seen[request.Name] = true
		}
	}
	assert.Len(t, seen, pods, "pods whose last request has arrived")
}

// deniedArgs are those of a pod that must have no answer. It waits for none for
// long, so that it asks at every moment.
var deniedArgs = []string{"send", "-timeout=300ms", webAddress}

// patience is how long an answer is waited for that must come: long, as a busy
// machine gives a pod no CPU time for seconds.
const patience = "-timeout=15s"

// steadyTraffic is traffic that must go on while agents come and go, or must
// not come through meanwhile. Each is a pod that writes down its answers.
var steadyTraffic = []struct {
	name, node, app string
	args            []string
	source          string // that the server sees; of TCP
}{
	{"hold-egress", "worker-1", "checkout", []string{"hold", patience, outside}, egressIP},
	{"send-egress", "worker-3", "checkout", []string{"send", patience, outside}, egressIP},
	{"hold-web", "worker-2", "client", []string{"hold", patience, webAddress}, "itself"},
	{"send-web", "worker-1", "client", []string{"send", patience, "-protocols=tcp", webAddress},
		"itself"},
	{"denied", "worker-2", "other", deniedArgs, traffic.Failed},
}

// startTraffic starts the steady traffic. The function that it returns ends
// it, and fails if it was disturbed.
func startTraffic(t *testing.T) (stop func()) {
	t.Helper()
	var manifests strings.Builder
	for _, s := range steadyTraffic {
		manifests.WriteString(pod(s.name, s.node, s.app, s.args...))
	}
	apply(t, manifests.String())
	for _, s := range steadyTraffic {
		waitFor(t, shop, "condition=Ready", "pod/"+s.name)
	}
	first := map[string]int{}
	for _, s := range steadyTraffic {
		// Of the first ones some may be missing: what is compared comes later.
		await(t, s.name+" has some answers", func() error {
			lines := trafficLog(t, s.name)
			if first[s.name] = len(lines); len(lines) < 10 {
				return fmt.Errorf("its log has %d lines", len(lines))
			}
			return nil
		})
	}
	return func() {
		t.Helper()
		for _, s := range steadyTraffic {
			requireUndisturbed(t, s.name, s.source, trafficLog(t, s.name)[first[s.name]:])
			kubectl(t, "-n", shop, "delete", "pod", s.name, "--wait=false")
		}
	}
}

func trafficLog(t *testing.T, pod string) []string {
	t.Helper()
	return slices.Collect(strings.Lines(kubectl(t, "-n", shop, "logs", pod)))
}

// requireUndisturbed fails if an answer is another than the one wanted. An answer
// over UDP may be missing.
func requireUndisturbed(t *testing.T, pod, want string, lines []string) {
	t.Helper()
	last := strings.Join(lines[max(0, len(lines)-3):], "")
	assert.Equal(t, "Running 0", read(t, shop, "{.status.phase} "+restartsPath, "pod", pod),
		"%s: phase, restarts; its last lines:\n%s", pod, last)
	if want == "itself" {
		want = podIP(t, pod)
	}
	wrong := map[string]int{}
	for _, line := range lines {
		words := strings.SplitN(strings.TrimSpace(line), " ", 3) // SEQUENCE PROTOCOL ANSWER
		if len(words) < 3 {
			wrong[line]++
			continue
		}
		answer, _, _ := strings.Cut(words[2], ": ")
		if lost := words[1] == "udp" && answer == traffic.Failed; answer != want && !lost {
			wrong[words[1]+" "+words[2]]++
		}
	}
	t.Logf("%s: %d answers", pod, len(lines))
	assert.Empty(t, wrong, "%s: answers other than %s, of %d", pod, want, len(lines))
	assert.NotEmpty(t, lines, "%s: answers", pod)
}

// testRestart kills agents, and upgrades them, under traffic.
func testRestart(t *testing.T) {
	stop := startTraffic(t)
	for _, node := range running.Nodes {
		killAgent(t, node.Name)
	}
	for _, node := range running.Nodes {
		await(t, "the agent of "+node.Name+" runs again", func() error {
			return agentReady(t, node.Name, "1")
		})
	}
	upgradeChart(t, "--set-string=image.tag="+nextTag)
	awaitRollout(t, "daemonset/sluice")
	images := read(t, sluiceNamespace, "{.items[*].spec.containers[*].image}", "pods",
		"--selector=app.kubernetes.io/name=sluice")
	assert.Equal(t, len(running.Nodes), strings.Count(images, imageRepository+":"+nextTag), images)
	requireNoRestarts(t)
	stop()
	for _, pod := range []string{"hold-egress", "send-egress"} {
		sources := slices.Collect(maps.Keys(running.Outside.Sources(pod)))
		assert.Equal(t, []string{egressIP}, sources, "addresses that the server has seen of %s", pod)
	}
}

// killAgent ends the agent of a node with SIGKILL.
func killAgent(t *testing.T, node string) {
	t.Helper()
	root, err := os.Readlink("/proc/" + strconv.Itoa(running.Node(node).PID()) + "/ns/net")
	require.NoError(t, err)
	killed := 0
	processes, err := filepath.Glob("/proc/[0-9]*")
	require.NoError(t, err)
	for _, process := range processes {
		command, err := os.ReadFile(filepath.Join(process, "cmdline"))
		if err != nil || !strings.HasPrefix(string(command), "/sluice\x00agent") {
			continue
		}
		if network, err := os.Readlink(filepath.Join(process, "ns/net")); err != nil || network != root {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(process))
		require.NoError(t, err)
		require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
		killed++
	}
	require.Equal(t, 1, killed, "agents on %s", node)
}

// agentReady fails unless the agent of a node is ready, after some restarts.
func agentReady(t *testing.T, node, restarts string) error {
	t.Helper()
	status := read(t, sluiceNamespace, restartsPath+" "+readyPath, "pod", agentPod(t, node))
	if want := restarts + " true"; status != want {
		return fmt.Errorf("restarts and readiness are %q, want %q", status, want)
	}
	return nil
}

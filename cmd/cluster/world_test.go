// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sluice-net/sluice/cmd/cluster/kubernetes"
	"github.com/sluice-net/sluice/cmd/cluster/traffic"
)

const (
	sluiceNamespace = "sluice-system"
	shop            = "shop" // namespace of the pods that docs/quick-start.md speaks of
)

// settleTimeout is how long something may take that is awaited, on a busy machine.
const settleTimeout = 3 * time.Minute

// run runs a command in the module's directory, as an administrator with
// kubectl and helm would, and returns its output.
func run(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Dir = filepath.Join("..", "..")
	cmd.Env = append(os.Environ(), "KUBECONFIG="+running.Kubeconfig(), "HOME="+t.TempDir(),
		"PATH="+os.Getenv("PATH")+":"+options.Bin) // for helm
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	require.NoError(t, cmd.Run(), "%s\n%s%s", strings.Join(args, " "), &stdout, &stderr)
	return stdout.String()
}

func kubectl(t *testing.T, args ...string) string {
	t.Helper()
	text, err := running.RunKubectl(t.Context(), args...)
	require.NoError(t, err)
	return strings.TrimSpace(text)
}

// waitFor waits until objects meet a condition, as kubectl wait has them.
func waitFor(t *testing.T, namespace, condition string, objects ...string) {
	t.Helper()
	args := []string{"-n", namespace, "wait", "--for=" + condition,
		"--timeout=" + settleTimeout.String()}
	kubectl(t, append(args, objects...)...)
}

// read returns a part of an object, or of a list, as JSONPath selects it.
func read(t *testing.T, namespace, path string, object ...string) string {
	t.Helper()
	return kubectl(t,
		append([]string{"-n", namespace, "get", "--output=jsonpath=" + path}, object...)...)
}

// Parts of a pod's status, as JSONPath.
const (
	readyPath    = "{.status.containerStatuses[*].ready}"
	restartsPath = "{.status.containerStatuses[*].restartCount}"
)

func apply(t *testing.T, manifests string) {
	t.Helper()
	require.NoError(t, running.Apply(t.Context(), manifests))
}

// await polls until a condition holds.
func await(t *testing.T, what string, condition func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), settleTimeout)
	defer cancel()
	require.NoError(t, kubernetes.Await(ctx, what, condition))
}

// pod is the manifest of a pod in the namespace shop that runs
// cmd/cluster/traffic/pod.
func pod(name, node, app string, args ...string) string {
	return fmt.Sprintf(`---
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: %s, labels: {app: %s}}
spec: %s
`, name, shop, app, podSpec(node, "Always", args...))
}

// podSpec is the specification of such a pod, as JSON. Without a node the
// scheduler selects one.
func podSpec(node, restart string, args ...string) string {
	container := corev1.Container{Name: "pod", Image: kubernetes.TrafficImage, Args: args}
	// Without a request the pods get next to no CPU time on a busy machine.
	container.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("5m")}
	if args[0] == "serve" {
		container.ReadinessProbe = &corev1.Probe{
			ProbeHandler:  corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(traffic.Port)}},
			PeriodSeconds: 1,
		}
	}
	grace := int64(1)
	spec, err := json.Marshal(corev1.PodSpec{
		NodeName:                      node,
		RestartPolicy:                 corev1.RestartPolicy(restart),
		TerminationGracePeriodSeconds: &grace,
		Containers:                    []corev1.Container{container},
	})
	if err != nil {
		panic(err) // of plain data
	}
	return string(spec)
}

// answers are the answers to requests, by protocol: the address that the server
// has seen, or what failed.
type answers map[string]string

// ask has a pod ask a server, over UDP and over TCP.
func ask(t *testing.T, pod, server string) answers {
	t.Helper()
	return parseAnswers(kubectl(t, "-n", shop, "exec", pod, "--", "/pod", "send", "-count=1", server))
}

func parseAnswers(lines string) answers {
	got := answers{}
	for line := range strings.Lines(lines) {
		words := strings.SplitN(strings.TrimSpace(line), " ", 3) // SEQUENCE PROTOCOL ANSWER
		if answer, _, failed := strings.Cut(words[2], ": "); failed {
			words[2] = answer
		}
		got[words[1]] = words[2]
	}
	return got
}

// outside is the server outside of the cluster.
var outside = fmt.Sprintf("%s:%d", kubernetes.OutsideIP, traffic.Port)

// podIP is the address of a pod in the namespace shop.
func podIP(t *testing.T, name string) string {
	t.Helper()
	return read(t, shop, "{.status.podIP}", "pod", name)
}

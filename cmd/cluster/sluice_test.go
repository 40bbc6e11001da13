// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/cmd/cluster/kubernetes"
)

// Names of the same image, to upgrade from one to the other.
const (
	imageRepository = "registry.example/sluice" // as in docs/quick-start.md
	imageTag        = "1"
	nextTag         = "2"
)

// sluiceImage is the image of deploy/Dockerfile: what its last stage copies
// from the build, with the entry point and the environment that it says.
func sluiceImage(root string) (kubernetes.Image, error) {
	image := kubernetes.Image{
		Names: []string{imageRepository + ":" + imageTag, imageRepository + ":" + nextTag},
		Files: map[string]string{},
	}
	text, err := os.ReadFile(filepath.Join(root, "deploy", "Dockerfile"))
	if err != nil {
		return image, err
	}
	stages := strings.Split(string(text), "\nFROM ")
	for line := range strings.Lines(stages[len(stages)-1]) {
		instruction, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch instruction {
		case "COPY":
			words := strings.Fields(rest) // --from=build SOURCE TARGET
			if len(words) != 3 || words[0] != "--from=build" {
				return image, fmt.Errorf("deploy/Dockerfile: what is copied by %q?", line)
			}
			binary := filepath.Join(options.Bin, filepath.Base(words[1]))
			image.Files[strings.TrimPrefix(words[2], "/")] = binary
		case "ENV":
			search, _ := strings.CutPrefix(kubernetes.SearchPath, "PATH=")
			value := strings.NewReplacer(`"`, "", "${PATH}", search).Replace(rest)
			image.Env = append(image.Env, value)
		case "ENTRYPOINT":
			if err := json.Unmarshal([]byte(rest), &image.Entrypoint); err != nil {
				return image, fmt.Errorf("deploy/Dockerfile: parse entry point: %w", err)
			}
		}
	}
	return image, nil
}

// quickStart runs the one block of commands in docs/quick-start.md that has a
// text in it. The agent's pod that the document names is that of a node.
func quickStart(t *testing.T, text, node string) string {
	t.Helper()
	document, err := os.ReadFile(filepath.Join("..", "..", "docs", "quick-start.md"))
	require.NoError(t, err)
	var blocks []string
	block := ""
	for line := range strings.Lines(string(document) + "end\n") {
		switch command, isCode := strings.CutPrefix(line, "    "); {
		case isCode:
			block += command
		case strings.TrimSpace(line) == "" && block != "":
			block += "\n" // within a block, or after it
		default:
			if strings.Contains(block, text) {
				blocks = append(blocks, block)
			}
			block = ""
		}
	}
	require.Len(t, blocks, 1, "blocks of docs/quick-start.md with %q", text)
	script := blocks[0]
	if node != "" {
		script = strings.ReplaceAll(script, "sluice-x7k2p", agentPod(t, node))
	}
	return run(t, "sh", "-exc", script)
}

// upgradeChart changes values of the chart's release, and keeps the others.
func upgradeChart(t *testing.T, values ...string) {
	t.Helper()
	command := []string{filepath.Join(options.Bin, "helm"), "upgrade", "sluice",
		"deploy/helm/sluice", "--namespace=" + sluiceNamespace, "--reset-then-reuse-values"}
	run(t, append(command, values...)...)
}

// awaitRollout waits until the pods of objects such as daemonset/sluice are those
// of its last version, and ready.
func awaitRollout(t *testing.T, objects ...string) {
	t.Helper()
	for _, object := range objects {
		kubectl(t, "-n", sluiceNamespace, "rollout", "status", object,
			"--timeout="+settleTimeout.String())
	}
}

// agentPod is the name of the agent's pod on a node.
func agentPod(t *testing.T, node string) string {
	t.Helper()
	return read(t, sluiceNamespace, "{.items[*].metadata.name}", "pods",
		"--selector=app.kubernetes.io/name=sluice", "--field-selector=spec.nodeName="+node)
}

// sluice runs a command of sluice on a node.
func sluice(t *testing.T, node string, args ...string) string {
	t.Helper()
	command := []string{"-n", sluiceNamespace, "exec", agentPod(t, node), "--", "sluice"}
	return kubectl(t, append(command, args...)...)
}

// rows returns the rows of a table of a node's agent.
func rows[Row any](t *testing.T, node, table string) (rows []Row) {
	t.Helper()
	text := sluice(t, node, "get", table, "--output=json")
	require.NoError(t, json.Unmarshal([]byte(text), &rows), text)
	return rows
}

// requireNoRestarts fails if a container of the agents has ever ended, or an
// agent is not ready.
func requireNoRestarts(t *testing.T) {
	t.Helper()
	pods := read(t, sluiceNamespace,
		"{range .items[*]}{.spec.nodeName} "+restartsPath+" "+readyPath+"{'\\n'}{end}", "pods",
		"--selector=app.kubernetes.io/name=sluice")
	var want []string
	for _, node := range running.Nodes {
		want = append(want, node.Name+" 0 true")
	}
	require.ElementsMatch(t, want, strings.Split(pods, "\n"), "node, restarts and readiness of agents")
}

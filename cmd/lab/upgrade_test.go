// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
)

// formerCommit is the last one whose agents have one set of maps, and go on with it.
const formerCommit = "d5ec91c"

// buildFormer builds the agent of the former version, and returns its path.
func buildFormer(t *testing.T) string {
	t.Helper()
	requireRoot(t)
	if testing.Short() {
		t.Skip("it builds another version")
	}
	dir := t.TempDir()
	archive := filepath.Join(dir, "former.tar")
	err := exec.Command("git", "-C", "../..", "archive", "-o", archive, formerCommit).Run()
	if err != nil {
		t.Skipf("the former version is not in this clone: %v", err)
	}
	source, binary := filepath.Join(dir, "source"), filepath.Join(dir, "sluice")
	require.NoError(t, os.Mkdir(source, 0o755))
	out, err := exec.Command("tar", "-x", "-f", archive, "-C", source).CombinedOutput()
	require.NoError(t, err, "%s", out)
	build := exec.Command("go", "build", "-trimpath", "-o", binary, "./cmd/sluice")
	build.Dir, build.Env = source, append(os.Environ(), "CGO_ENABLED=0")
	out, err = build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return binary
}

// Agents of this version take the place of those of the former one, node by node, while
// packets flow: none that is allowed is lost, and none passes that is forbidden.
func TestUpgrade(t *testing.T) {
	s := beginSteady(t, Options{Agent: []string{buildFormer(t), "agent"}})
	s.policyTest.drops.close() // it would end with the agents
	s.options.Agent = nil
	for i, n := range s.Nodes {
		s.moment("node %d", i)
		require.NoError(t, n.Agent.Stop())
		s.more()
		require.NoError(t, n.Agent.Start())
		require.NoError(t, n.Agent.AwaitReady(s.ctx))
		s.more()
	}
	t.Logf("%d changes", s.settle())
	s.judge()
	for _, n := range s.Nodes {
		maps := bpf.MapsDir(n.Agent.BPFFS())
		sources, err := bpf.OpenInForce(maps, "sluice_pods")
		require.NoError(t, err)
		require.NoError(t, sources.Close())
		require.NoFileExists(t, filepath.Join(maps, "sluice_sources"), "the former version's")
	}
}

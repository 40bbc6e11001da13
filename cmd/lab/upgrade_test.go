// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
)

// formerCommit is the last one whose agents have one set of maps, and go on with it.
const formerCommit = "d5ec91c"

// buildFormer builds the agent of the former version, and returns its command.
func buildFormer(t *testing.T) []string {
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
	return []string{binary, "agent"}
}

// Agents of this version take the place of those of the former one, node by node, while
// packets flow: none that is allowed is lost, and none passes that is forbidden.
func TestUpgrade(t *testing.T) {
	u := beginUpgrade(t, buildFormer(t))
	for _, n := range u.Nodes {
		u.replace(n, nil)
	}
	u.end()
	for _, n := range u.Nodes {
		u.uses(n, false)
	}
}

// Agents of the former version come back, node by node, and then those of this one: none that
// is forbidden passes, and connections go on. The former version has no entries of pods when
// its programs take the place of this one's: it holds them until it has.
func TestRollback(t *testing.T) {
	former := buildFormer(t)
	u := beginUpgrade(t, nil)
	u.mayHold = true
	for _, n := range u.Nodes {
		u.replace(n, former)
		u.uses(n, true)
	}
	for pod := range u.pods {
		require.NoError(t, pod.Node.Agent.AwaitAttached(u.ctx, pod))
	}
	held := u.held()
	for _, n := range u.Nodes {
		u.replace(n, nil)
		u.uses(n, false)
	}
	u.end()
	t.Logf("%d packets were held", held)
	require.Equal(t, held, u.held(), "this version holds none")
}

// Agents of both versions are killed while they start, and those of the other one, or of the
// same, go on with what they leave: the same holds.
func TestRollbackUnfinished(t *testing.T) {
	const rounds, kills = 6, 3
	former := buildFormer(t)
	u := beginUpgrade(t, former)
	u.mayHold = true
	random := rand.New(rand.NewPCG(6, 6))
	for round := range rounds {
		n := u.Nodes[round%2]
		a := n.Agent
		for range kills {
			a.Kill()
			u.keepCounters()
			if a.Command = nil; random.IntN(2) == 0 {
				a.Command = former
			}
			u.moment("%s: start %v", n.Name, a.Command)
			require.NoError(t, a.Start())
			within := time.Duration(random.IntN(1500)) * time.Millisecond
			ctx, cancel := context.WithTimeout(u.ctx, within)
			_ = a.AwaitReady(ctx)
			cancel()
		}
		require.NoError(t, a.AwaitReady(u.ctx))
		u.moment("%s: ready", n.Name)
		u.more()
	}
	for _, n := range u.Nodes {
		u.replace(n, nil)
	}
	u.end()
	for _, n := range u.Nodes {
		u.uses(n, false)
	}
}

// upgrade is a steady cluster in which agents are replaced by those of another version.
// Besides what others watch there are connections by the gateway node-2, of a pod of each
// node.
type upgrade struct {
	*steady
	byGateway []*Stream
}

// beginUpgrade builds the cluster with agents of a version.
func beginUpgrade(t *testing.T, command []string) *upgrade {
	t.Helper()
	u := &upgrade{steady: beginSteady(t, Options{Agent: command})}
	u.policyTest.drops.close() // it would end with the agents
	gateway := u.Nodes[1]
	u.policy(egress{name: "bank", app: "client", to: []netip.Prefix{excludedIPv4}, exits: []exit{
		{node: gateway.Name, ip: gateway.EgressIPv4},
	}})
	for _, name := range []string{"client", "stranger"} {
		from := u.names[name].Namespace
		u.traffic.becomes(from, inExcludedIPv4, gateway.EgressIPv4)
		s, err := u.StartStream(from, inExcludedIPv4, 300)
		require.NoError(t, err)
		u.byGateway = append(u.byGateway, s)
	}
	u.streams = append(u.streams, u.byGateway...)
	u.more()
	return u
}

// replace has an agent of another version take the place of a node's.
func (u *upgrade) replace(n *Node, command []string) {
	u.t.Helper()
	u.moment("%s: stop", n.Name)
	require.NoError(u.t, n.Agent.Stop())
	u.keepCounters()
	u.more()
	n.Agent.Command = command
	u.moment("%s: start", n.Name)
	require.NoError(u.t, n.Agent.Start())
	require.NoError(u.t, n.Agent.AwaitReady(u.ctx))
	u.moment("%s: ready", n.Name)
	u.more()
}

// uses waits until the maps of one version are pinned, with entries, and none of the other.
func (u *upgrade) uses(n *Node, former bool) {
	u.t.Helper()
	dir := bpf.MapsDir(n.Agent.BPFFS())
	names := []string{"sluice_pods", "sluice_ipcache", "sluice_policy", "sluice_egress"}
	u.eventually("the maps are those of the version", func() error {
		for _, name := range names {
			if err := pinnedIn(dir, name, former); err != nil {
				return err
			}
			if err := pinnedIn(dir, name, !former); !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("map %s of the other version: %w", name, err)
			}
		}
		return nil
	})
}

// pinnedIn returns no error if a map of a version is pinned and has entries.
func pinnedIn(dir, name string, former bool) error {
	open := func() (*ebpf.Map, error) { return bpf.OpenActive(dir, name) }
	if former {
		open = func() (*ebpf.Map, error) { return ebpf.LoadPinnedMap(filepath.Join(dir, name), nil) }
	}
	m, err := open()
	if err != nil {
		return err
	}
	defer m.Close()
	var key []byte
	if err := m.NextKey(nil, &key); err != nil {
		return fmt.Errorf("map %s: %w", name, err)
	}
	return nil
}

// end stops changes and traffic, and asserts what has become of that.
func (u *upgrade) end() {
	u.t.Helper()
	u.t.Logf("%d changes", u.settle())
	u.judge()
	only := u.Nodes[1].EgressIPv4
	for i, s := range u.byGateway {
		r := s.Report()
		for addr := range r.Addresses() {
			require.Equal(u.t, only, addr, "stream %d by the gateway: %v", i, r)
		}
		require.Len(u.t, r.Sources, 1, "stream %d by the gateway: %v", i, r)
	}
	u.noLeaks(slices.Concat(u.allOutside(), []netip.Addr{only})...)
}

// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// What other tools do to programs, pins and entries of a node is noticed, counted and put right,
// and what policies deny is denied again.
func TestPolicyTampered(t *testing.T) {
	t.Parallel()
	p := newPolicyTest(t, Options{AgentFlags: []string{"--audit-interval=1s"}})
	n := p.Nodes[0]
	p.enforce(closedOther)
	const denied = `
other near  tcp/80 egress  NetworkPolicy/shop/closed
near  other udp/80 ingress NetworkPolicy/shop/closed
`
	p.check(denied)

	links, index := bpf.LinksDir(n.Agent.BPFFS()), p.ifIndexOf(n, "other")
	for _, program := range []bpf.Program{bpf.ProgramFromPod, bpf.ProgramToPod} {
		pin := filepath.Join(links, bpf.LinkName(index, program))
		p.noticed(n, program.String(), tables.TamperedDetached, func() {
			l, err := link.LoadPinnedLink(pin, nil)
			require.NoError(t, err)
			require.NoError(t, l.Detach())
			require.NoError(t, l.Close())
		})
		p.noticed(n, program.String(), tables.TamperedUnpinned, func() {
			require.NoError(t, os.Remove(pin))
		})
		require.FileExists(t, pin)
		p.denials()
		p.check(denied)
	}

	// In the active slot: all is allowed, some pod is not known, there is a policy of no object.
	maps := bpf.MapsDir(n.Agent.BPFFS())
	p.noticed(n, "sluice_verdicts", tables.TamperedChanged, func() {
		tamper(t, maps, "sluice_verdicts", func(m *ebpf.Map, e bpf.Entry[bpf.VerdictKey, bpf.VerdictValue]) {
			e.Value.Deny = 0
			require.NoError(t, m.Put(e.Key, e.Value))
		})
	})
	p.noticed(n, "sluice_pods", tables.TamperedMissing, func() {
		tamper(t, maps, "sluice_pods", func(m *ebpf.Map, e bpf.Entry[bpf.PodKey, bpf.PodValue]) {
			require.NoError(t, m.Delete(e.Key))
		})
	})
	p.noticed(n, "sluice_policy", tables.TamperedForeign, func() {
		tamper(t, maps, "sluice_policy", func(m *ebpf.Map, e bpf.Entry[bpf.PolicyKey, bpf.PolicyValue]) {
			e.Key.Class = 1 << 30
			require.NoError(t, m.Put(e.Key, e.Value))
		})
	})
	p.noticed(n, bpf.StateMap, tables.TamperedChanged, func() {
		m, err := ebpf.LoadPinnedMap(filepath.Join(maps, "layout_4", bpf.StateMap), nil)
		require.NoError(t, err)
		defer m.Close()
		var now bpf.StateValue
		require.NoError(t, m.Lookup(bpf.StateKey{}, &now))
		now.Slot = (now.Slot + 1) % bpf.Slots
		require.NoError(t, m.Put(bpf.StateKey{}, now))
	})
	require.NoError(t, n.Agent.AwaitSettled(p.ctx))
	p.denials()
	p.check(denied + "client near tcp/80 allowed")
}

const closedOther = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: closed, namespace: shop}
spec: {podSelector: {matchLabels: {app: other}}, policyTypes: [Ingress, Egress]}
`

// tamper does something to each entry of a map in the active slot.
func tamper[K, V comparable](
	t *testing.T, maps, name string, do func(*ebpf.Map, bpf.Entry[K, V]),
) {
	t.Helper()
	m, err := bpf.OpenActive(maps, name)
	require.NoError(t, err)
	defer m.Close()
	entries, err := bpf.DumpKernel[K, V](m)
	require.NoError(t, err)
	require.NotEmpty(t, entries)
	for _, e := range entries {
		do(m, e)
	}
}

// noticed does something, and waits until the agent tells of more of its kind than before, and
// all programs are attached.
func (p *policyTest) noticed(n *Node, object, kind string, do func()) {
	p.t.Helper()
	count := func() (total uint64) {
		rows, err := Rows[tables.Tampering](p.ctx, n.Agent, "tampering")
		require.NoError(p.t, err)
		for _, r := range rows {
			if r.Object == object && r.Kind == kind {
				total = r.Count
			}
		}
		return total
	}
	before := count()
	do()
	p.eventually(fmt.Sprintf("%s %s is noticed", object, kind), func() error {
		if count() == before {
			return fmt.Errorf("it is not")
		}
		return nil
	})
	require.NoError(p.t, n.Agent.AwaitAttached(p.ctx))
}

// denials waits until the pod is closed again: until what was changed is put right, it may not be.
func (p *policyTest) denials() {
	p.t.Helper()
	p.becomes("other near tcp/80", cannotSend)
	p.becomes("near other udp/80", isDropped)
}

// ifIndexOf is the index of the device of a pod.
func (p *policyTest) ifIndexOf(n *Node, pod string) int {
	p.t.Helper()
	rows, err := Rows[tables.LocalEndpoint](p.ctx, n.Agent, "local-endpoints")
	require.NoError(p.t, err)
	for _, r := range rows {
		if r.Addr == p.place(pod).ipv4 {
			return int(r.IfIndex)
		}
	}
	require.Fail(p.t, "no device of "+pod)
	return 0
}

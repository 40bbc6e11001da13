// SPDX-License-Identifier: Apache-2.0

package members

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

func (h *harness) exact(text string) *tables.IPCache {
	row, _, _ := h.IPCache.Get(h.db.ReadTxn(), tables.IPCacheByPrefix(prefix(text)))
	return row
}

func (h *harness) scope(text string) tables.Scope {
	m, _, _ := h.Members.Get(h.db.ReadTxn(), tables.MemberByNumber(h.exact(text).Member))
	return m.Scope
}

// A look-up of the longest prefix must not lose what is known of a shorter one.
func TestPrefixesOfPoliciesInheritWhatIsKnown(t *testing.T) {
	h := newHarness(t)
	there := addr("192.168.0.2")
	node := &tables.Node{
		Name: "there", InternalIPs: []netip.Addr{there}, PodCIDRs: []netip.Prefix{prefix("10.2.0.0/16")},
	}
	h.inputs.Nodes.Put(node)
	h.inputs.Routes.Put(&tables.Route{
		Table: tables.RouteTableLocal, Type: "local", Destination: prefix("192.168.9.0/24"), DeviceIndex: 1,
	})
	named := []string{
		"10.2.3.0/24", "10.0.0.0/13", "10.0.0.0/7", "169.254.169.254/32", "192.168.9.7/32",
		"fe80::1/128", "2001:db8::/32",
	}
	var peers []tables.PolicyPeer
	for _, p := range named {
		peers = append(peers, cidr(p, true))
	}
	h.use(peers...)
	h.settle()
	for p, want := range map[string]tables.IPCache{
		"0.0.0.0/0":     {Origins: []string{"peer prefix"}},
		"::/0":          {Origins: []string{"peer prefix"}},
		"10.0.0.0/7":    {Origins: []string{"peer prefix"}},
		"2001:db8::/32": {Origins: []string{"peer prefix"}},
		"10.2.3.0/24": {
			Flags: bpf.IPCacheInCluster, Tunnel: there, Origins: []string{"peer prefix", "inside 10.2.0.0/16"},
		},
		"10.0.0.0/13": {
			Flags: bpf.IPCacheInCluster, Origins: []string{"peer prefix", "inside 10.0.0.0/12"},
		},
		"169.254.169.254/32": {
			Flags: bpf.IPCacheLocalScope, Origins: []string{"peer prefix", "inside 169.254.0.0/16"},
		},
		"fe80::1/128": {
			Flags: bpf.IPCacheLocalScope, Origins: []string{"peer prefix", "inside fe80::/10"},
		},
		"192.168.9.7/32": {
			Flags:   bpf.IPCacheInCluster | bpf.IPCacheHost,
			Origins: []string{"peer prefix", "inside 192.168.9.0/24"},
		},
	} {
		row := h.exact(p)
		require.Equal(t, want.Flags, row.Flags, p)
		require.Equal(t, want.Tunnel, row.Tunnel, p)
		require.Equal(t, want.Origins, row.Origins, p)
		require.True(t, row.Inherits, p)
	}

	// What is around them goes away, and comes back with another tunnel.
	h.inputs.Nodes.Remove(node)
	h.settle()
	require.Equal(t, []string{"peer prefix", "inside 10.0.0.0/12"}, h.exact("10.2.3.0/24").Origins)
	require.Equal(t, netip.Addr{}, h.exact("10.2.3.0/24").Tunnel)
	moved := *node
	moved.InternalIPs = []netip.Addr{addr("192.168.0.3")}
	h.inputs.Nodes.Put(&moved)
	h.settle()
	require.Equal(t, moved.InternalIPs[0], h.exact("10.2.3.0/24").Tunnel)

	// A pod in it has its own row, and so has the prefix when the pod is gone.
	web := pod("prod/web", here, "10.2.3.4", nil)
	h.inputs.Endpoints.Put(web)
	one := h.use(cidr("10.2.3.4/32", true))[0]
	h.settle()
	require.False(t, h.exact("10.2.3.4/32").Inherits)
	require.Equal(t, bpf.IPCacheInCluster|bpf.IPCachePod|bpf.IPCacheLocalPods,
		h.exact("10.2.3.4/32").Flags)
	h.inputs.Endpoints.Remove(web)
	h.settle()
	require.Equal(t, []string{"peer prefix", "inside 10.2.0.0/16"}, h.exact("10.2.3.4/32").Origins)
	h.inputs.Selectors.Remove(one)
	h.settle()
	require.Nil(t, h.exact("10.2.3.4/32"))
}

// An address is that of this node, of another one, of a pod, or of none of these: the first
// that applies. Of several pods it is that of the newest.
func TestAddressesThatSeveralHave(t *testing.T) {
	h := newHarness(t)
	h.inputs.Nodes.Put(
		&tables.Node{Name: here, InternalIPs: []netip.Addr{addr("192.0.2.1"), addr("192.0.2.7")}},
		&tables.Node{
			Name: "there", InternalIPs: []netip.Addr{addr("192.0.2.2"), addr("192.0.2.7")},
			TunnelIPs: []netip.Addr{addr("10.2.0.1"), addr("10.2.0.2")},
		})
	older := pod("prod/older", "there", "10.2.0.1", nil)
	newer := pod("prod/newer", "there", "10.2.0.1", nil)
	newer.Created = older.Created.Add(time.Second)
	h.inputs.Endpoints.Put(older, newer, pod("prod/strange", "there", "192.0.2.2", nil))
	h.inputs.Services.Put(&tables.Service{
		Name:  tables.Name{Namespace: "prod", Name: "s"},
		Addrs: []netip.Addr{addr("192.0.2.2"), addr("10.3.0.1"), addr("198.51.100.1")},
	})
	h.settle()

	shared := h.exact("192.0.2.7/32")
	require.Equal(t, bpf.IPCacheHost|bpf.IPCacheNode|bpf.IPCacheInCluster, shared.Flags)
	host, _, _ := h.Members.Get(h.db.ReadTxn(), tables.MemberByNumber(shared.Member))
	require.Equal(t, here, host.Node)

	strange := h.exact("192.0.2.2/32")
	require.Equal(t, bpf.IPCacheNode|bpf.IPCacheInCluster|bpf.IPCachePod|bpf.IPCacheService,
		strange.Flags)
	require.False(t, strange.Tunnel.IsValid())
	require.Equal(t, tables.ScopeNode, h.scope("192.0.2.2/32"))

	row := h.exact("10.2.0.1/32")
	require.Equal(t, []string{"pod prod/newer"}, row.Origins)
	require.Equal(t, []string{"prod/older"}, row.Conflicts)
	require.Equal(t, addr("192.0.2.2"), row.Tunnel)
	require.Equal(t, tables.ScopePods, h.scope("10.2.0.1/32"))

	require.Equal(t, bpf.IPCacheInCluster, h.exact("10.2.0.2/32").Flags)
	require.Equal(t, tables.ScopeCluster, h.scope("10.2.0.2/32"))
	require.Equal(t, tables.ScopeCluster, h.scope("10.3.0.1/32"))
	require.Equal(
		t, tables.ScopeWorld, h.scope("198.51.100.1/32"), "no prefix of the cluster has it",
	)
}

// Pods are reached through their nodes: a node that comes, goes or gets another address
// concerns its own pods and no others, and anything else that changes of it none.
func TestNodesThatMove(t *testing.T) {
	h := newHarness(t)
	for name, at := range map[string]string{
		"10.0.1.1": "one", "10.0.1.2": "one", "10.0.2.1": "two", "10.0.3.1": "three",
	} {
		h.inputs.Endpoints.Put(pod("prod/"+name, at, name, nil))
	}
	node := func(name string, addrs ...string) *tables.Node {
		n := &tables.Node{Name: name}
		for _, a := range addrs {
			n.InternalIPs = append(n.InternalIPs, addr(a))
		}
		return n
	}
	c := newCounter(h)
	written := func(rows int, change *tables.Node, tunnels ...string) {
		t.Helper()
		h.inputs.Nodes.Put(change)
		require.Equal(t, rows, c.written()["ipcache"])
		for i, pod := range []string{"10.0.1.1/32", "10.0.1.2/32", "10.0.2.1/32", "10.0.3.1/32"}[:len(tunnels)] {
			require.Equal(t, tunnels[i], h.exact(pod).Tunnel.String())
		}
	}
	written(3, node("one", "192.168.0.1"), "192.168.0.1", "192.168.0.1", "invalid IP")
	written(2, node("two", "192.168.0.2"), "192.168.0.1", "192.168.0.1", "192.168.0.2")
	ready := node("one", "192.168.0.1")
	ready.Ready = true
	written(0, ready)
	outside := node("one", "192.168.0.1")
	outside.OtherIPs = []netip.Addr{addr("203.0.113.1")}
	written(1, outside)
	written(2, node("one", "192.168.0.1", "192.168.0.9"), "192.168.0.1", "192.168.0.1")
	written(2, node("one", "192.168.0.9", "192.168.0.1"), "192.168.0.9", "192.168.0.9")
	written(2, node("three", "192.168.0.3"),
		"192.168.0.9", "192.168.0.9", "192.168.0.2", "192.168.0.3")
}

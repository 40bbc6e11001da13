// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"iter"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cilium/statedb"
	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/stretchr/testify/require"
	vn "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// node is a node with one pod behind it and one client before it.
type node struct {
	*network
	pod, client *network
	podDevice   int
}

func newNode(t *testing.T) *node {
	n := &node{network: newNetwork(t), pod: newNetwork(t), client: newNetwork(t)}
	for _, network := range []*network{n.network, n.pod, n.client} {
		network.do(func() { // addresses are there at once
			for _, name := range []string{"all", "default"} {
				require.NoError(
					t, os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/accept_dad", []byte("0"), 0),
				)
			}
		})
	}
	n.podDevice = n.connect("pod0", n.pod, "10.1.0.", "2001:db8:1::")
	n.connect("out0", n.client, "192.0.2.", "2001:db8:2::")
	n.do(func() {
		for _, name := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
			require.NoError(t, os.WriteFile("/proc/sys/"+name, []byte("1"), 0))
		}
	})
	// The kernel tracks connections where a rule asks for it.
	c, err := nftables.New(nftables.WithNetNSFd(int(n.ns)))
	require.NoError(t, err)
	table := c.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "test"})
	chain := c.AddChain(&nftables.Chain{Name: "forward", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter})
	c.AddRule(&nftables.Rule{
		Table: table, Chain: chain, Exprs: []expr.Any{&expr.Ct{Key: expr.CtKeySTATE, Register: 1}},
	})
	require.NoError(t, c.Flush())
	return n
}

// connect makes a link to another network, whose default route it becomes, and
// returns the index of its near end.
func (n *node) connect(name string, to *network, prefixes ...string) int {
	attrs := vn.NewLinkAttrs()
	attrs.Name = name
	require.NoError(n.t, n.LinkAdd(&vn.Veth{
		LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: vn.NsFd(to.ns),
	}))
	for _, end := range []struct {
		*network
		device, host string
	}{{n.network, name, "1"}, {to, "eth0", "2"}} {
		for _, prefix := range prefixes {
			mask := "/24"
			if strings.Contains(prefix, ":") {
				mask = "/64"
			}
			addr, err := vn.ParseAddr(prefix + end.host + mask)
			require.NoError(n.t, err)
			addr.Flags = unix.IFA_F_NODAD
			require.NoError(n.t, end.AddrAdd(end.link(end.device), addr))
		}
		require.NoError(n.t, end.LinkSetUp(end.link(end.device)))
	}
	for _, prefix := range prefixes {
		require.NoError(n.t, to.RouteAdd(&vn.Route{Gw: net.ParseIP(prefix + "1")}))
	}
	return n.link(name).Attrs().Index
}

// dial connects from one network to another and returns both ends.
func dial(t *testing.T, from, to *network, addr string) (near, far net.Conn) {
	var listener net.Listener
	to.do(func() {
		var err error
		listener, err = net.Listen("tcp", net.JoinHostPort(addr, "0"))
		require.NoError(t, err)
	})
	defer listener.Close()
	from.do(func() {
		var err error
		near, err = net.DialTimeout("tcp", listener.Addr().String(), patience)
		require.NoError(t, err)
	})
	far, err := listener.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { near.Close(); far.Close() })
	return near, far
}

// Subjects of the pod of a node: what policies say of it.
const (
	unknown uint32 = iota // not known yet
	free                  // no policy selects it
	routed                // an egress policy routes all destinations, and there is no gateway
	judged                // a network policy selects it: see judgedRuleset
)

const judgedRuleset = 5

// writeMaps makes the pod of a node one of a subject.
func (a *agent) writeMaps(podDevice int, subject uint32, pods ...string) {
	a.t.Helper()
	put(a, a.maps.Config, bpf.ConfigKey{}, bpf.ConfigValue{
		MarkMask: 0x3000, MarkShift: 12, LifetimeTCP: 8000, LifetimeAny: 60, LifetimeSYN: 60,
		LifetimeClosing: 10,
		ReportInterval:  5, Flags: bpf.ConfigStrictSource,
	})
	for _, prefix := range []string{"0.0.0.0/0", "::/0"} {
		put(a, a.maps.Egress, bpf.EgressKeyFrom(1, netip.MustParsePrefix(prefix)), bpf.EgressValue{
			Group: 1, Bits: uint8(netip.MustParsePrefix(prefix).Bits()),
		})
		put(a, a.maps.IPCache, bpf.IPCacheKeyFrom(netip.MustParsePrefix(prefix)), bpf.IPCacheValue{
			Member: 1,
		})
	}
	put(a, a.maps.Peers, bpf.PeerKey{Member: 1}, bpf.PeerValue{Class: 1})
	put(a, a.maps.Subjects, bpf.SubjectKey{Subject: free}, bpf.SubjectValue{
		Ruleset: bpf.EmptyRuleset,
	})
	put(a, a.maps.Subjects, bpf.SubjectKey{Subject: routed}, bpf.SubjectValue{
		Ruleset: bpf.EmptyRuleset,
	})
	put(a, a.maps.Subjects, bpf.SubjectKey{Subject: judged}, bpf.SubjectValue{
		Ruleset: judgedRuleset,
	})
	put(a, a.maps.Routes, bpf.SubjectKey{Subject: routed}, bpf.RouteValue{EgressRuleset: 1})
	for _, pod := range pods {
		row := &tables.Pod{Addr: netip.MustParseAddr(pod), Subject: subject, Local: true, IfIndex: uint32(podDevice)}
		a.pods.Put(row)
		put(a, a.maps.Pods, row.MapKey(), row.MapValue())
	}
}

// put writes an entry of a map.
func put[K, V comparable](a *agent, m bpf.Map[K, V], key K, value V) {
	a.t.Helper()
	_, err := m.Update([]K{key}, []V{value})
	require.NoError(a.t, err)
}

// setFlags sets flags of the configuration.
func (a *agent) setFlags(flags bpf.ConfigFlags) {
	a.t.Helper()
	config, found, err := bpf.Lookup(a.maps.Config, bpf.ConfigKey{})
	require.NoError(a.t, err)
	require.True(a.t, found)
	config.Flags = flags
	put(a, a.maps.Config, bpf.ConfigKey{}, config)
}

// newSeeder returns a seeder of the pods of an agent.
func (a *agent) newSeeder(ns namespace, reported map[int]time.Time) *seeder {
	s := newSeeder(testLog(a.t), ns, a.datapath, func() (map[int]time.Time, error) {
		return reported, nil
	})
	s.pods = func() iter.Seq2[*tables.Pod, statedb.Revision] { return a.pods.All(a.db.ReadTxn()) }
	return s
}

// masquerade has what the node sends by a device have its own address.
func (n *node) masquerade(device string) {
	n.t.Helper()
	c, err := nftables.New(nftables.WithNetNSFd(int(n.ns)))
	require.NoError(n.t, err)
	table := c.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "masquerade"})
	chain := c.AddChain(&nftables.Chain{Name: "postrouting", Table: table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource})
	name := make([]byte, unix.IFNAMSIZ)
	copy(name, device)
	c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
		&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: name},
		&expr.Masq{},
	}})
	require.NoError(n.t, c.Flush())
}

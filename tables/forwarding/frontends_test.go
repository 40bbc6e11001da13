// SPDX-License-Identifier: Apache-2.0

package forwarding

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/tablestest"
)

// frontendWorld has the inputs of the rule, which a test writes.
type frontendWorld struct {
	testing.TB
	db        *statedb.DB
	services  tablestest.Table[*tables.Service]
	slices    tablestest.Table[*tables.BackendSlice]
	endpoints tablestest.Table[*tables.Endpoint]
	nodes     tablestest.Table[*tables.Node]
	members   tablestest.Table[*tables.Member]
	ipcache   tablestest.Table[*tables.IPCache]
	frontends statedb.RWTable[*tables.Frontend]
	rule      *tablestest.Rule[frontendKey]
}

func newFrontendWorld(t *testing.T, config Config) *frontendWorld {
	db := statedb.New()
	w := &frontendWorld{
		TB: t, db: db,
		services:  tablestest.Open(t, db, tables.NewServiceTable),
		slices:    tablestest.Open(t, db, tables.NewBackendSliceTable),
		endpoints: tablestest.OpenEndpoints(t, db, "here"),
		nodes:     tablestest.Open(t, db, tables.NewNodeTable),
		members:   tablestest.Open(t, db, tables.NewMemberTable),
		ipcache:   tablestest.Open(t, db, tables.NewIPCacheTable),
		frontends: tablestest.Open(t, db, tables.NewFrontendTable).RWTable,
	}
	w.rule = tablestest.NewRule(t, db, frontendParams{
		Config: config, Maps: bpf.Config{MapSizeServices: 64}, LocalNode: tables.LocalNode{Name: "here"}, Frontends: w.frontends,
		Services: w.services, Backends: w.slices, Endpoints: w.endpoints, Nodes: w.nodes,
		Members: w.members, IPCache: w.ipcache,
	}.rule())
	return w
}

// has asserts which frontends there are: key, namespace, origins, backends.
func (w *frontendWorld) has(want ...string) {
	w.Helper()
	w.rule.Work()
	var got []string
	for f := range w.frontends.All(w.db.ReadTxn()) {
		row := f.TableRow()
		got = append(got, fmt.Sprintf("%s %s %s %s", row[0], row[2], row[1], row[3]))
	}
	slices.Sort(got)
	slices.Sort(want)
	require.Equal(w, want, got)
}

func name(text string) tables.Name {
	namespace, n, _ := strings.Cut(text, "/")
	return tables.Name{Namespace: namespace, Name: n}
}

func addrsOf(texts ...string) (addrs []netip.Addr) {
	for _, text := range texts {
		addrs = append(addrs, netip.MustParseAddr(text))
	}
	return addrs
}

func slice(service string, serves uint8, addrs ...string) *tables.BackendSlice {
	n := name(service)
	n.Name += fmt.Sprint("-", serves, len(addrs))
	return &tables.BackendSlice{
		Name: n, Service: name(service), Serves: serves, Addrs: addrsOf(addrs...),
		Ports: []tables.BackendPort{{Protocol: 6, Port: 8080}},
	}
}

// member adds a label set of pods and their addresses.
func (w *frontendWorld) member(number uint32, namespace string, set labels.Set, addrs ...string) {
	w.members.Put(&tables.Member{
		Life: tables.Life{Number: number}, Digest: bpf.Digest{byte(number)}, Namespace: namespace,
		Labels: tables.NewLabelSet(namespace, "", set, nil),
	})
	for _, a := range addrsOf(addrs...) {
		w.ipcache.Put(&tables.IPCache{
			Prefix: netip.PrefixFrom(a, a.BitLen()), Member: number, Flags: bpf.IPCachePod,
		})
	}
}

// node adds a node with an address.
func (w *frontendWorld) node(number uint32, node, addr string) {
	w.members.Put(&tables.Member{
		Life: tables.Life{Number: number}, Digest: bpf.Digest{byte(number)},
		MemberDef: tables.MemberDef{Scope: tables.ScopeNode, Node: node},
	})
	a := netip.MustParseAddr(addr)
	w.ipcache.Put(&tables.IPCache{
		Prefix: netip.PrefixFrom(a, a.BitLen()), Member: number, Flags: bpf.IPCacheNode,
	})
}

// An external address is translated where kube-proxy does it: for a service that is not headless,
// at its ports, while there is a backend of the family. Pods of its namespace rely on it; those
// of all do if a load balancer has the address, or the flag is set; none does if namespaces
// dispute it.
func TestExternalFrontends(t *testing.T) {
	w := newFrontendWorld(t, Config{})
	s := &tables.Service{
		Name: name("shop/web"), Addrs: addrsOf("10.96.0.1", "fd96::1"),
		ExternalIPs: addrsOf("203.0.113.1", "2001:db8::1"),
		Ports:       []tables.ServicePort{{Protocol: 6, Port: 443, TargetPort: 8080}},
	}
	w.services.Put(s)
	w.has()
	w.slices.Put(slice("shop/web", bpf.FamilyIPv4))
	w.has("203.0.113.1:443/tcp shop service shop/web -")
	w.slices.Put(slice("shop/web", bpf.FamilyIPv6))
	w.has("203.0.113.1:443/tcp shop service shop/web -", "[2001:db8::1]:443/tcp shop service shop/web -")
	w.slices.Remove(slice("shop/web", bpf.FamilyIPv6))
	w.has("203.0.113.1:443/tcp shop service shop/web -")

	single := tables.Clone(s)
	single.Addrs = addrsOf("fd96::1")
	w.services.Put(single)
	w.has()
	headless := tables.Clone(s)
	headless.NotProxied = true
	w.services.Put(headless)
	w.has()
	w.services.Put(s)

	other := tables.Clone(s)
	other.Name = name("garden/web")
	w.services.Put(other)
	w.slices.Put(slice("garden/web", bpf.FamilyIPv4))
	w.has("203.0.113.1:443/tcp disputed service garden/web, service shop/web -")
	balanced := tables.Clone(other)
	balanced.LoadBalancerIPs = addrsOf("203.0.113.1")
	w.services.Put(balanced)
	w.has("203.0.113.1:443/tcp - service garden/web, service shop/web -")
	w.services.Remove(balanced)
	w.has("203.0.113.1:443/tcp shop service shop/web -")
	w.services.Remove(s)
	w.has()

	trusting := newFrontendWorld(t, Config{TrustExternalIPs: true})
	trusting.services.Put(s)
	trusting.slices.Put(slice("shop/web", bpf.FamilyIPv4))
	trusting.has("203.0.113.1:443/tcp - service shop/web -")
}

// A port of nodes leads to the addresses in its slices, those outside first, and to one pod of each
// label set that the service selects.
func TestNodePortFrontends(t *testing.T) {
	w := newFrontendWorld(t, Config{})
	s := &tables.Service{
		Name: name("shop/web"), Addrs: addrsOf("10.96.0.1"), Selector: labels.Set{"app": "web"},
		Ports: []tables.ServicePort{{Protocol: 6, Port: 80, TargetPort: 8080, NodePort: 30080}},
	}
	w.services.Put(s)
	w.member(1, "shop", labels.Set{"app": "web", "tier": "a"}, "10.0.0.9", "10.0.0.2")
	w.member(2, "shop", labels.Set{"app": "web", "tier": "b"}, "10.0.0.3")
	w.member(3, "garden", labels.Set{"app": "web"}, "10.0.0.4")
	w.has()
	w.slices.Put(slice("shop/web", bpf.FamilyIPv4, "203.0.113.9"))
	w.has("0.0.0.0:30080/tcp - service shop/web 203.0.113.9:8080, 10.0.0.2:8080, 10.0.0.3:8080")

	w.ipcache.Remove(&tables.IPCache{Prefix: netip.MustParsePrefix("10.0.0.2/32")})
	w.has("0.0.0.0:30080/tcp - service shop/web 203.0.113.9:8080, 10.0.0.3:8080, 10.0.0.9:8080")

	for i := range 16 {
		w.member(uint32(10+i), "shop", labels.Set{"app": "web", "pod": fmt.Sprint(i)}, fmt.Sprintf("10.0.1.%d", i+1))
	}
	w.rule.Work()
	f, _, _ := w.frontends.Get(w.db.ReadTxn(), tables.FrontendByID(tables.FrontendID{
		Addr: netip.IPv4Unspecified(), Protocol: 6, Port: 30080,
	}))
	require.True(t, f.More)
	require.Len(t, f.Backends, bpf.FrontendBackends)
	require.Equal(t, bpf.FrontendAtNode|bpf.FrontendMore, f.MapValue().Flags)
	w.services.Remove(s)
	w.has()
}

// Who writes a slice may call any address a pod's, and give a pod any port: all that is not as the
// service selects it is listed.
func TestNodePortToForeignPods(t *testing.T) {
	w := newFrontendWorld(t, Config{})
	w.member(1, "tenant", labels.Set{"app": "web"}, "10.0.0.1")
	w.member(2, "garden", labels.Set{"app": "web"}, "10.0.0.2")
	s := &tables.Service{
		Name: name("tenant/web"), Addrs: addrsOf("10.96.0.1"), Selector: labels.Set{"app": "web"},
		Ports: []tables.ServicePort{{Protocol: 6, Port: 80, TargetPort: 8080, NodePort: 30080}},
	}
	w.services.Put(s)
	const row = "0.0.0.0:30080/tcp - service tenant/web "
	honest := slice("tenant/web", bpf.FamilyIPv4)
	honest.PodAddrs = addrsOf("10.0.0.1")
	w.slices.Put(honest)
	w.has(row + "10.0.0.1:8080")

	forged := slice("tenant/web", bpf.FamilyIPv4)
	forged.Name.Name = "forged"
	forged.PodAddrs = addrsOf("10.0.0.1", "10.0.0.2", "203.0.113.9")
	forged.Ports = []tables.BackendPort{{Protocol: 6, Port: 22}}
	w.slices.Put(forged)
	w.has(row + "203.0.113.9:22, 10.0.0.1:22, 10.0.0.1:8080, 10.0.0.2:22")

	s = tables.Clone(s)
	s.Selector = nil
	w.services.Put(s)
	w.has(row + "203.0.113.9:22, 10.0.0.1:22, 10.0.0.1:8080, 10.0.0.2:22")
	w.slices.Remove(honest)
	w.has(row + "203.0.113.9:22, 10.0.0.1:22, 10.0.0.2:22")

	// Of pods of the host network there is one for each port.
	hosts := tables.Clone(forged)
	hosts.PodAddrs = nil
	for i := range 40 {
		addr := fmt.Sprintf("192.0.2.%d", i+1)
		w.node(uint32(100+i), addr, addr)
		hosts.PodAddrs = append(hosts.PodAddrs, netip.MustParseAddr(addr))
	}
	w.slices.Put(hosts)
	w.has(row + "192.0.2.1:22")

	many := tables.Clone(forged)
	many.PodAddrs = nil
	for i := range 100 {
		many.PodAddrs = append(many.PodAddrs, netip.AddrFrom4([4]byte{198, 51, 100, byte(i)}))
	}
	w.slices.Put(many)
	w.rule.Work()
	for f := range w.frontends.All(w.db.ReadTxn()) {
		require.True(t, f.More)
		require.Len(t, f.Backends, bpf.FrontendBackends)
	}
}

// A host port is one of all addresses of its node; on this node the backend is not listed, as the
// packet is judged where it leads.
func TestHostPortFrontends(t *testing.T) {
	w := newFrontendWorld(t, Config{})
	pod := func(n, node, addr string, ports ...tables.HostPort) *tables.Endpoint {
		return &tables.Endpoint{
			Name: name(n), Node: node, Addrs: addrsOf(addr), HostPorts: ports,
			LabelSet: tables.NewLabelSet("shop", "", nil, nil),
		}
	}
	port := tables.HostPort{Protocol: 6, Port: 8480, ContainerPort: 80}
	w.endpoints.Put(pod("shop/near", "here", "10.0.0.1", port))
	w.has("127.0.0.1:8480/tcp - pod shop/near -")
	far := pod("shop/far", "there", "10.0.0.2", port)
	w.endpoints.Put(far)
	w.has("127.0.0.1:8480/tcp - pod shop/near -")
	there := &tables.Node{Name: "there", InternalIPs: addrsOf("192.0.2.2", "fd00::2")}
	w.nodes.Put(there)
	w.has("127.0.0.1:8480/tcp - pod shop/near -", "192.0.2.2:8480/tcp - pod shop/far 10.0.0.2:80")

	// One row goes with its node, also if the pod goes at the same time.
	w.nodes.Remove(there)
	w.endpoints.Remove(far)
	w.has("127.0.0.1:8480/tcp - pod shop/near -")

	given := port
	given.Addr = netip.MustParseAddr("192.0.2.1")
	w.node(7, "here", "192.0.2.1")
	w.endpoints.Put(pod("shop/near", "here", "10.0.0.1", given))
	w.has("192.0.2.1:8480/tcp - pod shop/near -")
	w.endpoints.Remove(pod("shop/near", "here", "10.0.0.1"))
	w.has()
}

// A pod names any address for a port of its node. It counts only while the node has it: else a
// tenant would have the traffic of others to that address judged by its pod.
func TestHostPortAtForeignAddress(t *testing.T) {
	for _, node := range []string{"here", "there"} {
		w := newFrontendWorld(t, Config{})
		at := netip.MustParseAddr("198.51.100.1")
		w.endpoints.Put(&tables.Endpoint{
			Name: name("tenant/pod"), Node: node, Addrs: addrsOf("10.0.0.1"),
			HostPorts: []tables.HostPort{{Addr: at, Protocol: 6, Port: 443, ContainerPort: 80}},
			LabelSet:  tables.NewLabelSet("tenant", "", nil, nil),
		})
		w.has()
		w.node(1, "other", at.String())
		w.has()
		w.node(2, node, at.String())
		w.rule.Work()
		require.Equal(t, 1, w.frontends.NumObjects(w.db.ReadTxn()))
		w.ipcache.Remove(&tables.IPCache{Prefix: netip.PrefixFrom(at, 32)})
		w.has()
	}
}

// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/tablestest"
)

// server stands for the API server: it keeps what is written to it.
type server struct {
	dynamic.Interface
	dynamic.NamespaceableResourceInterface
	mu     sync.Mutex
	writes []discoveryv1.EndpointSlice
	tries  int
	fails  error
}

func (s *server) Resource(schema.GroupVersionResource) dynamic.NamespaceableResourceInterface {
	return s
}

func (s *server) Namespace(string) dynamic.ResourceInterface { return s }

func (s *server) Patch(
	_ context.Context, _ string, _ types.PatchType, data []byte, _ metav1.PatchOptions, _ ...string,
) (*unstructured.Unstructured, error) {
	time.Sleep(20 * time.Millisecond)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tries++; s.fails != nil {
		return nil, s.fails
	}
	var slice discoveryv1.EndpointSlice
	if err := json.Unmarshal(data, &slice); err != nil {
		return nil, err
	}
	s.writes = append(s.writes, slice)
	return nil, nil
}

// world is an announcer and what it reads and writes.
type world struct {
	*testing.T
	*announcer
	server *server
	health *cell.SimpleHealth
}

// in runs a test with an announcer, in a time of its own. The former agent has left
// a slice.
func in(t *testing.T, left []tables.PodAddrs, test func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		db, local := statedb.New(), tables.LocalNode{Name: "node-1"}
		w := &world{T: t, server: &server{}}
		w.announcer = newAnnouncer(params{
			DB: db, Client: w.server, Namespace: "agents", LocalNode: local,
			Endpoints:       tablestest.OpenEndpoints(t, db, local.Name),
			Attachments:     tablestest.Open(t, db, tables.NewCNIAttachmentTable),
			Backends:        tablestest.Open(t, db, tables.NewBackendSliceTable),
			Nodes:           tablestest.Open(t, db, tables.NewNodeTable),
			Addresses:       tablestest.Open(t, db, tables.NewNodeAddressTable),
			Plugin:          tables.CNIPlugin{Enabled: true},
			EgressPolicies:  tablestest.Open(t, db, tables.NewEgressPolicyTable),
			NetworkPolicies: tablestest.Open(t, db, tables.NewNetworkPolicyTable),
			Announcements:   tablestest.Open(t, db, tables.NewPodAnnouncementTable),
		}, prometheus.NewCounterVec(prometheus.CounterOpts{Name: "writes"}, []string{"outcome"}))
		tablestest.Insert(w.T, w.DB, w.Nodes, &tables.Node{Name: "node-1", UID: "n1"})
		tablestest.Insert(w.T, w.DB, w.EgressPolicies, &tables.EgressPolicy{Name: "web"})
		tablestest.Insert(w.T, w.DB, w.Backends, &tables.BackendSlice{
			Name: tables.Name{Namespace: "agents", Name: "sluice-node-1-ipv4"}, Pods: left,
		})

		var health cell.Health
		health, w.health = cell.NewSimpleHealth()
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- w.run(ctx, health.NewScope("test")) }()
		defer func() { stop(); require.NoError(t, <-ended) }()
		test(w)
	})
}

// name is that of the i-th pod.
func name(i int) tables.Name { return tables.Name{Namespace: "prod", Name: fmt.Sprintf("web-%03d", i)} }

func ipv4(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}) }

// pod has the API server tell of a pod, with the addresses of its status.
func (w *world) pod(i int, node string, status ...netip.Addr) {
	tablestest.Insert(w.T, w.DB, w.Endpoints, &tables.Endpoint{
		Name: name(i), UID: fmt.Sprint("u", i), Node: node, Addrs: status,
		LabelSet: &tables.LabelSet{},
	})
}

// attach has the CNI plugin tell of the interface of a pod.
func (w *world) attach(i int, addrs ...netip.Addr) {
	tablestest.Insert(w.T, w.DB, w.Attachments, &tables.CNIAttachment{
		File: fmt.Sprint("c", i), Pod: name(i), UID: fmt.Sprint("u", i), Addrs: addrs,
		Created: time.Now(),
	})
}

func (w *world) detach(i int) {
	row := &tables.CNIAttachment{File: fmt.Sprint("c", i)}
	tablestest.Delete(w.T, w.DB, w.Attachments, row)
}

// written returns what was written so far, after some time.
func (w *world) written() []discoveryv1.EndpointSlice {
	time.Sleep(time.Second)
	w.server.mu.Lock()
	defer w.server.mu.Unlock()
	return slices.Clone(w.server.writes)
}

// pods returns the pods of a slice.
func pods(s discoveryv1.EndpointSlice) (names []string) {
	for _, e := range s.Endpoints {
		names = append(names, fmt.Sprint(e.TargetRef.Name, e.Addresses))
	}
	slices.Sort(names)
	return names
}

// A pod is announced once, when its interface is made, before its object or after.
func TestPodIsAnnounced(t *testing.T) {
	in(t, nil, func(w *world) {
		w.pod(1, "node-1")
		w.pod(2, "node-2")
		require.Empty(w, w.written())
		v6 := netip.MustParseAddr("fd00::1")
		w.attach(1, ipv4(1), v6)
		w.attach(3, ipv4(3))
		writes := w.written()
		require.Len(w, writes, 2)
		require.Equal(w, []string{"web-001[10.0.0.1]"}, pods(writes[0]))
		require.Equal(w, []string{"web-001[fd00::1]"}, pods(writes[1]))

		s := writes[0]
		require.Equal(w, "agents/sluice-node-1-ipv4", s.Namespace+"/"+s.Name)
		require.Equal(w, discoveryv1.AddressTypeIPv4, s.AddressType)
		require.Equal(w, discoveryv1.AddressTypeIPv6, writes[1].AddressType)
		require.Equal(w, "sluice.net", s.Labels["endpointslice.kubernetes.io/managed-by"])
		require.Contains(w, s.Labels, "service.kubernetes.io/headless")
		require.Contains(w, s.Labels, "service.kubernetes.io/service-proxy-name")
		require.NotContains(w, s.Labels, "kubernetes.io/service-name")
		require.Equal(w, "Node", s.OwnerReferences[0].Kind)
		require.EqualValues(w, "n1", s.OwnerReferences[0].UID)
		e := s.Endpoints[0]
		require.False(w, *e.Conditions.Ready)
		require.Equal(w, "node-1", *e.NodeName)
		require.Equal(w, "Pod prod u1",
			e.TargetRef.Kind+" "+e.TargetRef.Namespace+" "+string(e.TargetRef.UID))

		w.pod(3, "node-1")
		writes = w.written()
		require.Len(w, writes, 3)
		require.Equal(w, []string{"web-001[10.0.0.1]", "web-003[10.0.0.3]"}, pods(writes[2]))
	})
}

// A batch of pods is one write. Nothing is written when their status comes; the next
// write drops them, but not so soon that others may not have the status yet.
func TestWritesAreFew(t *testing.T) {
	in(t, nil, func(w *world) {
		for i := range 50 {
			w.pod(i, "node-1")
			w.attach(i, ipv4(i))
		}
		writes := w.written()
		require.Len(w, writes, 1)
		require.Len(w, writes[0].Endpoints, 50)
		for i := range 49 {
			w.pod(i, "node-1", ipv4(i))
		}
		require.Len(w, w.written(), 1)

		w.pod(50, "node-1")
		w.attach(50, ipv4(50))
		writes = w.written()
		require.Len(w, writes, 2)
		require.Len(w, writes[1].Endpoints, 51)

		time.Sleep(time.Hour)
		require.Len(w, w.written(), 2, "none at rest")
		w.pod(51, "node-1")
		w.attach(51, ipv4(51))
		writes = w.written()
		require.Len(w, writes, 3)
		require.Equal(w, []string{"web-049[10.0.0.49]", "web-050[10.0.0.50]", "web-051[10.0.0.51]"},
			pods(writes[2]),
			"those without a status stay")
	})
}

// What is said of a pod that has another address after all, or none, is withdrawn at
// once, also what the former agent has said.
func TestWrongIsWithdrawn(t *testing.T) {
	left := []tables.PodAddrs{
		{Pod: name(1), UID: "u1", Node: "node-1", Addrs: []netip.Addr{ipv4(1)}},
		{Pod: name(9), UID: "u9", Node: "node-1", Addrs: []netip.Addr{ipv4(9)}},
	}
	in(t, left, func(w *world) {
		require.Empty(w, w.written(), "addresses of pods that are gone are not announced again")
		w.pod(1, "node-1")
		writes := w.written()
		require.Len(w, writes, 1)
		require.Empty(w, writes[0].Endpoints)

		w.attach(1, ipv4(1))
		w.attach(1, ipv4(2))
		writes = w.written()
		require.Equal(w, []string{"web-001[10.0.0.2]"}, pods(writes[len(writes)-1]))
		w.detach(1)
		writes = w.written()
		require.Empty(w, writes[len(writes)-1].Endpoints)
	})
}

// Without policies nothing depends on the addresses of pods.
func TestNoPolicies(t *testing.T) {
	in(t, nil, func(w *world) {
		table := w.EgressPolicies.(statedb.RWTable[*tables.EgressPolicy])
		wtxn := w.DB.WriteTxn(table)
		require.NoError(w, table.DeleteAll(wtxn))
		wtxn.Commit()
		w.pod(1, "node-1")
		w.attach(1, ipv4(1))
		require.Empty(w, w.written())
	})
}

// However many pods there are, a slice is bounded, and writing it ends.
func TestSliceIsBounded(t *testing.T) {
	in(t, nil, func(w *world) {
		for i := range maxPods + 10 {
			w.pod(i, "node-1")
		}
		for i := range maxPods + 10 {
			w.attach(i, ipv4(i))
			time.Sleep(time.Microsecond)
		}
		writes := w.written()
		last := writes[len(writes)-1]
		require.Len(w, last.Endpoints, maxPods)
		require.NotContains(w, pods(last), "web-000[10.0.0.0]", "the newest are in it")
		require.Contains(w, pods(last), fmt.Sprintf("web-%03d[%s]", maxPods+9, ipv4(maxPods+9)))
		count := len(writes)
		require.Len(w, w.written(), count)
	})
}

// However often interfaces change, writes have a limit.
func TestWritesAreLimited(t *testing.T) {
	in(t, nil, func(w *world) {
		w.pod(1, "node-1")
		for i := range 1000 { // 10 s
			w.attach(1, ipv4(i))
			time.Sleep(10 * time.Millisecond)
		}
		require.LessOrEqual(w, len(w.written()), 10*writeRate+writeBurst+2*writeRate)
	})
}

// A right that is missing is asked for every few minutes, and health says so.
func TestRefused(t *testing.T) {
	in(t, nil, func(w *world) {
		w.server.fails = apierrors.NewForbidden(Resource.GroupResource(), "sluice-node-1-ipv4",
			errors.New("no"))
		w.pod(1, "node-1")
		w.attach(1, ipv4(1))
		require.Empty(w, w.written())
		row, _, found := w.Announcements.Get(w.DB.ReadTxn(),
			tables.PodAnnouncementBySlice(w.slices[0].name))
		require.True(w, found)
		require.Equal(w, reconciler.StatusKindError, row.Status.Kind)
		require.Contains(w, row.Status.GetError(), "forbidden")
		require.Equal(w, cell.StatusDegraded, w.health.GetChild("test").Level)

		w.pod(1, "node-1", ipv4(1)) // by now others know it
		time.Sleep(time.Hour)
		w.server.mu.Lock()
		require.InDelta(w, 20, w.server.tries, 15)
		w.server.fails = nil
		w.server.mu.Unlock()
		time.Sleep(10 * time.Minute)
		require.Len(w, w.written(), 1)
		row, _, _ = w.Announcements.Get(w.DB.ReadTxn(), tables.PodAnnouncementBySlice(w.slices[0].name))
		require.Equal(w, reconciler.StatusKindDone, row.Status.Kind)
		require.Equal(w, cell.StatusOK, w.health.GetChild("test").Level)
	})
}

// An API server that has just started refuses what it accepts a moment later.
func TestRefusedForAMoment(t *testing.T) {
	in(t, nil, func(w *world) {
		w.server.fails = apierrors.NewForbidden(Resource.GroupResource(), "sluice-node-1-ipv4",
			errors.New("no"))
		w.pod(1, "node-1")
		w.attach(1, ipv4(1))
		require.Empty(w, w.written())
		w.server.mu.Lock()
		w.server.fails = nil
		w.server.mu.Unlock()
		time.Sleep(10 * time.Second)
		require.Len(w, w.written(), 1)
	})
}

// The addresses of the node that its object does not have are told, and only when they change.
func TestAddressesOfNode(t *testing.T) {
	in(t, nil, func(w *world) {
		devices := []string{1: "lo", 2: "eth0", 3: "cni0", 4: "eth1", 5: "docker0"}
		addr := func(text, scope string, index int) *tables.NodeAddress {
			return &tables.NodeAddress{
				Addr: netip.MustParseAddr(text), Scope: scope, DeviceIndex: index, Device: devices[index],
			}
		}
		tablestest.Insert(w.T, w.DB, w.Nodes, &tables.Node{
			Name: "node-1", UID: "n1", InternalIPs: []netip.Addr{netip.MustParseAddr("192.168.0.1")},
			PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24")},
		})
		require.Empty(w, w.written())
		tablestest.Insert(w.T, w.DB, w.Addresses,
			addr("192.168.0.1", "global", 2), addr("10.0.1.1", "global", 3),
			addr("127.0.0.1", "host", 1), addr("fe80::1", "link", 2),
			addr("172.17.0.1", "global", 5), addr("169.254.20.10", "global", 4),
			addr("203.0.113.7", "global", 4), addr("203.0.113.6", "global", 4))
		writes := w.written()
		require.Len(w, writes, 1)
		e := writes[0].Endpoints[0]
		require.Equal(w, "Node node-1 node-1", e.TargetRef.Kind+" "+e.TargetRef.Name+" "+*e.NodeName)
		require.Equal(w, []string{"203.0.113.6", "203.0.113.7"}, e.Addresses)

		tablestest.Delete(w.T, w.DB, w.Addresses, addr("203.0.113.7", "global", 4))
		writes = w.written()
		require.Len(w, writes, 2)
		require.Equal(w, []string{"203.0.113.6"}, writes[1].Endpoints[0].Addresses)
	})
}

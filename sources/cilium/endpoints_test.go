// SPDX-License-Identifier: Apache-2.0

package cilium

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/hivetest"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/sources/objects"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
	"github.com/sluice-net/sluice/tables/tablestest"
	"github.com/sluice-net/sluice/testdata/await"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type fixture struct {
	t      *testing.T
	db     *statedb.DB
	tables objects.Tables

	ciliumEndpoints tablestest.Table[*tables.CiliumEndpoint]
	ciliumNodes     tablestest.Table[*tables.CiliumNode]
	identities      tablestest.Table[*tables.Identity]
	nodes           tablestest.Table[*tables.Node]
}

// newFixture runs the rule over tables that the test writes.
func newFixture(t *testing.T) *fixture {
	f := &fixture{t: t}
	h := hive.New(statedb.Cell, job.Cell, cell.SimpleHealthCell,
		cell.Provide(derive.NewMetrics),
		cell.Module("test", "Test",
			cell.ProvidePrivate(job.Registry.NewGroup),
			cell.Invoke(func(p derive.Params) (err error) {
				f.db = p.DB
				if f.tables, err = objects.NewTables(p.DB, tables.LocalNode{}); err != nil {
					return err
				}
				f.ciliumEndpoints = tablestest.Of(t, f.db, f.tables.CiliumEndpoints)
				f.ciliumNodes = tablestest.Of(t, f.db, f.tables.CiliumNodes)
				f.identities = tablestest.Of(t, f.db, f.tables.Identities)
				f.nodes = tablestest.Of(t, f.db, f.tables.Nodes)
				return register(objects.Config{EndpointSource: objects.EndpointsCilium}, p, f.tables)
			})))
	log := hivetest.Logger(t, hivetest.LogLevel(slog.LevelError))
	require.NoError(t, h.Start(log, t.Context()))
	t.Cleanup(func() { require.NoError(t, h.Stop(log, context.Background())) })
	return f
}

// is waits until the endpoints are as wanted: name, node, addresses, labels and
// errors.
func (f *fixture) is(want ...string) {
	f.t.Helper()
	var got []string
	for deadline := time.Now().Add(await.Bound); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		got = nil
		for e := range f.tables.Endpoints.All(f.db.ReadTxn()) {
			got = append(got, fmt.Sprint(e.Name.Name, " ", e.Node, " ", e.Addrs, " ", e.LabelSet.Labels, " ", e.Errors))
		}
		if fmt.Sprint(got) == fmt.Sprint(want) {
			return
		}
	}
	require.Equal(f.t, want, got)
}

func name(n string) tables.Name { return tables.Name{Namespace: "shop", Name: n} }

var (
	nodeIP  = netip.MustParseAddr("192.0.2.1")
	otherIP = netip.MustParseAddr("192.0.2.2")
	podIP   = netip.MustParseAddr("10.0.0.1")
)

func web(change func(e *tables.CiliumEndpoint)) *tables.CiliumEndpoint {
	e := &tables.CiliumEndpoint{Name: name("web"), UID: "u", Identity: 7, NodeIP: nodeIP, Addrs: []netip.Addr{podIP}}
	if change != nil {
		change(e)
	}
	return e
}

func identity(id uint32, app string) *tables.Identity {
	return &tables.Identity{ID: id, Namespace: "shop", ServiceAccount: "sa", Labels: labels.Set{"app": app}}
}

func node(name string, ip netip.Addr) *tables.Node {
	return &tables.Node{Name: name, InternalIPs: []netip.Addr{ip}}
}

func TestEndpoints(t *testing.T) {
	f := newFixture(t)
	f.ciliumEndpoints.Put(web(nil))
	f.is(`web  []  [networking.node: 192.0.2.1 is the address of no node identity: there is no CiliumIdentity 7]`)
	f.nodes.Put(node("node-1", nodeIP))
	f.identities.Put(identity(7, "web"))
	f.is(`web node-1 [10.0.0.1] app=web []`)

	f.identities.Put(identity(7, "other"), identity(8, "db")) // relabeled by its identity
	f.is(`web node-1 [10.0.0.1] app=other []`)
	f.ciliumEndpoints.Put(web(func(e *tables.CiliumEndpoint) { e.Identity = 8 }))
	f.is(`web node-1 [10.0.0.1] app=db []`)
	f.nodes.Put(node("node-1", otherIP)) // the node has another address
	f.is(`web  [10.0.0.1] app=db [networking.node: 192.0.2.1 is the address of no node]`)
	f.ciliumNodes.Put(&tables.CiliumNode{Name: "node-2", Addrs: []netip.Addr{nodeIP}})
	f.is(`web node-2 [10.0.0.1] app=db []`)

	wrong := identity(8, "db")
	wrong.Namespace = "reports"
	f.identities.Put(wrong)
	f.is(`web node-2 []  [identity: CiliumIdentity 8 is of namespace reports]`)
	wrong = identity(8, "db")
	wrong.Errors = []tables.FieldError{{Field: "security-labels", Reason: "bad"}}
	f.identities.Put(wrong)
	f.is(`web node-2 []  [identity: CiliumIdentity 8: security-labels: bad]`)
	f.identities.Put(identity(8, "db"))
	f.ciliumEndpoints.Put(web(func(e *tables.CiliumEndpoint) {
		e.Identity, e.UID, e.Errors = 8, "", []tables.FieldError{{Field: "metadata.uid", Reason: "required"}}
	}))
	f.is(`web node-2 []  [metadata.uid: required]`)
	f.ciliumEndpoints.Remove(web(nil))
	f.is()
}

// An endpoint that is told more than once is as its CiliumEndpoint says, if that
// can be used, or else as the first slice that can.
func TestEndpointToldTwice(t *testing.T) {
	f := newFixture(t)
	f.nodes.Put(node("node-1", nodeIP))
	f.identities.Put(identity(7, "web"), identity(8, "db"), identity(9, "old"))
	slice := func(s string, id uint32) *tables.CiliumEndpoint {
		return web(func(e *tables.CiliumEndpoint) { e.Slice, e.UID, e.Identity = s, "", id })
	}
	f.ciliumEndpoints.Put(slice("b", 8))
	f.is(`web node-1 [10.0.0.1] app=db []`)
	f.ciliumEndpoints.Put(slice("a", 9))
	f.is(`web node-1 [10.0.0.1] app=old []`)
	f.ciliumEndpoints.Put(web(nil))
	f.is(`web node-1 [10.0.0.1] app=web []`)
	f.ciliumEndpoints.Put(web(func(e *tables.CiliumEndpoint) { e.Addrs = nil }))
	f.is(`web node-1 [10.0.0.1] app=old []`)
	f.ciliumEndpoints.Remove(slice("a", 9))
	f.is(`web node-1 [10.0.0.1] app=db []`)
}

// Whatever changes, in whatever pieces, the endpoints are those that are
// computed from the rows at the end.
func TestEndpointsIncremental(t *testing.T) {
	f := newFixture(t)
	rnd := rand.New(rand.NewPCG(1, 2))
	pick := func(addrs ...netip.Addr) netip.Addr { return addrs[rnd.IntN(len(addrs))] }
	for range 300 {
		switch rnd.IntN(6) {
		case 0:
			f.nodes.Put(node([]string{"node-1", "node-2"}[rnd.IntN(2)], pick(nodeIP, otherIP)))
		case 1:
			f.identities.Put(identity(uint32(7+rnd.IntN(3)), []string{"a", "b"}[rnd.IntN(2)]))
		case 2:
			f.identities.Remove(identity(uint32(7+rnd.IntN(3)), ""))
		case 3:
			f.ciliumEndpoints.Remove(web(func(e *tables.CiliumEndpoint) {
				e.Slice = []string{"", "s"}[rnd.IntN(2)]
			}))
		case 4:
			f.ciliumNodes.Put(&tables.CiliumNode{
				Name: "node-3", Addrs: []netip.Addr{pick(nodeIP, otherIP)},
			})
		default:
			f.ciliumEndpoints.Put(web(func(e *tables.CiliumEndpoint) {
				e.Slice, e.Identity, e.NodeIP = []string{"", "s"}[rnd.IntN(2)], uint32(6+rnd.IntN(4)), pick(nodeIP, otherIP)
			}))
		}
	}
	var want []string
	txn := f.db.ReadTxn()
	if e := (joiner{f.tables, &objects.Interner{}}).row(txn, name("web")); e != nil {
		want = append(want, fmt.Sprint(e.Name.Name, " ", e.Node, " ", e.Addrs, " ", e.LabelSet.Labels, " ", e.Errors))
	}
	f.is(want...)
}

func TestPodsAreTheEndpoints(t *testing.T) {
	require.NoError(t, register(objects.Config{EndpointSource: objects.EndpointsKubernetes}, derive.Params{}, objects.Tables{}))
}

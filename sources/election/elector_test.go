// SPDX-License-Identifier: Apache-2.0

package election

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection"

	"github.com/sluice-net/sluice/tables"
)

var leases = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}

// server stands for the API server: it has one lease, and counts the requests.
type server struct {
	mu       sync.Mutex
	lease    *v1.Lease
	requests atomic.Int64
	refuses  atomic.Bool
}

// client is the way of one operator to the server.
type client struct {
	coordinationv1.LeaseInterface
	*server
	dead atomic.Bool // its requests do not arrive
}

func (c *client) Leases(string) coordinationv1.LeaseInterface { return c }

// request runs one request.
func (c *client) request(do func() error) (*v1.Lease, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead.Load() {
		return nil, errors.New("connection refused")
	}
	c.requests.Add(1)
	if c.refuses.Load() {
		return nil, apierrors.NewForbidden(leases, leaseName, errors.New("no"))
	}
	if err := do(); err != nil {
		return nil, err
	}
	return c.lease.DeepCopy(), nil
}

func (c *client) Get(context.Context, string, metav1.GetOptions) (*v1.Lease, error) {
	return c.request(func() error {
		if c.lease == nil {
			return apierrors.NewNotFound(leases, leaseName)
		}
		return nil
	})
}

func (c *client) write(lease *v1.Lease, version int) {
	c.lease = lease.DeepCopy()
	c.lease.ResourceVersion = strconv.Itoa(version)
}

func (c *client) Create(_ context.Context, lease *v1.Lease, _ metav1.CreateOptions) (*v1.Lease, error) {
	return c.request(func() error {
		if c.lease != nil {
			return apierrors.NewAlreadyExists(leases, leaseName)
		}
		c.write(lease, 1)
		return nil
	})
}

func (c *client) Update(_ context.Context, lease *v1.Lease, _ metav1.UpdateOptions) (*v1.Lease, error) {
	return c.request(func() error {
		if c.lease == nil || c.lease.ResourceVersion != lease.ResourceVersion {
			return apierrors.NewConflict(leases, leaseName, errors.New("changed meanwhile"))
		}
		version, err := strconv.Atoi(lease.ResourceVersion)
		c.write(lease, version+1)
		return err
	})
}

// operator is one that takes part.
type operator struct {
	*elector
	client *client
	scope  *cell.SimpleHealth
	stop   func()
}

// operators are those of a cluster.
type operators struct {
	*testing.T
	server *server
	all    []*operator
}

func newOperators(t *testing.T, identities ...string) *operators {
	o := &operators{T: t, server: &server{}}
	for _, identity := range identities {
		o.all = append(o.all, o.start(identity))
	}
	t.Cleanup(func() {
		for _, op := range o.all {
			op.stop()
		}
	})
	return o
}

func (o *operators) start(identity string) *operator {
	db := statedb.New()
	table, err := tables.NewLeadershipTable(db)
	require.NoError(o, err)
	_, health := cell.NewSimpleHealth()
	op := &operator{client: &client{server: o.server}, scope: health}
	op.elector = &elector{
		leadership: leadership{db, table}, client: op.client, namespace: "sluice-system",
		identity: identity, log: slog.New(slog.DiscardHandler),
		leads: prometheus.NewGauge(prometheus.GaugeOpts{Name: "leads"}),
	}
	ctx, cancel := context.WithCancel(o.Context())
	done := make(chan error)
	go func() { done <- op.run(ctx, health.NewScope("elect")) }()
	op.stop = func() {
		if cancel != nil {
			cancel()
			require.NoError(o, <-done)
			cancel = nil
		}
	}
	return op
}

func (op *operator) row() tables.Leadership {
	row, _, _ := op.Table.Get(op.DB.ReadTxn(), tables.LeadershipByLease("sluice-system/sluice"))
	return *row
}

// leader returns the operator that leads, and requires that it is one at most.
func (o *operators) leader() (leader *operator) {
	for _, op := range o.all {
		if tables.Leads(op.DB.ReadTxn(), op.Table) {
			require.Nil(o, leader, "two lead")
			leader = op
		}
		metrics := prometheus.NewRegistry()
		metrics.MustRegister(op.leads)
		families, err := metrics.Gather()
		require.NoError(o, err)
		require.Equal(o, op == leader, families[0].GetMetric()[0].GetGauge().GetValue() == 1)
	}
	return leader
}

// watch looks every half second for so long, at each look for two that lead.
func (o *operators) watch(d time.Duration) *operator {
	for ; d > 0; d -= time.Second / 2 {
		time.Sleep(time.Second / 2)
		synctest.Wait()
		o.leader()
	}
	return o.leader()
}

const (
	// try is how long an operator waits at most before it looks at the lease again.
	try = time.Duration(float64(retryPeriod) * (1 + leaderelection.JitterFactor))
	// takeover is how long the other operator takes at most when one is killed: it sees a try
	// later that the lease was renewed, and tries for it a try after its end.
	takeover = leaseDuration + 2*try
)

// Of two operators one leads; when it is killed the other does after the lease has ended, never
// both; and one that stops gives the lease back.
func TestElection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOperators(t, "one", "two")
		first := o.watch(2 * try)
		require.NotNil(t, first)
		require.Same(t, first, o.watch(10*time.Minute))
		for _, op := range o.all {
			require.Equal(t, first.identity, op.row().Holder)
		}

		first.client.dead.Store(true)
		second := o.watch(takeover)
		require.NotNil(t, second)
		require.NotSame(t, first, second)
		require.Equal(t, second.identity, second.row().Holder)
		require.NotEmpty(t, first.row().Error)

		first.client.dead.Store(false)
		require.Same(t, second, o.watch(time.Minute), "who comes back waits")
		require.Equal(t, tables.Leadership{
			Lease: "sluice-system/sluice", Holder: second.identity,
		}, first.row())

		second.stop()
		require.Same(t, first, o.watch(2*try), "the lease was given back")
	})
}

// An agent of a former version that leads, as they elected one themselves, is left to: only one
// writes during an upgrade.
func TestFormerAgentLeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOperators(t)
		agent := o.start("node-1") // whose name was that of the node
		o.all = append(o.all, agent)
		require.Same(t, agent, o.watch(2*try))
		o.all = append(o.all, o.start("sluice-operator-a"), o.start("sluice-operator-b"))
		require.Same(t, agent, o.watch(time.Minute))

		o.server.refuses.Store(true) // the chart is upgraded, and takes the agents' right
		require.Nil(t, o.watch(renewDeadline+2*retryPeriod))
		agent.stop()
		o.server.refuses.Store(false)
		require.NotNil(t, o.watch(takeover))
		require.NotSame(t, agent, o.leader())
	})
}

// Without the right no operator leads, which health tells with the reason.
func TestForbidden(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOperators(t, "one")
		o.server.refuses.Store(true)
		require.Nil(t, o.watch(time.Minute))
		h := o.all[0].scope.GetChild("elect")
		h.Lock()
		require.Equal(t, cell.StatusDegraded, h.Level)
		require.ErrorContains(t, h.Error, "Lease sluice-system/sluice")
		h.Unlock()
		o.server.refuses.Store(false)
		require.NotNil(t, o.watch(2*try))
		h.Lock()
		require.Equal(t, cell.StatusOK, h.Level)
		h.Unlock()
	})
}

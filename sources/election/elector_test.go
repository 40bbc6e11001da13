// SPDX-License-Identifier: Apache-2.0

package election

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
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

// client is the way of one agent to the server.
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

// agent is one that takes part.
type agent struct {
	*elector
	client *client
	scope  *cell.SimpleHealth
	stop   func()
}

// cluster is the agents of nodes of which each has one.
type cluster struct {
	*testing.T
	server *server
	agents []*agent
	ready  bool // all nodes are
}

func newCluster(t *testing.T, size int, ready bool) *cluster {
	c := &cluster{T: t, server: &server{}, ready: ready}
	for i := range size {
		c.agents = append(c.agents, c.start(i, size))
	}
	t.Cleanup(func() {
		for _, a := range c.agents {
			a.stop()
		}
	})
	return c
}

func (c *cluster) start(i, size int) *agent {
	db := statedb.New()
	table, err := tables.NewLeadershipTable(db)
	require.NoError(c, err)
	nodes, err := tables.NewNodeTable(db)
	require.NoError(c, err)
	wtxn := db.WriteTxn(nodes)
	for i := range size {
		_, _, err := nodes.Insert(wtxn, &tables.Node{Name: fmt.Sprintf("node-%d", i), Ready: c.ready})
		require.NoError(c, err)
	}
	wtxn.Commit()
	_, health := cell.NewSimpleHealth()
	a := &agent{client: &client{server: c.server}, scope: health}
	a.elector = &elector{
		leadership: leadership{db, table}, client: a.client, namespace: "sluice-system", node: fmt.Sprintf("node-%d", i), nodes: nodes,
		log: slog.New(slog.DiscardHandler), leads: prometheus.NewGauge(prometheus.GaugeOpts{Name: "leads"}),
	}
	ctx, cancel := context.WithCancel(c.Context())
	done := make(chan error)
	go func() { done <- a.run(ctx, health.NewScope("elect")) }()
	a.stop = func() {
		if cancel != nil {
			cancel()
			require.NoError(c, <-done)
			cancel = nil
		}
	}
	return a
}

// leader returns the agent that leads, and requires that it is one at most.
func (c *cluster) leader() (leader *agent) {
	for _, a := range c.agents {
		leads := tables.Leads(a.DB.ReadTxn(), a.Table)
		if leads {
			require.Nil(c, leader, "two lead")
			leader = a
		}
	}
	return leader
}

// requestsIn counts the requests of some time.
func (c *cluster) requestsIn(d time.Duration) int {
	before := c.server.requests.Load()
	time.Sleep(d)
	return int(c.server.requests.Load() - before)
}

// One agent leads, with few requests however many there are; when it is killed
// another follows, and when it stops it gives the lease back.
func TestElection(t *testing.T) {
	for _, size := range []int{1, 3, 300} {
		t.Run(strconv.Itoa(size), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, size, true)
				time.Sleep(10 * time.Second)
				first := c.leader()
				require.NotNil(t, first)

				time.Sleep(time.Hour)
				require.Same(t, first, c.leader())
				ten := c.requestsIn(10 * time.Minute)
				bound := mostIn10Minutes(size)
				require.LessOrEqual(t, float64(ten), bound)
				require.GreaterOrEqual(t, ten, 290, "the lease is renewed every 2 s")
				if size == 1 {
					return
				}

				first.client.dead.Store(true)
				time.Sleep(90 * time.Second)
				second := c.leader()
				require.NotNil(t, second)
				require.NotSame(t, first, second)
				row, _, _ := second.Table.Get(second.DB.ReadTxn(), tables.LeadershipByLease("sluice-system/sluice"))
				require.Equal(t, second.node, row.Holder)
				require.Less(t, c.requestsIn(2*time.Minute), 2*int(bound), "who did not win campaigns no more")

				second.stop()
				time.Sleep(time.Minute)
				third := c.leader()
				if size > 2 {
					require.NotNil(t, third)
				}
				require.NotSame(t, second, third)
			})
		})
	}
}

// mostIn10Minutes bounds the requests of as many agents.
func mostIn10Minutes(size int) float64 {
	return 600 * (0.5 + (math.Log(float64(size))+1)/5 + float64(size)/300)
}

// After an outage of the API server no node may be ready, and there are as few requests.
func TestElectionWithoutReadyNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 300
		c := newCluster(t, size, false)
		time.Sleep(10 * time.Second)
		require.NotNil(t, c.leader())
		time.Sleep(time.Hour)
		require.LessOrEqual(t, float64(c.requestsIn(10*time.Minute)), mostIn10Minutes(size))
	})
}

// Without the right nobody leads, which health tells, and it is asked for rarely.
func TestForbidden(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, true)
		c.server.refuses.Store(true)
		time.Sleep(time.Hour)
		require.LessOrEqual(t, c.requestsIn(time.Hour), 60)
		h := c.agents[0].scope.GetChild("elect")
		h.Lock()
		require.Equal(t, cell.StatusDegraded, h.Level)
		h.Unlock()
		c.server.refuses.Store(false)
		time.Sleep(2 * time.Minute)
		require.NotNil(t, c.leader())
	})
}

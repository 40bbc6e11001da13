// SPDX-License-Identifier: Apache-2.0

package election

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"

	"github.com/sluice-net/sluice/sources/kubernetes"
	"github.com/sluice-net/sluice/tables"
)

// Those of Kubernetes' own components, and of the agents of former versions.
const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
)

// elector takes part in the election for one operator.
type elector struct {
	leadership
	client    coordinationv1.LeasesGetter
	namespace string
	identity  string // of this operator, in the lease
	log       *slog.Logger
	leads     prometheus.Gauge
}

// run campaigns until the context ends: when the lease is lost, for it again.
func (e *elector) run(ctx context.Context, health cell.Health) error {
	ctx = klog.NewContext(ctx, kubernetes.LibraryLogger(e.log))
	for ctx.Err() == nil {
		if err := e.campaign(ctx, health); err != nil {
			return err
		}
	}
	return nil
}

// campaign tries to get the lease, and leads for as long as it has it.
func (e *elector) campaign(ctx context.Context, health cell.Health) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c := &campaign{elector: e, health: health, stop: cancel}
	c.row.Lease = e.namespace + "/" + leaseName
	c.change(func(*tables.Leadership) {})
	lec, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Name: leaseName,
		Lock: &lock{
			Interface: &resourcelock.LeaseLock{
				LeaseMeta:  metav1.ObjectMeta{Namespace: e.namespace, Name: leaseName},
				Client:     e.client,
				LockConfig: resourcelock.ResourceLockConfig{Identity: e.identity},
			},
			asked: c.asked,
		},
		LeaseDuration:   leaseDuration,
		RenewDeadline:   renewDeadline,
		RetryPeriod:     retryPeriod,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) {
				c.change(func(row *tables.Leadership) { row.Leading = true })
			},
			OnStoppedLeading: c.end,
			OnNewLeader: func(holder string) {
				c.change(func(row *tables.Leadership) { row.Holder = holder })
			},
		},
	})
	if err != nil {
		return err
	}
	lec.Run(ctx)
	return c.failed
}

// campaign is from the first try to get the lease to its loss. The callbacks come from goroutines
// of which one may be late: after the end none has an effect.
type campaign struct {
	*elector
	health cell.Health
	stop   context.CancelFunc

	mu     sync.Mutex
	row    tables.Leadership
	ended  bool
	failed error // to write the table
}

// asked takes in what came of a request about the lease.
func (c *campaign) asked(err error) {
	c.change(func(row *tables.Leadership) {
		if row.Error = ""; err != nil {
			row.Error = err.Error()
		}
	})
}

// change changes the row, and says in health what it says then.
func (c *campaign) change(do func(row *tables.Leadership)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return
	}
	led := c.row.Leading
	do(&c.row)
	if c.row.Leading && !led {
		c.leads.Set(1)
		c.log.Info("This operator leads")
	}
	switch {
	case c.row.Error != "":
		c.health.Degraded("Cannot take part in the election", errors.New(c.row.Error))
	case c.row.Leading:
		c.health.OK("This operator leads")
	default:
		c.health.OK("Leader: " + c.row.Holder)
	}
	c.set()
}

// end ends the campaign: this operator does not lead any more.
func (c *campaign) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.row.Leading {
		c.log.Info("This operator leads no more")
	}
	c.row.Leading, c.ended = false, true
	c.leads.Set(0)
	c.set()
}

func (c *campaign) set() {
	if err := c.leadership.set(c.row); err != nil {
		c.failed = err
		c.stop()
	}
}

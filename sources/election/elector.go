// SPDX-License-Identifier: Apache-2.0

package election

import (
	"context"
	"hash/fnv"
	"log/slog"
	"sync"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"

	"github.com/sluice-net/sluice/sources/kubernetes"
	"github.com/sluice-net/sluice/tables"
)

const (
	// How often the agent of the first rank looks at the lease, and that of the last.
	lookOften = 5 * time.Second
	lookRare  = 5 * time.Minute

	// lookForbidden is the least time between looks that are not allowed.
	lookForbidden = time.Minute

	// Those of Kubernetes' own components.
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second

	// campaignFor is longer than it takes to see that a lease is not renewed.
	campaignFor = 2 * leaseDuration
)

// elector takes part in the election for one agent.
type elector struct {
	leadership
	client    coordinationv1.LeasesGetter
	namespace string
	node      string // of the agent, and its name in the lease
	nodes     statedb.Table[*tables.Node]
	log       *slog.Logger
	leads     prometheus.Gauge
}

// run looks at the lease until the context ends, and leads when that is free.
func (e *elector) run(ctx context.Context, health cell.Health) error {
	if _, initialized := e.nodes.Initialized(e.DB.ReadTxn()); !sleep(ctx, initialized, 0) {
		return nil
	}
	ctx = klog.NewContext(ctx, kubernetes.LibraryLogger(e.log))
	if err := e.set(e.row("", false, nil)); err != nil {
		return err
	}
	for pause := e.interval() - lookOften; sleep(ctx, nil, pause); {
		pause = e.interval()
		holder, free, err := e.look(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case apierrors.IsForbidden(err):
			health.Degraded("Missing right: the status of objects is left to others", err)
			pause = max(pause, lookForbidden)
		case err != nil:
			health.OK("Cannot look at the lease: " + err.Error())
		default:
			health.OK("The agent of " + holder + " leads")
		}
		if err := e.set(e.row(holder, false, err)); err != nil {
			return err
		}
		if free {
			if err := e.campaign(ctx, health, holder); err != nil {
				return err
			}
		}
	}
	return nil
}

// sleep returns when a channel closes, or without one when the time has passed;
// false if the context was done first.
func sleep(ctx context.Context, until <-chan struct{}, d time.Duration) bool {
	var timer <-chan time.Time
	if until == nil {
		t := time.NewTimer(wait.Jitter(max(d, time.Millisecond), 0.1))
		defer t.Stop()
		timer = t.C
	}
	select {
	case <-ctx.Done():
		return false
	case <-until:
	case <-timer:
	}
	return true
}

func (e *elector) row(holder string, leading bool, err error) tables.Leadership {
	row := tables.Leadership{Lease: e.namespace + "/" + leaseName, Holder: holder, Leading: leading}
	if err != nil {
		row.Error = err.Error()
	}
	return row
}

// interval is how often this agent looks at the lease. Nodes that are ready are the first: after
// an outage of the API server none may be, and still their agents must not come all at once.
func (e *elector) interval() time.Duration {
	txn := e.DB.ReadTxn()
	own, _, _ := e.nodes.Get(txn, tables.NodeByName(e.node))
	ready := own != nil && own.Ready
	rank := 0
	for n := range e.nodes.All(txn) {
		if n.Name == e.node || ready && !n.Ready {
			continue
		}
		if n.Ready && !ready || order(n.Name) < order(e.node) {
			rank++
		}
	}
	return min(lookOften*time.Duration(1+rank), lookRare)
}

// order is the place of a node among others: the same for all agents, and not that
// of names, by which control planes tend to be next to each other.
func order(node string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(node))
	return h.Sum64()
}

// look returns who holds the lease, and whether it can be had: nobody does, or who
// did has not renewed it, or was an agent of this node.
func (e *elector) look(ctx context.Context) (holder string, free bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, renewDeadline)
	defer cancel()
	lease, err := e.client.Leases(e.namespace).Get(ctx, leaseName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", true, nil
	}
	if err != nil {
		return "", false, err
	}
	if lease.Spec.HolderIdentity != nil {
		holder = *lease.Spec.HolderIdentity
	}
	return holder, holder == "" || holder == e.node || expired(lease), nil
}

func expired(lease *v1.Lease) bool {
	duration := leaseDuration
	if s := lease.Spec.LeaseDurationSeconds; s != nil {
		duration = time.Duration(*s) * time.Second
	}
	return lease.Spec.RenewTime == nil || time.Since(lease.Spec.RenewTime.Time) > duration
}

// campaign tries to get the lease, and leads for as long as it has it. It gives up
// when somebody else than who held it before has got it.
func (e *elector) campaign(ctx context.Context, health cell.Health, former string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	giveUp := time.AfterFunc(campaignFor, cancel)
	defer giveUp.Stop()
	var mu sync.Mutex // orders the callbacks, which come from goroutines, before what follows the run
	var ended bool
	var failed error
	leading := func(yes bool) {
		mu.Lock()
		defer mu.Unlock()
		if ended {
			return
		}
		ended = !yes
		holder := ""
		if yes {
			holder = e.node
			giveUp.Stop()
			health.OK("This agent leads")
			e.log.Info("This agent writes the status of objects")
			e.leads.Set(1)
		} else {
			e.leads.Set(0)
		}
		if err := e.set(e.row(holder, yes, nil)); err != nil {
			failed = err
			cancel()
		}
	}
	lec, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Name: leaseName,
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: e.namespace, Name: leaseName},
			Client:     e.client,
			LockConfig: resourcelock.ResourceLockConfig{Identity: e.node},
		},
		LeaseDuration:   leaseDuration,
		RenewDeadline:   renewDeadline,
		RetryPeriod:     retryPeriod,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { leading(true) },
			OnStoppedLeading: func() { leading(false) },
			OnNewLeader: func(holder string) {
				if holder != e.node && holder != former {
					cancel()
				}
			},
		},
	})
	if err != nil {
		return err
	}
	lec.Run(ctx)
	mu.Lock()
	defer mu.Unlock()
	return failed
}

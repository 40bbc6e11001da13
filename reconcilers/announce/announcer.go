// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/pause"
)

// Resource is that of EndpointSlices.
var Resource = discoveryv1.SchemeGroupVersion.WithResource("endpointslices")

const (
	fieldManager   = "sluice-agent"
	requestTimeout = 10 * time.Second

	// settle is how long others may come to a new pod: what is made at once is
	// announced by one write.
	settle = 5 * time.Millisecond

	// Writes of a node, which all agents watch: more is never needed for long.
	writeRate, writeBurst = 10, 10

	retryMin = 250 * time.Millisecond
	retryMax = 5 * time.Minute
	// retryRefused is the least time until something is tried again that fails until
	// an operator grants a permission.
	retryRefused = time.Minute
)

// announcer keeps the slices of this node.
type announcer struct {
	params
	writes  *prometheus.CounterVec
	limiter *rate.Limiter
	slices  []slice
}

func newAnnouncer(p params, writes *prometheus.CounterVec) *announcer {
	return &announcer{params: p, writes: writes, limiter: rate.NewLimiter(writeRate, writeBurst),
		slices: []slice{
			newSlice(p.Namespace, p.LocalNode, discoveryv1.AddressTypeIPv4),
			newSlice(p.Namespace, p.LocalNode, discoveryv1.AddressTypeIPv6),
		}}
}

// run announces pods until the context ends.
func (a *announcer) run(ctx context.Context, health cell.Health) error {
	for _, table := range []statedb.TableMeta{a.Endpoints, a.Attachments, a.Backends, a.Nodes} {
		_, initialized := table.Initialized(a.DB.ReadTxn())
		select {
		case <-initialized:
		case <-ctx.Done():
			return nil
		}
	}
	if err := a.adopt(); err != nil {
		return err
	}
	health.OK("Announces new pods")
	retry := pause.NewBackoff(retryMin, retryMax)
	for {
		txn := a.DB.ReadTxn()
		local, changed := a.local(txn)
		if !a.due(txn, local) {
			select {
			case <-ctx.Done():
				return nil
			case <-changed[0]:
			case <-changed[1]:
			case <-changed[2]:
			case <-changed[3]:
			}
			continue
		}
		if !pause.For(ctx, settle) || a.limiter.Wait(ctx) != nil {
			return nil
		}
		failed, err := a.write(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		case failed == nil:
			retry = pause.NewBackoff(retryMin, retryMax)
			health.OK("Announces new pods")
			continue
		}
		health.Degraded("Cannot announce new pods to other nodes", failed)
		delay := retry.Step()
		if apierrors.IsForbidden(failed) || apierrors.IsInvalid(failed) {
			delay = max(delay, retryRefused)
		}
		if !pause.For(ctx, delay) {
			return nil
		}
	}
}

// adopt takes in what the former agent has announced, which may be wrong by now.
func (a *announcer) adopt() error {
	for _, s := range a.slices {
		row, _, found := a.Backends.Get(a.DB.ReadTxn(), tables.BackendSliceByName(s.name))
		if !found {
			continue
		}
		if err := a.tell(s, row.Pods, reconciler.StatusDone()); err != nil {
			return err
		}
	}
	return nil
}

// local returns the pods of this node with the addresses of their interfaces, those of
// the newest ones first, and channels of which one closes when some are others. It looks
// at the interfaces itself: that pods have their addresses by them may be about to be written.
func (a *announcer) local(
	txn statedb.ReadTxn,
) (local []*tables.Endpoint, changed [4]<-chan struct{}) {
	rows, watch := a.Endpoints.ListWatch(txn, tables.EndpointsHere())
	_, changed[1] = a.Attachments.AllWatch(txn)
	changed[0] = watch
	_, changed[2] = a.EgressPolicies.AllWatch(txn)
	_, changed[3] = a.NetworkPolicies.AllWatch(txn)
	if a.EgressPolicies.NumObjects(txn)+a.NetworkPolicies.NumObjects(txn) == 0 {
		return nil, changed // nothing depends on the addresses of pods
	}
	for e := range rows {
		local = append(local, e.WithAttachment(tables.CNIAddrsOf(txn, a.Attachments, e)))
	}
	slices.SortFunc(local, func(a, b *tables.Endpoint) int {
		return cmp.Or(b.Attached.Compare(a.Attached), cmp.Compare(a.Name.String(), b.Name.String()))
	})
	return local, changed
}

// due reports whether a slice has to be written.
func (a *announcer) due(txn statedb.ReadTxn, local []*tables.Endpoint) bool {
	return slices.ContainsFunc(a.slices, func(s slice) bool {
		_, due := s.wanted(a.last(txn, s), local, time.Now())
		return due
	})
}

// last returns what was last said in a slice.
func (a *announcer) last(txn statedb.ReadTxn, s slice) *tables.PodAnnouncement {
	row, _, found := a.Announcements.Get(txn, tables.PodAnnouncementBySlice(s.name))
	if !found {
		return &tables.PodAnnouncement{}
	}
	return row
}

// write writes the slices that have to be, and returns why one could not be. The other
// error is one of the table.
func (a *announcer) write(ctx context.Context) (failed, err error) {
	txn := a.DB.ReadTxn()
	local, _ := a.local(txn)
	for _, s := range a.slices {
		pods, due := s.wanted(a.last(txn, s), local, time.Now())
		if !due {
			continue
		}
		outcome, status := "written", reconciler.StatusDone()
		if problem := a.patch(ctx, txn, s, pods); problem != nil {
			outcome, status = "failed", reconciler.StatusError(problem)
			failed = errors.Join(failed, problem)
		}
		if ctx.Err() != nil {
			return failed, nil
		}
		a.writes.WithLabelValues(outcome).Inc()
		if err := a.tell(s, pods, status); err != nil {
			return failed, err
		}
	}
	return failed, nil
}

func (a *announcer) patch(
	ctx context.Context, txn statedb.ReadTxn, s slice, pods []tables.PodAddrs,
) error {
	node, _, found := a.Nodes.Get(txn, tables.NodeByName(a.LocalNode.Name))
	if !found {
		return fmt.Errorf("there is no Node %s", a.LocalNode.Name)
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	force := true
	_, err := a.Client.Resource(Resource).Namespace(s.name.Namespace).Patch(ctx, s.name.Name,
		types.ApplyPatchType,
		s.manifest(node, pods), metav1.PatchOptions{FieldManager: fieldManager, Force: &force})
	if err != nil {
		return fmt.Errorf("write EndpointSlice %s: %w", s.name, err)
	}
	return nil
}

// tell writes the row about a slice.
func (a *announcer) tell(s slice, pods []tables.PodAddrs, status reconciler.Status) error {
	wtxn := a.DB.WriteTxn(a.Announcements)
	defer wtxn.Abort()
	row := &tables.PodAnnouncement{Slice: s.name, Pods: pods, Reconciled: tables.Reconciled{Status: status}}
	if _, _, err := a.Announcements.Insert(wtxn, row); err != nil {
		return err
	}
	wtxn.Commit()
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	discoveryv1 "k8s.io/api/discovery/v1"
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

	// What is refused is tried again as soon as what fails: an API server that has just started
	// knows no rights for a moment.
	retryMin = 250 * time.Millisecond
	retryMax = 5 * time.Minute

	healthy = "Announces new pods, and addresses of this node"
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

// present is what this node may announce.
type present struct {
	pods  []*tables.Endpoint // with the addresses of their interfaces, the newest ones first
	addrs []netip.Addr       // of the node, in order
}

// run announces what there is until the context ends.
func (a *announcer) run(ctx context.Context, health cell.Health) error {
	if !tables.AwaitInitialized(
		ctx, a.DB, a.Endpoints, a.Attachments, a.Backends, a.Nodes, a.Addresses,
	) {
		return nil
	}
	if err := a.adopt(); err != nil {
		return err
	}
	health.OK(healthy)
	retry := pause.NewBackoff(retryMin, retryMax)
	for {
		txn := a.DB.ReadTxn()
		now, changed := a.present(txn)
		if !a.due(txn, now) {
			if _, err := changed.Wait(ctx, 0); err != nil {
				return nil
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
			health.OK(healthy)
			continue
		}
		health.Degraded("Cannot announce new pods and addresses to other nodes", failed)
		if !pause.For(ctx, retry.Step()) {
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
		said := announcement{row.Pods, row.Node.Addrs}
		if err := a.tell(s, said, reconciler.StatusDone()); err != nil {
			return err
		}
	}
	return nil
}

// present returns what this node may announce, and channels of which one closes when that changes.
// It looks at the interfaces of pods itself: that pods have their addresses by them may be about to
// be written.
func (a *announcer) present(txn statedb.ReadTxn) (now present, changed *statedb.WatchSet) {
	rows, ofPods := a.Endpoints.ListWatch(txn, tables.EndpointsHere())
	_, ofAttachments := a.Attachments.AllWatch(txn)
	_, ofEgress := a.EgressPolicies.AllWatch(txn)
	_, ofNetwork := a.NetworkPolicies.AllWatch(txn)
	_, ofAddresses := a.Addresses.AllWatch(txn)
	node, _, ofNode, found := a.Nodes.GetWatch(txn, tables.NodeByName(a.LocalNode.Name))
	changed = statedb.NewWatchSet()
	changed.Add(ofPods, ofAttachments, ofEgress, ofNetwork, ofAddresses, ofNode)
	if found {
		now.addrs = a.ownAddrs(txn, node)
	}
	policies := a.EgressPolicies.NumObjects(txn) + a.NetworkPolicies.NumObjects(txn)
	if !a.Plugin.Enabled || policies == 0 { // nothing depends on the addresses of pods
		return now, changed
	}
	for e := range rows {
		now.pods = append(now.pods, e.WithAttachment(tables.CNIAddrsOf(txn, a.Attachments, e)))
	}
	slices.SortFunc(now.pods, func(a, b *tables.Endpoint) int {
		return cmp.Or(b.Attached.Compare(a.Attached), cmp.Compare(a.Name.String(), b.Name.String()))
	})
	return now, changed
}

// ownAddrs returns the addresses of this node that others cannot know from its Node object, in
// order.
func (a *announcer) ownAddrs(txn statedb.ReadTxn, node *tables.Node) (addrs []netip.Addr) {
	known := slices.Concat(node.InternalIPs, node.OtherIPs, node.TunnelIPs)
	for row := range a.Addresses.All(txn) {
		inPods := func(p netip.Prefix) bool { return p.Contains(row.Addr) }
		if row.Scope == "global" && !row.Deprecated && !row.Addr.IsLinkLocalUnicast() &&
			!tables.IsWithinNode(row.Device) && !slices.Contains(known, row.Addr) &&
			!slices.ContainsFunc(node.PodCIDRs, inPods) {
			addrs = append(addrs, row.Addr)
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs)
}

// due reports whether a slice has to be written.
func (a *announcer) due(txn statedb.ReadTxn, now present) bool {
	return slices.ContainsFunc(a.slices, func(s slice) bool {
		_, due := s.wanted(a.last(txn, s), now, time.Now())
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
	now, _ := a.present(txn)
	for _, s := range a.slices {
		says, due := s.wanted(a.last(txn, s), now, time.Now())
		if !due {
			continue
		}
		outcome, status := "written", reconciler.StatusDone()
		if problem := a.patch(ctx, txn, s, says); problem != nil {
			outcome, status = "failed", reconciler.StatusError(problem)
			failed = errors.Join(failed, problem)
		}
		if ctx.Err() != nil {
			return failed, nil
		}
		a.writes.WithLabelValues(outcome).Inc()
		if err := a.tell(s, says, status); err != nil {
			return failed, err
		}
	}
	return failed, nil
}

func (a *announcer) patch(
	ctx context.Context, txn statedb.ReadTxn, s slice, says announcement,
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
		s.manifest(node, says), metav1.PatchOptions{FieldManager: fieldManager, Force: &force})
	if err != nil {
		return fmt.Errorf("write EndpointSlice %s: %w", s.name, err)
	}
	return nil
}

// tell writes the row about a slice.
func (a *announcer) tell(s slice, says announcement, status reconciler.Status) error {
	wtxn := a.DB.WriteTxn(a.Announcements)
	defer wtxn.Abort()
	row := &tables.PodAnnouncement{
		Slice: s.name, Pods: says.pods, Addrs: says.addrs,
		Reconciled: tables.Reconciled{Status: status},
	}
	if _, _, err := a.Announcements.Insert(wtxn, row); err != nil {
		return err
	}
	wtxn.Commit()
	return nil
}

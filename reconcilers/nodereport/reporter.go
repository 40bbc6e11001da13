// SPDX-License-Identifier: Apache-2.0

package nodereport

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/pause"
)

// Resource is that of NodeReports.
var Resource = schema.GroupVersionResource{
	Group: "sluice.io", Version: "v1alpha1", Resource: "nodereports",
}

const (
	fieldManager   = "sluice-agent"
	requestTimeout = 30 * time.Second

	// What is refused is tried again as soon as what fails: an API server that has just started
	// knows neither rights nor CRDs for a moment.
	retryMin = time.Second
	retryMax = 5 * time.Minute

	// repeat is how often an unchanged report is written: it may have been deleted, and only
	// the leader reads it. If it exists, the API server writes nothing.
	repeat = time.Hour
)

// reporter keeps one NodeReport.
type reporter struct {
	params
	changes statedb.ChangeIterator[*tables.PolicyReport]
	written *prometheus.CounterVec
	limiter *rate.Limiter

	pending map[tables.PolicyID]*tables.PolicyReport // rows that the object does not say yet
	last    []byte                                   // what it says; nil before the first write
}

// run writes reports until the context ends.
func (r *reporter) run(ctx context.Context, health cell.Health) error {
	defer r.changes.Close()
	if !tables.AwaitInitialized(ctx, r.DB, r.Reports) {
		return nil
	}
	retry := pause.NewBackoff(retryMin, retryMax)
	for {
		changed := r.take(r.DB.ReadTxn())
		var wrote bool
		var err error
		if !r.isTold() {
			if !r.await(ctx) {
				return nil
			}
			wrote, err = r.write(ctx)
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			r.written.WithLabelValues("failed").Inc()
			health.Degraded("Cannot report the status of policies", err)
			if serr := r.mark(reconciler.StatusError(err)); serr != nil {
				return serr
			}
			if !pause.Until(ctx, retry.Step(), changed[1]) { // without a Node there is nothing to write to
				return nil
			}
			continue
		case wrote:
			r.written.WithLabelValues("written").Inc()
		}
		retry = pause.NewBackoff(retryMin, retryMax)
		health.OK(fmt.Sprintf("Told of %d policies", r.Reports.NumObjects(r.DB.ReadTxn())))
		if err := r.mark(reconciler.StatusDone()); err != nil {
			return err
		}
		clear(r.pending)
		if !r.more(ctx, changed) {
			return nil
		}
	}
}

// take takes in what has changed, and returns channels of which one closes when
// more has.
func (r *reporter) take(txn statedb.ReadTxn) []<-chan struct{} {
	rows, watch := r.changes.Next(txn)
	for change := range rows {
		if change.Deleted || change.Object.Status.Kind == reconciler.StatusKindDone {
			delete(r.pending, change.Object.Policy)
		} else {
			r.pending[change.Object.Policy] = change.Object
		}
	}
	_, _, node, _ := r.Nodes.GetWatch(txn, tables.NodeByName(r.LocalNode.Name))
	_, _, voters, _ := r.Voters.GetWatch(txn, tables.EgressVotersTakenByIndex(0))
	_, ports := r.Ports.AllWatch(txn)
	return []<-chan struct{}{watch, node, voters, ports}
}

// more waits until something has changed, or all is to be written again.
func (r *reporter) more(ctx context.Context, changed []<-chan struct{}) bool {
	timer := time.NewTimer(wait.Jitter(repeat, 0.1))
	defer timer.Stop()
	select {
	case <-changed[0]:
	case <-changed[1]:
	case <-changed[2]:
	case <-changed[3]:
	case <-timer.C:
		r.last = nil
	case <-ctx.Done():
		return false
	}
	return true
}

// isTold reports whether the object says already what it shall.
func (r *reporter) isTold() bool { return r.last != nil && bytes.Equal(r.last, r.wanted()) }

// await waits until it is time for a report.
func (r *reporter) await(ctx context.Context) bool {
	if !pause.For(ctx, r.Pace.Settle) {
		return false
	}
	r.limiter.SetLimit(rate.Every(r.Pace.interval(r.Nodes.NumObjects(r.DB.ReadTxn()))))
	return r.limiter.Wait(ctx) == nil
}

// wanted is what the object shall say now, nil if there can be none.
func (r *reporter) wanted() []byte {
	txn := r.DB.ReadTxn()
	node, _, found := r.Nodes.Get(txn, tables.NodeByName(r.LocalNode.Name))
	if !found {
		return nil
	}
	contents := compose(string(r.Version), r.Reports.All(txn), r.Ports.All(txn))
	if r.Reporting.Enabled {
		contents.Drain = cut(node.Drain)
	}
	if taken, _, found := r.Voters.Get(txn, tables.EgressVotersTakenByIndex(0)); found {
		contents.EgressVoters = taken.Generation
	}
	return manifest(node, contents)
}

// write writes the report, unless it says already what it shall.
func (r *reporter) write(ctx context.Context) (wrote bool, err error) {
	r.take(r.DB.ReadTxn())
	body := r.wanted()
	if body == nil {
		return false, fmt.Errorf("there is no Node %s", r.LocalNode.Name)
	}
	if bytes.Equal(body, r.last) {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	force := true
	_, err = r.Client.Resource(Resource).Patch(ctx, r.LocalNode.Name, types.ApplyPatchType, body,
		metav1.PatchOptions{FieldManager: fieldManager, Force: &force})
	if err != nil {
		return false, fmt.Errorf("write NodeReport %s: %w", r.LocalNode.Name, err)
	}
	r.last = body
	return true, nil
}

// mark sets the status of the rows that were to be written.
func (r *reporter) mark(status reconciler.Status) error {
	return tables.SetStatus(r.DB, r.Reports, status, slices.Collect(maps.Values(r.pending))...)
}

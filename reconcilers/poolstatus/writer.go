// SPDX-License-Identifier: Apache-2.0

// Package poolstatus writes the rows of table egress-ip-pool-status to the status of
// EgressIPPools, and problems to Events. There are rows only while this operator leads.
//
//	egress-ip-pool-status ──► status of EgressIPPools, Events
//
// A row is written to the version of the object that it follows from, and to no other: of two
// operators that both believe to lead one writes, and the other is told that there is a newer
// object, which its watch brings. So no block of ports is given to two nodes.
package poolstatus

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/record"

	"github.com/sluice-net/sluice/tables"
)

// Cell writes the status of pools.
var Cell = cell.Module(
	"egress-ip-pool-status",
	"Status of EgressIPPools",

	cell.Invoke(register),
)

const (
	fieldManager   = "sluice-operator"
	requestTimeout = 30 * time.Second
	retryMin       = time.Second
	retryMax       = time.Minute

	// Each write of a pool goes to the watches of all agents: so many writes a second, but the
	// first ones at once.
	writeRate, writeBurst = 5, 10
)

var (
	version  = schema.GroupVersion{Group: "sluice.io", Version: "v1alpha1"}
	resource = version.WithResource("egressippools")
)

type params struct {
	cell.In

	Reconciler reconciler.Params
	EgressIPs  tables.EgressIPs
	Desired    tables.Desired[*tables.EgressIPPoolStatus]
	Client     dynamic.Interface
	Recorder   record.EventRecorder
}

func register(p params) error {
	if !p.EgressIPs.Enabled {
		return nil
	}
	_, err := reconciler.Register(
		p.Reconciler,
		p.Desired.RWTable,
		tables.Clone[tables.EgressIPPoolStatus],
		tables.WithStatus[tables.EgressIPPoolStatus],
		(*tables.EgressIPPoolStatus).GetStatus,
		&writer{client: p.Client, events: p.Recorder},
		nil, // no batch operations
		reconciler.WithRetry(retryMin, retryMax),
		reconciler.WithRoundLimits(1, rate.NewLimiter(writeRate, writeBurst)),
		reconciler.WithoutPruning(),
	)
	return err
}

// writer writes the status of pools. The reconciler calls one method at a time.
type writer struct {
	client dynamic.Interface
	events record.EventRecorder
}

var _ reconciler.Operations[*tables.EgressIPPoolStatus] = &writer{}

// Update implements [reconciler.Operations].
func (w *writer) Update(
	ctx context.Context, _ statedb.ReadTxn, _ statedb.Revision, row *tables.EgressIPPoolStatus,
) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": row.UID, "resourceVersion": row.ResourceVersion},
		"status":   row.PoolStatus,
	})
	if err != nil {
		return fmt.Errorf("encode the status of EgressIPPool %s: %w", row.Pool, err)
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	_, err = w.client.Resource(resource).Patch(ctx, row.Pool, types.MergePatchType, patch,
		metav1.PatchOptions{FieldManager: fieldManager}, "status")
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("write status of EgressIPPool %s: %w: has its CRD a status?", row.Pool, err)
	case err != nil: // also a conflict: there is a newer object, and soon a row of that
		return fmt.Errorf("write status of EgressIPPool %s: %w", row.Pool, err)
	}
	for _, p := range row.Problems {
		w.events.Event(&corev1.ObjectReference{
			APIVersion: version.String(), Kind: "EgressIPPool", Name: row.Pool,
			UID: types.UID(row.UID),
		}, "Warning", p.Reason, p.Message)
	}
	return nil
}

// Delete implements [reconciler.Operations]. The pool is gone, or another operator leads: what
// the object says stays.
func (*writer) Delete(
	context.Context, statedb.ReadTxn, statedb.Revision, *tables.EgressIPPoolStatus,
) error {
	return nil
}

// Prune implements [reconciler.Operations]. There is nothing to prune.
func (*writer) Prune(
	context.Context, statedb.ReadTxn, iter.Seq2[*tables.EgressIPPoolStatus, statedb.Revision],
) error {
	return nil
}

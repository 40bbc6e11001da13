// SPDX-License-Identifier: Apache-2.0

// Package voters writes the nodes that vote on egress addresses, of table egress-voters-wanted, to
// the ConfigMap that all agents read. There is a row only while this operator leads.
//
//	egress-voters-wanted ──► ConfigMap sluice-egress-voters, Events
//
// Sets are written to the version of the object that they follow from, and to no other; the first
// one only if there is no object. So of two operators that both believe to lead one writes.
package voters

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/record"

	"github.com/sluice-net/sluice/tables"
)

// Cell writes the nodes that vote.
var Cell = cell.Module(
	"egress-voters-object",
	"ConfigMap of the nodes that vote on egress addresses",

	cell.Invoke(register),
)

const (
	fieldManager   = "sluice-operator"
	requestTimeout = 30 * time.Second

	// A problem is told again each time.
	retryMin = time.Second
	retryMax = 5 * time.Minute

	reasonStuck = "EgressVotersStuck" // of Events
)

var resource = corev1.SchemeGroupVersion.WithResource("configmaps")

type params struct {
	cell.In

	Reconciler reconciler.Params
	EgressIPs  tables.EgressIPs
	Desired    tables.Desired[*tables.WantedEgressVoters]
	Client     dynamic.Interface
	Recorder   record.EventRecorder
	Namespace  tables.AgentNamespace
}

func register(p params) error {
	if !p.EgressIPs.Enabled {
		return nil
	}
	_, err := reconciler.Register(
		p.Reconciler,
		p.Desired.RWTable,
		tables.Clone[tables.WantedEgressVoters],
		tables.WithStatus[tables.WantedEgressVoters],
		(*tables.WantedEgressVoters).GetStatus,
		&writer{client: p.Client, events: p.Recorder, namespace: string(p.Namespace)},
		nil, // no batch operations
		reconciler.WithRetry(retryMin, retryMax),
		reconciler.WithoutPruning(),
	)
	return err
}

// writer writes the object.
type writer struct {
	client    dynamic.Interface
	events    record.EventRecorder
	namespace string
}

var _ reconciler.Operations[*tables.WantedEgressVoters] = &writer{}

// Update implements [reconciler.Operations]. A problem is an error of the row.
func (w *writer) Update(
	ctx context.Context, _ statedb.ReadTxn, _ statedb.Revision, row *tables.WantedEgressVoters,
) error {
	if row.Problem != "" {
		if row.From.UID != "" {
			w.events.Event(&corev1.ObjectReference{
				APIVersion: "v1", Kind: "ConfigMap", Namespace: w.namespace,
				Name: tables.EgressVotersName, UID: types.UID(row.From.UID),
			}, "Warning", reasonStuck, "Egress addresses may be unable to move: "+row.Problem)
		}
		return errors.New(row.Problem)
	}
	text, err := encode(row, time.Now())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if row.From.UID == "" {
		err = w.create(ctx, text)
	} else {
		err = w.replace(ctx, row.From, text)
	}
	if err != nil { // also a conflict: there is a newer object, and soon a row of that
		return fmt.Errorf("write ConfigMap %s/%s: %w", w.namespace, tables.EgressVotersName, err)
	}
	return nil
}

// encode returns the sets as the object has them.
func encode(row *tables.WantedEgressVoters, since time.Time) (string, error) {
	object := tables.EgressVotersInObject{
		Generation: int64(row.Generation), Since: since.UTC().Truncate(time.Second),
	}
	for _, set := range row.Sets {
		o := tables.VoterSetInObject{Number: int64(set.Number)}
		for _, v := range set.Voters {
			o.Voters = append(o.Voters, tables.EgressVoterInObject{Node: v.Node, Addr: v.Addr.String()})
		}
		object.Sets = append(object.Sets, o)
	}
	data, err := json.Marshal(object)
	if err != nil {
		return "", fmt.Errorf("encode the sets of voters: %w", err)
	}
	return string(data), nil
}

// create fails if there is an object.
func (w *writer) create(ctx context.Context, text string) error {
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{"name": tables.EgressVotersName, "namespace": w.namespace},
		"data":     map[string]any{tables.EgressVotersKey: text},
	}}
	_, err := w.client.Resource(resource).Namespace(w.namespace).Create(ctx, object,
		metav1.CreateOptions{FieldManager: fieldManager})
	return err
}

// replace fails unless the object is of that version.
func (w *writer) replace(ctx context.Context, from tables.ObjectVersion, text string) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": from,
		"data":     map[string]any{tables.EgressVotersKey: text},
	})
	if err != nil {
		return err
	}
	_, err = w.client.Resource(resource).Namespace(w.namespace).Patch(ctx,
		tables.EgressVotersName, types.MergePatchType, patch,
		metav1.PatchOptions{FieldManager: fieldManager})
	return err
}

// Delete implements [reconciler.Operations]. Another operator leads, or there are no pools: what
// the object says stays.
func (*writer) Delete(
	context.Context, statedb.ReadTxn, statedb.Revision, *tables.WantedEgressVoters,
) error {
	return nil
}

// Prune implements [reconciler.Operations]. There is nothing to prune.
func (*writer) Prune(
	context.Context, statedb.ReadTxn, iter.Seq2[*tables.WantedEgressVoters, statedb.Revision],
) error {
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package objectstatus

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/sluice-net/sluice/tables"
)

const fieldManager = "sluice-agent"

// resources are the kinds of policies that have a status.
var resources = map[tables.PolicyKind]schema.GroupVersionResource{
	tables.PolicyEgress:            {Group: "cilium.io", Version: "v2", Resource: "ciliumegressgatewaypolicies"},
	tables.PolicyCilium:            {Group: "cilium.io", Version: "v2", Resource: "ciliumnetworkpolicies"},
	tables.PolicyCiliumClusterwide: {Group: "cilium.io", Version: "v2", Resource: "ciliumclusterwidenetworkpolicies"},
}

// reference names the object of a policy.
func reference(row *tables.ObjectStatus) *corev1.ObjectReference {
	version := "networking.k8s.io/v1"
	if r, found := resources[row.Policy.Kind]; found {
		version = r.GroupVersion().String()
	}
	return &corev1.ObjectReference{
		APIVersion: version, Kind: row.Policy.Kind.String(), Namespace: row.Policy.Namespace, Name: row.Policy.Name.Name, UID: types.UID(row.UID),
	}
}

// objectStatus is the status of an object, as far as the agent writes it.
type objectStatus struct {
	ObservedGeneration int64               `json:"observedGeneration,omitempty"`
	Conditions         []condition         `json:"conditions"`
	Gateways           []gateway           `json:"gateways,omitempty"`
	Nodes              *tables.StatusNodes `json:"nodes,omitempty"`
	Summary            *summary            `json:"summary,omitempty"`
}

type condition struct {
	Type               string      `json:"type"`
	Status             string      `json:"status"`
	ObservedGeneration int64       `json:"observedGeneration,omitempty"`
	LastTransitionTime metav1.Time `json:"lastTransitionTime"`
	Reason             string      `json:"reason,omitempty"`
	Message            string      `json:"message,omitempty"`
}

type gateway struct {
	Node      string   `json:"node,omitempty"`
	EgressIPs []string `json:"egressIPs,omitempty"`
	Reason    string   `json:"reason,omitempty"`
}

// summary is what kubectl shows in a line.
type summary struct {
	Nodes    string `json:"nodes"`
	Gateways string `json:"gateways"`
}

// Outcomes of a look at an object.
const (
	outcomeWritten     = "written"
	outcomeUnchanged   = "unchanged"
	outcomeFailed      = "failed"
	outcomeUnsupported = "unsupported" // the object has no status
)

// write has an object say what it shall, unless it does, and returns the conditions
// that it had.
func (w *writer) write(ctx context.Context, row *tables.ObjectStatus) (outcome string, former []tables.Condition, err error) {
	resource, found := resources[row.Policy.Kind]
	if !found {
		return outcomeUnsupported, nil, nil
	}
	w.mu.Lock()
	statusless := time.Now().Before(w.statusless[row.Policy.Kind])
	if !statusless {
		delete(w.statusless, row.Policy.Kind)
	}
	w.mu.Unlock()
	if statusless {
		return outcomeUnsupported, nil, errStatusless
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if err := w.reading.Wait(ctx); err != nil {
		return outcomeFailed, nil, err
	}
	client := w.Client.Resource(resource).Namespace(row.Policy.Namespace)
	object, err := client.Get(ctx, row.Policy.Name.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return outcomeUnchanged, nil, nil // its row is about to go
	case err != nil:
		return outcomeFailed, nil, fmt.Errorf("read %s: %w", row.Policy, err)
	case row.UID != "" && string(object.GetUID()) != row.UID:
		return outcomeUnchanged, nil, nil // there is another in its place, and soon a row of that
	}
	before, err := statusOf(object.Object)
	if err != nil {
		before = objectStatus{} // of another shape: all of it is replaced
	}
	for _, c := range before.Conditions {
		former = append(former, tables.Condition{Type: c.Type, Status: tables.ConditionStatus(c.Status), Reason: c.Reason, Message: c.Message})
	}
	after := wanted(row, before.Conditions, time.Now())
	if same(before, after) {
		return outcomeUnchanged, former, nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": object.GetUID(), "resourceVersion": object.GetResourceVersion()},
		"status":   after.patch(),
	})
	if err != nil {
		return outcomeFailed, nil, err
	}
	if err := w.writing.Wait(ctx); err != nil {
		return outcomeFailed, nil, err
	}
	_, err = client.Patch(ctx, row.Policy.Name.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager}, "status")
	switch {
	case apierrors.IsNotFound(err):
		return w.notFound(ctx, client, row, former)
	case err != nil:
		return outcomeFailed, nil, fmt.Errorf("write status of %s: %w", row.Policy, err)
	}
	return outcomeWritten, former, nil
}

// notFound tells a kind that has no status, for which the answer to a write is the
// same, from an object that has gone since it was read.
func (w *writer) notFound(ctx context.Context, client dynamic.ResourceInterface, row *tables.ObjectStatus, former []tables.Condition) (string, []tables.Condition, error) {
	_, err := client.Get(ctx, row.Policy.Name.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return outcomeUnchanged, nil, nil // its row is about to go
	case err != nil:
		return outcomeFailed, nil, fmt.Errorf("read %s: %w", row.Policy, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.statusless[row.Policy.Kind] = time.Now().Add(statuslessFor)
	return outcomeUnsupported, former, errStatusless
}

func statusOf(object map[string]any) (s objectStatus, err error) {
	data, err := json.Marshal(object["status"])
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	return s, err
}

// wanted is what a row says as a status. A condition keeps the time of its last
// transition until its status is another, and those of others stay.
func wanted(row *tables.ObjectStatus, before []condition, now time.Time) objectStatus {
	var s objectStatus
	generation := int64(0)
	if row.Policy.Kind == tables.PolicyEgress {
		generation = row.Generation
		s.Nodes = &row.Nodes
		s.Summary = &summary{Nodes: row.Nodes.String()}
		var names []string
		for _, g := range row.Gateways {
			item := gateway{Node: g.Node, Reason: g.Reason}
			for _, a := range g.EgressIPs {
				item.EgressIPs = append(item.EgressIPs, a.String())
			}
			s.Gateways = append(s.Gateways, item)
			names = append(names, cmp.Or(g.Node, "none"))
		}
		s.Summary.Gateways = strings.Join(names, ",")
	}
	s.ObservedGeneration = generation
	s.Conditions = slices.DeleteFunc(slices.Clone(before), func(c condition) bool {
		return slices.ContainsFunc(row.Conditions, func(own tables.Condition) bool { return own.Type == c.Type })
	})
	for _, own := range row.Conditions {
		c := condition{
			Type: own.Type, Status: string(own.Status), Reason: own.Reason, Message: own.Message,
			ObservedGeneration: generation, LastTransitionTime: metav1.NewTime(now),
		}
		for _, old := range before {
			if old.Type == c.Type && old.Status == c.Status {
				c.LastTransitionTime = old.LastTransitionTime
			}
		}
		s.Conditions = append(s.Conditions, c)
	}
	return s
}

// patch is the status as a merge patch: what there is no more of goes.
func (s objectStatus) patch() map[string]any {
	patch := map[string]any{"conditions": s.Conditions}
	if s.Nodes != nil {
		patch["observedGeneration"], patch["nodes"], patch["summary"] = s.ObservedGeneration, s.Nodes, s.Summary
		patch["gateways"] = s.Gateways
	}
	return patch
}

// same reports whether two statuses say the same. The order of conditions is no
// matter.
func same(a, b objectStatus) bool {
	text := func(s objectStatus) []byte {
		s.Conditions = slices.SortedFunc(slices.Values(s.Conditions), func(a, b condition) int { return cmp.Compare(a.Type, b.Type) })
		data, err := json.Marshal(s)
		if err != nil {
			panic(err) // of nothing but texts, numbers and times
		}
		return data
	}
	return bytes.Equal(text(a), text(b))
}

// SPDX-License-Identifier: Apache-2.0

package taint

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/cilium/hive/cell"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/pause"
)

var nodes = schema.GroupVersionResource{Version: "v1", Resource: "nodes"}

const (
	requestTimeout = 30 * time.Second
	retryMin       = time.Second
	retryMax       = time.Minute
)

// remover removes the taint, and again when it comes back with another Node of the name.
type remover struct{ params }

func (r *remover) run(ctx context.Context, health cell.Health) error {
	if !r.Holding.Await(ctx) {
		return nil
	}
	retry := pause.NewBackoff(retryMin, retryMax)
	for {
		_, _, changed, _ := r.Nodes.GetWatch(r.DB.ReadTxn(), tables.NodeByName(r.LocalNode.Name))
		removed, err := r.remove(ctx)
		var again <-chan time.Time
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			health.Degraded("Cannot remove the taint of this node", err)
			again = time.After(retry.Step())
		default:
			if retry = pause.NewBackoff(retryMin, retryMax); removed {
				r.Log.Info("Removed the taint of this node", "taint", Key)
			}
			health.OK("This node has no taint " + Key)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-again:
		}
	}
}

// remove removes the taint, whatever its effect. The API server refuses the patch if the taints
// have changed meanwhile.
func (r *remover) remove(ctx context.Context) (removed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	object, err := r.Client.Resource(nodes).Get(ctx, r.LocalNode.Name, metav1.GetOptions{})
	if err != nil {
		return false, fmt.Errorf("read Node %s: %w", r.LocalNode.Name, err)
	}
	var node corev1.Node
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &node); err != nil {
		return false, fmt.Errorf("read Node %s: %w", r.LocalNode.Name, err)
	}
	left := slices.DeleteFunc(slices.Clone(node.Spec.Taints),
		func(t corev1.Taint) bool { return t.Key == Key })
	if len(left) == len(node.Spec.Taints) {
		return false, nil
	}
	patch, err := json.Marshal([]map[string]any{
		{"op": "test", "path": "/spec/taints", "value": node.Spec.Taints},
		{"op": "replace", "path": "/spec/taints", "value": left},
	})
	if err != nil {
		return false, err
	}
	_, err = r.Client.Resource(nodes).Patch(ctx, r.LocalNode.Name, types.JSONPatchType, patch,
		metav1.PatchOptions{FieldManager: "sluice-agent"})
	if err != nil {
		return false, fmt.Errorf("write Node %s: %w", r.LocalNode.Name, err)
	}
	return true, nil
}

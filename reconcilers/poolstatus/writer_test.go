// SPDX-License-Identifier: Apache-2.0

package poolstatus

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/record"

	"github.com/sluice-net/sluice/tables"
)

// server stands for the API server with one pool, and for what sends Events.
type server struct {
	dynamic.NamespaceableResourceInterface
	dynamic.Interface
	record.EventRecorder

	mu      sync.Mutex
	version int
	status  map[string]any
	events  []string
}

func (s *server) Resource(schema.GroupVersionResource) dynamic.NamespaceableResourceInterface {
	return s
}

// Patch refuses what is not for the present version of the object, as an API server does.
func (s *server) Patch(
	_ context.Context, name string, kind types.PatchType, data []byte, _ metav1.PatchOptions,
	subresources ...string,
) (*unstructured.Unstructured, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if kind != types.MergePatchType || len(subresources) != 1 || subresources[0] != "status" {
		return nil, fmt.Errorf("no patch of a status: %s %s", kind, subresources)
	}
	var patch struct {
		Metadata struct{ UID, ResourceVersion string }
		Status   map[string]any
	}
	if err := json.Unmarshal(data, &patch); err != nil {
		return nil, err
	}
	what := schema.GroupResource{Group: "sluice.io", Resource: "egressippools"}
	if name != "p" {
		return nil, apierrors.NewNotFound(what, name)
	}
	if patch.Metadata.UID != "uid" || patch.Metadata.ResourceVersion != fmt.Sprint(s.version) {
		return nil, apierrors.NewConflict(what, name, fmt.Errorf("of another version"))
	}
	s.version++
	s.status = patch.Status
	return nil, nil
}

func (s *server) Event(object runtime.Object, kind, reason, message string) {
	s.events = append(s.events,
		fmt.Sprint(kind, " ", object.(*corev1.ObjectReference).Name, " ", reason, " ", message))
}

func rowOf(version int, node string) *tables.EgressIPPoolStatus {
	return &tables.EgressIPPoolStatus{
		Pool: "p", UID: "uid", ResourceVersion: fmt.Sprint(version),
		PoolStatus: tables.PoolStatus{Blocks: []tables.PortBlock{{Index: 0, Node: node}}},
	}
}

// The status is that of the CRD.
func TestWrite(t *testing.T) {
	s := &server{version: 7}
	w := &writer{client: s, events: s}
	row := rowOf(7, "node-1")
	row.Blocks = append(row.Blocks, tables.PortBlock{
		Index: 1, Node: "node-2", Released: time.Date(2025, 1, 2, 3, 4, 5, 0, time.UTC),
	})
	row.Addresses = tables.PoolAddresses{Total: 4, Used: 1}
	row.Conditions = []tables.PoolCondition{{
		Condition: tables.Condition{Type: "BlocksAssigned", Status: "False", Reason: "NoFreeBlock"},
		Since:     time.Date(2025, 1, 2, 3, 4, 5, 0, time.UTC),
	}}
	row.Problems = []tables.Problem{{Reason: "NoFreeBlock", Message: "too many nodes"}}
	require.NoError(t, w.Update(t.Context(), nil, 0, row))
	data, err := json.Marshal(s.status)
	require.NoError(t, err)
	require.JSONEq(t, `{
		"addresses": {"total": 4, "used": 1},
		"blocks": [
			{"index": 0, "node": "node-1"},
			{"index": 1, "node": "node-2", "released": "2025-01-02T03:04:05Z"}],
		"allocations": null,
		"conditions": [{
			"type": "BlocksAssigned", "status": "False", "reason": "NoFreeBlock",
			"lastTransitionTime": "2025-01-02T03:04:05Z"}]
	}`, string(data))
	require.Equal(t, []string{"Warning p NoFreeBlock too many nodes"}, s.events)
}

// Of two operators that write to the same version of a pool one does, whichever is first: the
// other one writes nothing, and tells of no problems.
func TestConflict(t *testing.T) {
	s := &server{}
	for version := range 100 {
		var (
			wait sync.WaitGroup
			errs [2]error
		)
		for i := range errs {
			wait.Go(func() {
				w := &writer{client: s, events: s}
				errs[i] = w.Update(t.Context(), nil, 0, rowOf(version, fmt.Sprint("node-", i)))
			})
		}
		wait.Wait()
		winner := 0
		if errs[0] != nil {
			winner = 1
		}
		require.NoError(t, errs[winner])
		require.True(t, apierrors.IsConflict(errs[1-winner]), errs[1-winner])
		require.Equal(t, version+1, s.version)
		require.Equal(t, fmt.Sprint("node-", winner),
			s.status["blocks"].([]any)[0].(map[string]any)["node"])
	}
	require.Error(t, (&writer{client: s, events: s}).Update(t.Context(), nil, 0,
		&tables.EgressIPPoolStatus{Pool: "gone"}))
}

// SPDX-License-Identifier: Apache-2.0

package voters

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
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

// server stands for the API server with the one object, and for what sends Events.
type server struct {
	dynamic.NamespaceableResourceInterface
	dynamic.Interface
	record.EventRecorder

	mu      sync.Mutex
	version int            // 0: there is no object
	data    map[string]any // of the object
	events  []string
}

var configMaps = schema.GroupResource{Resource: "configmaps"}

func (s *server) Resource(r schema.GroupVersionResource) dynamic.NamespaceableResourceInterface {
	if r.GroupResource() != configMaps {
		panic(r)
	}
	return s
}

func (s *server) Namespace(namespace string) dynamic.ResourceInterface {
	if namespace != "agents" {
		panic(namespace)
	}
	return s
}

func (s *server) Create(
	_ context.Context, o *unstructured.Unstructured, _ metav1.CreateOptions, _ ...string,
) (*unstructured.Unstructured, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o.GetName() != tables.EgressVotersName || o.GetNamespace() != "agents" {
		return nil, fmt.Errorf("create %v", o)
	}
	if s.version > 0 {
		return nil, apierrors.NewAlreadyExists(configMaps, o.GetName())
	}
	s.version, s.data = 1, o.Object["data"].(map[string]any)
	return o, nil
}

// Patch refuses what is not for the present version of the object, as an API server does.
func (s *server) Patch(
	_ context.Context, name string, kind types.PatchType, data []byte, _ metav1.PatchOptions,
	_ ...string,
) (*unstructured.Unstructured, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var patch struct {
		Metadata struct{ UID, ResourceVersion string }
		Data     map[string]any
	}
	if err := json.Unmarshal(data, &patch); err != nil || kind != types.MergePatchType {
		return nil, fmt.Errorf("no patch: %s: %w", kind, err)
	}
	if s.version == 0 || name != tables.EgressVotersName {
		return nil, apierrors.NewNotFound(configMaps, name)
	}
	if patch.Metadata.UID != "uid" || patch.Metadata.ResourceVersion != fmt.Sprint(s.version) {
		return nil, apierrors.NewConflict(configMaps, name, errors.New("of another version"))
	}
	s.version++
	s.data = patch.Data
	return nil, nil
}

func (s *server) Event(object runtime.Object, kind, reason, message string) {
	o := object.(*corev1.ObjectReference)
	s.events = append(s.events,
		fmt.Sprint(kind, " ", o.Namespace, "/", o.Name, " ", reason, " ", message))
}

func (s *server) write(t *testing.T, row *tables.WantedEgressVoters) error {
	w := &writer{client: s, events: s, namespace: "agents"}
	return w.Update(t.Context(), nil, 0, row)
}

// setOf returns a set with one node, which follows from a version of the object; 0: from none.
func setOf(version int, node string) *tables.WantedEgressVoters {
	row := &tables.WantedEgressVoters{
		Generation: uint32(version + 1),
		Sets: []tables.VoterSet{{
			Number: uint32(version + 1),
			Voters: []tables.EgressVoter{{Node: node, Addr: netip.MustParseAddr("10.0.0.1")}},
		}},
	}
	if version > 0 {
		row.From = tables.ObjectVersion{UID: "uid", ResourceVersion: fmt.Sprint(version)}
	}
	return row
}

// The data of the object is as agents read it.
func TestWrite(t *testing.T) {
	s := &server{}
	for i := range 2 {
		before := time.Now().Truncate(time.Second)
		require.NoError(t, s.write(t, setOf(i, "node-1")))
		var object struct {
			Generation int
			Since      time.Time
			Sets       json.RawMessage
		}
		require.NoError(t, json.Unmarshal([]byte(s.data["voters"].(string)), &object))
		require.Equal(t, i+1, object.Generation)
		require.WithinRange(t, object.Since, before, time.Now())
		require.JSONEq(t, fmt.Sprintf(
			`[{"number": %d, "voters": [{"node": "node-1", "addr": "10.0.0.1"}]}]`, i+1),
			string(object.Sets))
	}
	require.Empty(t, s.events)
}

// Of two operators that write to the same version, or both the first set, one does.
func TestConflict(t *testing.T) {
	s := &server{}
	for version := range 100 {
		var (
			wait sync.WaitGroup
			errs [2]error
		)
		for i := range errs {
			wait.Go(func() { errs[i] = s.write(t, setOf(version, fmt.Sprint("node-", i))) })
		}
		wait.Wait()
		winner := 0
		if errs[0] != nil {
			winner = 1
		}
		require.NoError(t, errs[winner])
		loses := errs[1-winner]
		require.True(t, apierrors.IsConflict(loses) || apierrors.IsAlreadyExists(loses), loses)
		require.Equal(t, version+1, s.version)
		require.Contains(t, s.data["voters"], fmt.Sprint("node-", winner))
	}
}

// A problem is an Event about the object, and an error. Nothing is written.
func TestProblem(t *testing.T) {
	s := &server{version: 1}
	row := setOf(1, "node-1")
	row.Problem = "a majority is lost"
	require.EqualError(t, s.write(t, row), "a majority is lost")
	require.Equal(t, 1, s.version)
	require.Equal(t, []string{
		"Warning agents/sluice-egress-voters EgressVotersStuck " +
			"Egress addresses may be unable to move: a majority is lost",
	}, s.events)
}

// SPDX-License-Identifier: Apache-2.0

package objectstatus

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
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
)

// server stands for the API server, and for what sends Events.
type server struct {
	dynamic.Interface
	record.EventRecorder

	mu            sync.Mutex
	status        map[string]map[string]any // by namespace and name; every object is there
	reads, writes int
	writtenAt     []time.Time
	events        []string
	fails         error  // of writes
	onWrite       func() // before it fails
	gone          map[string]bool
}

type resource struct {
	dynamic.NamespaceableResourceInterface
	*server
	namespace string
}

func (s *server) Resource(schema.GroupVersionResource) dynamic.NamespaceableResourceInterface {
	return resource{server: s}
}

func (r resource) Namespace(namespace string) dynamic.ResourceInterface {
	r.namespace = namespace
	return r
}

func (r resource) Get(_ context.Context, name string, _ metav1.GetOptions, _ ...string) (*unstructured.Unstructured, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reads++
	if r.gone[name] {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "policies"}, name)
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{"uid": "uid", "resourceVersion": "7"}, "status": maps.Clone(r.status[r.namespace+"/"+name]),
	}}, nil
}

func (r resource) Patch(_ context.Context, name string, _ types.PatchType, data []byte, _ metav1.PatchOptions, _ ...string) (*unstructured.Unstructured, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writes++
	if r.onWrite != nil {
		r.onWrite()
	}
	if r.gone[name] {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "policies"}, name)
	}
	if r.fails != nil {
		return nil, r.fails
	}
	r.writtenAt = append(r.writtenAt, time.Now())
	var patch struct {
		Metadata struct{ UID, ResourceVersion string }
		Status   map[string]any
	}
	if err := json.Unmarshal(data, &patch); err != nil {
		return nil, err
	}
	if patch.Metadata.UID != "uid" || patch.Metadata.ResourceVersion != "7" {
		return nil, fmt.Errorf("not of the object that was read: %s", data)
	}
	key := r.namespace + "/" + name
	if r.status[key] == nil {
		r.status[key] = map[string]any{}
	}
	maps.Copy(r.status[key], patch.Status)
	return nil, nil
}

func (s *server) Event(object runtime.Object, kind, reason, message string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, strings.Join([]string{kind, object.(*corev1.ObjectReference).Name, reason, message}, " "))
}

// counts returns the reads and writes so far.
func (s *server) counts() [2]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return [2]int{s.reads, s.writes}
}

// says returns the status of an object.
func (s *server) says(t *testing.T, key string) objectStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	status, err := statusOf(map[string]any{"status": s.status[key]})
	require.NoError(t, err)
	return status
}

// told returns the Events so far.
func (s *server) told() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.events)
}

// before has something done before each write.
func (s *server) before(do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onWrite = do
}

func (s *server) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fails = err
}

// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/rest"

	"github.com/sluice-net/sluice/sources/objects"
)

// testServer speaks the protocol of an API server over the objects of a FakeAPI.
type testServer struct {
	*FakeAPI
	*httptest.Server

	wholeFromCache bool         // heeds no limit when it may answer from its cache, as API servers do
	watchLists     bool         // supports initial events in watches
	protobuf       bool         // supports it for kinds that have it
	messages       atomic.Int32 // listings and events in protobuf
	down           atomic.Bool  // hangs up on every request
	unknown        atomic.Bool  // finds no path, as a proxy with no API server behind it
	forbidden      atomic.Value // a resource that may not be listed or watched

	instead   sync.Map                      // an answerer, by resource
	discovery atomic.Pointer[answerer]      // instead of discovery
	listed    sync.Map                      // number of listings served, by resource
	cut       atomic.Pointer[chan struct{}] // closed to break the watches that there are

	definitionReads atomic.Int32
	definitionsDown atomic.Bool // no CRD can be read
	definitionsHang atomic.Bool // who reads one waits forever
}

func newTestServer(t testing.TB, watchLists bool) *testServer {
	s := &testServer{FakeAPI: NewFakeAPI(), watchLists: watchLists}
	require.NoError(t, s.Sync())
	s.forbidden.Store("")
	s.breakWatches()
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Server.Close)
	return s
}

// agent returns an agent of the server that tries again soon.
func (s *testServer) agent(t testing.TB, source string) *agent {
	return s.agentOf(t, source, defaultBounds)
}

// agentOf returns an agent with bounds of answers.
func (s *testServer) agentOf(t testing.TB, source string, bounds bounds) *agent {
	return newAgent(t, source, func(kinds []*objects.Kind) api {
		c, err := newServer(&rest.Config{Host: s.URL}, kinds, bounds)
		require.NoError(t, err)
		t.Cleanup(func() { s.CloseClientConnections() })
		return hasty{c}
	})
}

type hasty struct{ *server }

func (hasty) timing() timing { return (*FakeAPI)(nil).timing() }

// hangUp takes the server down, also for the watches that it has.
func (s *testServer) hangUp() {
	s.down.Store(true)
	s.CloseClientConnections()
}

// breakWatches hangs up in the middle of all answers to watches, and of no other request.
func (s *testServer) breakWatches() {
	next := make(chan struct{})
	if cut := s.cut.Swap(&next); cut != nil {
		close(*cut)
	}
}

func (s *testServer) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if s.down.Load() {
		panic(http.ErrAbortHandler)
	}
	if s.unknown.Load() {
		http.NotFound(w, req)
		return
	}
	prefix, resource := splitPath(req.URL.Path)
	if resource == "" {
		if answer := s.discovery.Load(); answer != nil {
			(*answer)(s, w, req)
		} else {
			s.discover(w, prefix)
		}
		return
	}
	if name, is := strings.CutPrefix(resource, definitions.Resource+"/"); is {
		s.serveDefinition(w, req, name)
		return
	}
	r := s.find(resource)
	if answer, found := s.instead.Load(resource); found {
		s.countList(resource)
		answer.(answerer)(s, w, req)
		return
	}
	s.mu.Lock()
	absent := r.absent
	s.mu.Unlock()
	switch q := req.URL.Query(); {
	case absent:
		http.NotFound(w, req)
	case s.forbidden.Load() == resource:
		fail(w, apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "", fmt.Errorf("no")))
	case q.Get("watch") == "":
		s.serveList(w, req, r)
	case q.Get("sendInitialEvents") == "true" && !s.watchLists:
		fail(w, apierrors.NewInvalid(schema.GroupKind{Kind: "ListOptions"}, "", nil))
	default:
		s.serveWatch(w, req, r)
	}
}

func (s *testServer) serveDefinition(w http.ResponseWriter, req *http.Request, name string) {
	s.definitionReads.Add(1)
	if s.definitionsHang.Load() {
		<-req.Context().Done()
		return
	}
	s.mu.Lock()
	d := s.find(name).definitionNow()
	s.mu.Unlock()
	resource := schema.GroupResource{Group: definitions.Group, Resource: definitions.Resource}
	switch {
	case s.forbidden.Load() == definitions.Resource:
		fail(w, apierrors.NewForbidden(resource, name, fmt.Errorf("no")))
		return
	case s.definitionsDown.Load():
		fail(w, apierrors.NewServiceUnavailable("no CRDs"))
		return
	case d.uid == "":
		fail(w, apierrors.NewNotFound(resource, name))
		return
	case !strings.Contains(req.Header.Get("Accept"), "as=PartialObjectMetadata"):
		http.Error(w, "a whole definition is large", http.StatusNotAcceptable)
		return
	}
	object := metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name, UID: d.uid}}
	if d.deleting {
		object.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(object)
}

// splitPath returns the group and version of a path, and the resource if any.
func splitPath(path string) (prefix, resource string) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	n := 2 // api/v1
	if parts[0] == "apis" {
		n = min(3, len(parts))
	}
	return strings.Join(parts[1:n], "/"), strings.Join(parts[n:], "/")
}

func fail(w http.ResponseWriter, err *apierrors.StatusError) {
	status := err.ErrStatus
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(int(status.Code))
	_ = json.NewEncoder(w).Encode(status)
}

// discover serves the resources of a group and version, or without one all groups.
func (s *testServer) discover(w http.ResponseWriter, groupVersion string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	groups := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
	list := metav1.APIResourceList{
		TypeMeta:     metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"},
		GroupVersion: groupVersion,
	}
	for _, r := range s.resources {
		if r.absent {
			continue
		}
		version := metav1.GroupVersionForDiscovery{GroupVersion: r.kind.APIVersion()}
		groups.Groups = append(groups.Groups, metav1.APIGroup{
			Name: r.kind.Group, Versions: []metav1.GroupVersionForDiscovery{version},
		})
		if r.kind.APIVersion() == groupVersion {
			list.APIResources = append(list.APIResources, metav1.APIResource{Name: r.kind.Resource})
		}
	}
	w.Header().Set("Content-Type", "application/json")
	if groupVersion == "" {
		_ = json.NewEncoder(w).Encode(groups)
	} else {
		_ = json.NewEncoder(w).Encode(list)
	}
}

// lists returns how many listings of a resource were served, page by page.
func (s *testServer) lists(resource string) int {
	n, found := s.listed.Load(resource)
	if !found {
		return 0
	}
	return int(n.(*atomic.Int32).Load())
}

func (s *testServer) countList(resource string) {
	n, _ := s.listed.LoadOrStore(resource, new(atomic.Int32))
	n.(*atomic.Int32).Add(1)
}

// serveList serves a page of a listing, as large as asked for.
func (s *testServer) serveList(w http.ResponseWriter, req *http.Request, r *fakeResource) {
	s.countList(r.kind.Resource)
	s.mu.Lock()
	defer s.mu.Unlock()
	keys := slices.Sorted(maps.Keys(r.objects))
	from, _ := strconv.Atoi(req.URL.Query().Get("continue"))
	limit, _ := strconv.Atoi(req.URL.Query().Get("limit"))
	if req.URL.Query().Get("resourceVersion") == "0" && s.wholeFromCache {
		limit = 0
	}
	metadata := map[string]any{"resourceVersion": strconv.Itoa(len(r.log))}
	keys = keys[from:]
	if limit > 0 && len(keys) > limit {
		keys = keys[:limit]
		metadata["continue"] = strconv.Itoa(from + limit)
	}
	items := []any{}
	for _, key := range keys {
		items = append(items, r.objects[key])
	}
	list := map[string]any{
		"apiVersion": r.kind.APIVersion(), "kind": r.kind.Kind + "List", "items": items,
		"metadata": metadata,
	}
	if s.wantsProtobuf(req) {
		w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
		_, _ = w.Write(s.encodeProtobuf(list))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(list)
}

func (s *testServer) wantsProtobuf(req *http.Request) bool {
	return s.protobuf && strings.HasPrefix(req.Header.Get("Accept"), runtime.ContentTypeProtobuf)
}

// apiTypes are those of the kinds in protobuf.
var apiTypes = func() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, discoveryv1.AddToScheme, networkingv1.AddToScheme,
	} {
		utilruntime.Must(add(s))
	}
	return s
}()

// encodeProtobuf encodes what is JSON as an API server does.
func (s *testServer) encodeProtobuf(tree any) []byte {
	s.messages.Add(1)
	data, err := json.Marshal(tree)
	utilruntime.Must(err)
	var header metav1.TypeMeta
	utilruntime.Must(json.Unmarshal(data, &header))
	object, err := apiTypes.New(header.GroupVersionKind())
	utilruntime.Must(err)
	utilruntime.Must(json.Unmarshal(data, object))
	var out bytes.Buffer
	utilruntime.Must(protobuf.NewSerializer(apiTypes, apiTypes).Encode(object, &out))
	return out.Bytes()
}

func (s *testServer) serveWatch(w http.ResponseWriter, req *http.Request, r *fakeResource) {
	cut := *s.cut.Load()
	w.Header().Set("Content-Type", "application/json")
	flush := w.(http.Flusher).Flush
	send := func(kind string, object any) {
		_ = json.NewEncoder(w).Encode(map[string]any{"type": kind, "object": object})
	}
	if s.wantsProtobuf(req) {
		w.Header().Set("Content-Type", runtime.ContentTypeProtobuf+";stream=watch")
		frames := protobuf.LengthDelimitedFramer.NewFrameWriter(w)
		send = func(kind string, object any) {
			event := metav1.WatchEvent{Type: kind,
				Object: runtime.RawExtension{Raw: s.encodeProtobuf(object)}}
			data, err := event.Marshal()
			utilruntime.Must(err)
			_, _ = frames.Write(data)
		}
	}
	from, _ := strconv.Atoi(req.URL.Query().Get("resourceVersion"))
	if req.URL.Query().Get("sendInitialEvents") == "true" {
		s.mu.Lock()
		from = len(r.log)
		for _, o := range r.objects {
			send("ADDED", o)
		}
		s.mu.Unlock()
		send("BOOKMARK", map[string]any{"apiVersion": r.kind.APIVersion(), "kind": r.kind.Kind, "metadata": map[string]any{
			"resourceVersion": strconv.Itoa(from),
			"annotations":     map[string]any{"k8s.io/initial-events-end": "true"},
		}})
	}
	flush()
	for {
		s.mu.Lock()
		log, absent, lost, changed := r.log, r.absent, r.lost, r.changed
		s.mu.Unlock()
		if from < lost && !absent {
			status := apierrors.NewResourceExpired("too old resource version").ErrStatus
			status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
			send("ERROR", status)
			return
		}
		for ; from < len(log); from++ {
			object := map[string]any{}
			_ = json.Unmarshal(log[from].data, &object)
			object["metadata"].(map[string]any)["resourceVersion"] = strconv.Itoa(from + 1)
			send(string(log[from].kind), object)
		}
		flush()
		if absent {
			return
		}
		select {
		case <-changed:
		case <-cut:
			panic(http.ErrAbortHandler)
		case <-req.Context().Done():
			return
		}
	}
}

// compact forgets what happened, so that watches have to begin anew.
func (s *testServer) compact(t testing.TB, resource string) {
	require.NoError(t, s.update([]string{resource}, func(r *fakeResource) {
		// A version that was not seen yet.
		r.log = append(r.log, fakeEvent{kind: "BOOKMARK", data: []byte(`{"metadata":{}}`)})
		r.lost = len(r.log)
	}))
}

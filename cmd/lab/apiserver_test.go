// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/sluice-net/sluice/sources/objects"
)

const (
	apiServerHost = 200 // of the underlay
	apiServerPort = 6443
	nodeReports   = "nodereports"
)

// apiServer is an API server for the agents of a cluster, with the objects of that. A node reaches
// it by its device to other nodes: one that is cut off from them has no API server.
type apiServer struct {
	ns     *Namespace
	http   *http.Server
	served chan struct{}

	mu        sync.Mutex
	version   int
	resources map[string]*apiResource // by the name in paths
}

type apiResource struct {
	apiVersion, kind string
	objects          map[string]Object // by namespace and name
	log              []apiEvent
	changed          chan struct{} // closed at the next change
}

type apiEvent struct {
	Type    string `json:"type"`
	Object  Object `json:"object"`
	version int
}

// serveAPI gives a cluster without agents an API server, from which these will read. It returns
// their flags.
func serveAPI(t *testing.T, c *Cluster) (*apiServer, []string) {
	t.Helper()
	s := &apiServer{resources: map[string]*apiResource{}}
	for _, k := range append(objects.Kinds(objects.EndpointsKubernetes),
		objects.EgressIPPoolKind(), objects.EgressBGPPeerKind(), objects.EgressVotersKind("")) {
		s.add(k.Resource, k.APIVersion(), k.Kind)
	}
	s.add(nodeReports, "sluice.io/v1alpha1", "NodeReport")
	for _, text := range c.objects {
		var o Object
		require.NoError(t, sigsyaml.Unmarshal(text, &o))
		s.put(o)
	}
	c.follow = s

	var err error
	s.ns, err = newNamespace("api")
	require.NoError(t, err)
	t.Cleanup(s.ns.Close)
	require.NoError(t, c.connect(s.ns, UnderlayDevice, switchBridge))
	address := inNetwork(UnderlayIPv4, apiServerHost)
	require.NoError(t, s.ns.AddAddress(UnderlayDevice, address))
	s.serve(t, netip.AddrPortFrom(address.Addr(), apiServerPort))

	kubeconfig := filepath.Join(c.Dir(), "kubeconfig")
	require.NoError(t, os.WriteFile(kubeconfig, fmt.Appendf(nil, `
apiVersion: v1
kind: Config
clusters: [{name: lab, cluster: {server: "http://%s:%d"}}]
contexts: [{name: lab, context: {cluster: lab}}]
current-context: lab
`, address.Addr(), apiServerPort), 0o600))
	return s, []string{
		"--source=kubernetes", "--kubeconfig=" + kubeconfig, "--manifests=", "--object-status=false",
	}
}

func (s *apiServer) add(resource, apiVersion, kind string) {
	s.resources[resource] = &apiResource{
		apiVersion: apiVersion, kind: kind, objects: map[string]Object{}, changed: make(chan struct{}),
	}
}

func (s *apiServer) serve(t *testing.T, at netip.AddrPort) {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/v1/{resource}", s.read)
	mux.HandleFunc("GET /api/v1/namespaces/{namespace}/{resource}", s.read)
	mux.HandleFunc("GET /apis/{group}/{version}/{resource}", s.read)
	mux.HandleFunc("PATCH /apis/sluice.io/v1alpha1/"+nodeReports+"/{name}", s.writeNodeReport)
	mux.HandleFunc("GET /apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}", definition)
	var listener net.Listener
	require.NoError(t, s.ns.Run(func() (err error) {
		listener, err = net.Listen("tcp", at.String())
		return err
	}))
	s.http, s.served = &http.Server{Handler: mux}, make(chan struct{})
	go func() {
		defer close(s.served)
		_ = s.http.Serve(listener)
	}()
	t.Cleanup(func() {
		_ = s.http.Close()
		<-s.served
	})
}

// put implements [follower].
func (s *apiServer) put(o Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.resources {
		if r.kind == o.id().kind {
			s.store(r, o)
		}
	}
}

// store stores an object, and returns it as it is then.
func (s *apiServer) store(r *apiResource, o Object) Object {
	key, event := o.id().file(), "MODIFIED"
	former := r.objects[key]
	s.version++
	stored := copied(o)
	meta := stored["metadata"].(map[string]any)
	if former == nil {
		event = "ADDED"
		meta["uid"] = fmt.Sprintf("00000000-0000-0000-0000-%012d", s.version)
	} else {
		meta["uid"] = former["metadata"].(map[string]any)["uid"]
	}
	if meta["creationTimestamp"] == nil {
		meta["creationTimestamp"] = "2025-01-10T09:00:00Z"
	}
	meta["resourceVersion"] = strconv.Itoa(s.version)
	r.objects[key] = stored
	r.tell(apiEvent{event, stored, s.version})
	return stored
}

func copied(o Object) (c Object) {
	text, _ := json.Marshal(o) // it has come as such
	_ = json.Unmarshal(text, &c)
	return c
}

func (r *apiResource) tell(e apiEvent) {
	r.log = append(r.log, e)
	close(r.changed)
	r.changed = make(chan struct{})
}

// remove implements [follower].
func (s *apiServer) remove(id objectID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.resources {
		if o, found := r.objects[id.file()]; found && r.kind == id.kind {
			delete(r.objects, id.file())
			s.version++
			gone := copied(o)
			gone["metadata"].(map[string]any)["resourceVersion"] = strconv.Itoa(s.version)
			r.tell(apiEvent{"DELETED", gone, s.version})
		}
	}
}

func (s *apiServer) read(w http.ResponseWriter, req *http.Request) {
	r, query := s.resources[req.PathValue("resource")], req.URL.Query()
	switch {
	case r == nil:
		http.NotFound(w, req)
	case query.Get("sendInitialEvents") != "":
		refuse(w, apierrors.NewInvalid(schema.GroupKind{Kind: "ListOptions"}, "", nil))
	case query.Get("watch") == "":
		s.mu.Lock()
		defer s.mu.Unlock()
		items := []any{}
		for _, o := range r.objects {
			items = append(items, o)
		}
		reply(w, http.StatusOK, Object{
			"apiVersion": r.apiVersion, "kind": r.kind + "List", "items": items,
			"metadata": Object{"resourceVersion": strconv.Itoa(s.version)},
		})
	default:
		from, _ := strconv.Atoi(query.Get("resourceVersion"))
		s.watch(w, req, r, from)
	}
}

func (s *apiServer) watch(w http.ResponseWriter, req *http.Request, r *apiResource, from int) {
	w.Header().Set("Content-Type", "application/json")
	for next := 0; ; {
		w.(http.Flusher).Flush()
		s.mu.Lock()
		log, changed := r.log[next:], r.changed
		s.mu.Unlock()
		next += len(log)
		for _, e := range log {
			if e.version > from {
				_ = json.NewEncoder(w).Encode(e)
			}
		}
		if len(log) > 0 {
			continue
		}
		select {
		case <-changed:
		case <-req.Context().Done():
			return
		}
	}
}

// definition serves a CRD, of which agents ask whether it is there.
func definition(w http.ResponseWriter, req *http.Request) {
	reply(w, http.StatusOK, Object{
		"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
		"metadata": Object{"name": req.PathValue("name"), "uid": req.PathValue("name")},
	})
}

// writeNodeReport takes the report of a node, which is the whole object.
func (s *apiServer) writeNodeReport(w http.ResponseWriter, req *http.Request) {
	var o Object
	if err := json.NewDecoder(req.Body).Decode(&o); err != nil {
		refuse(w, apierrors.NewBadRequest(err.Error()))
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	reply(w, http.StatusOK, s.store(s.resources[nodeReports], o))
}

// acknowledged returns which generation of the nodes that vote a node has acknowledged.
func (s *apiServer) acknowledged(node string) (generation float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	report := s.resources[nodeReports].objects[objectID{"NodeReport", "", node}.file()]
	status, _ := report["status"].(map[string]any)
	generation, _ = status["egressVoters"].(float64)
	return generation
}

func reply(w http.ResponseWriter, code int, o any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(o)
}

func refuse(w http.ResponseWriter, err *apierrors.StatusError) {
	status := err.ErrStatus
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	reply(w, int(status.Code), status)
}

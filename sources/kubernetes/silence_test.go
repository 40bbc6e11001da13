// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/sluice-net/sluice/sources/objects"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/testdata/await"
)

// impatient is an agent's API server that has a second for each watch, and a moment of silence.
type impatient struct{ hasty }

func (i impatient) timing() timing {
	t := i.hasty.timing()
	t.idle = time.Second
	return t
}

func (i impatient) watch(
	ctx context.Context, k *objects.Kind, opts metav1.ListOptions,
) (watch.Interface, error) {
	second := int64(1)
	opts.TimeoutSeconds = &second
	return i.hasty.watch(ctx, k, opts)
}

func (s *testServer) impatientAgent(t testing.TB) *agent {
	return newAgent(t, objects.EndpointsKubernetes, func(kinds []*objects.Kind) api {
		c, err := newServer(&rest.Config{Host: s.URL}, kinds, bounds{maxAnswer, 200 * time.Millisecond})
		require.NoError(t, err)
		t.Cleanup(func() { s.CloseClientConnections() })
		return impatient{hasty{c}}
	})
}

// hang answers with a beginning, and then with nothing more.
func hang(beginning string) answerer {
	return func(_ *testServer, w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if beginning != "" {
			_, _ = io.WriteString(w, beginning)
			w.(http.Flusher).Flush()
		}
		<-req.Context().Done()
	}
}

// listsBut answers watches with something else.
func listsBut(watches answerer) answerer {
	return func(s *testServer, w http.ResponseWriter, req *http.Request) {
		switch q := req.URL.Query(); {
		case q.Get("watch") == "":
			s.serveList(w, req, s.find("pods"))
		case q.Get("sendInitialEvents") == "true":
			http.Error(w, "not supported", http.StatusBadRequest)
		default:
			watches(s, w, req)
		}
	}
}

// An API server that is silent within an answer, or before it, is no API server that has no news:
// health names the resource, and the agent tries again.
func TestServerSilent(t *testing.T) {
	for name, beginning := range map[string]string{
		"before": "", "within": `{"apiVersion":"v1","kind":"PodList",`,
	} {
		t.Run(name, func(t *testing.T) {
			s := newTestServer(t, false)
			require.NoError(t, s.Apply(pods("a")))
			a := s.impatientAgent(t)
			a.endpoints("a")
			s.instead.Store("pods", hang(beginning))
			s.compact(t, "pods")
			await.True(t, func() bool {
				row := a.state("pods", tables.SourceBroken)
				return strings.Contains(row.Error, "the API server sends nothing for 200ms")
			})
			a.awaitLevel("pods", "Degraded")
			a.endpoints("a")
			require.NoError(t, s.Apply(pods("b")))
			s.instead.Delete("pods")
			a.endpoints("a", "b")
			a.state("pods", tables.SourceSynced)
		})
	}
}

// A silent API server does not hold up the events of a kind whose CRD it is asked for.
func TestServerSilentDefinition(t *testing.T) {
	s := newTestServer(t, false)
	require.NoError(t, s.Apply(egressPolicies("p", "q")))
	a := s.impatientAgent(t)
	a.policies("p", "q")
	s.definitionsHang.Store(true)
	require.NoError(t, s.Delete(egressPolicies("q")))
	require.Contains(t, a.state(policiesResource, tables.SourceBroken).Error,
		"the API server sends nothing for 200ms")
	s.definitionsHang.Store(false)
	a.policies("p")
}

// A watch in which nothing comes says nothing of the objects, whether it ends or not: they are
// listed anew. So it is after the API server's storage was restored from a backup.
func TestServerSilentWatch(t *testing.T) {
	for name, watches := range map[string]answerer{
		"ends": func(_ *testServer, w http.ResponseWriter, req *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.(http.Flusher).Flush()
			select {
			case <-time.After(1100 * time.Millisecond): // cache.Reflector lists after less itself
			case <-req.Context().Done():
			}
		},
		"hangs":           hang("\n"),
		"does not answer": hang(""),
	} {
		t.Run(name, func(t *testing.T) {
			s := newTestServer(t, false)
			require.NoError(t, s.Apply(pods("a")))
			s.instead.Store("pods", listsBut(watches))
			a := s.impatientAgent(t)
			a.endpoints("a")
			require.NoError(t, s.Delete(pods("a")))
			require.NoError(t, s.Apply(pods("b")))
			a.endpoints("b")
			require.NoError(t, s.Apply(pods("c")))
			a.endpoints("b", "c")
		})
	}
}

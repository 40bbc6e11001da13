// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/sluice-net/sluice/sources/objects"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/testdata/await"
)

// bound is that of an answer in these tests.
const bound = 100 << 10

// largePod is a pod of as many bytes.
func largePod(name string, size int) []byte {
	return []byte("{apiVersion: v1, kind: Pod, metadata: {name: " + name +
		", annotations: {a: " + strings.Repeat("x", size) + "}}}\n---\n")
}

// A listing that is too large for one answer comes in pages that are not, also from an API
// server that answers with all objects from its cache.
func TestServerLargeListing(t *testing.T) {
	for _, whole := range []bool{false, true} {
		t.Run(fmt.Sprintf("whole=%v", whole), func(t *testing.T) {
			s := newTestServer(t, false)
			s.wholeFromCache = whole
			var names []string
			var text []byte
			for i := range 600 {
				names = append(names, fmt.Sprintf("p%03d", i))
				text = append(text, largePod(names[i], 1000)...)
			}
			require.NoError(t, s.Apply(text))
			a := s.agentOf(t, objects.EndpointsKubernetes, bounds{bound, maxSilence})
			a.endpoints(names...)
			require.Empty(t, a.state("pods", tables.SourceSynced).Error)
		})
	}
}

// An object that is larger than an answer may be is an error that names the resource. The
// objects that are known stay.
func TestServerObjectTooLargeToList(t *testing.T) {
	s := newTestServer(t, false)
	require.NoError(t, s.Apply(pods("a", "b")))
	a := s.agentOf(t, objects.EndpointsKubernetes, bounds{bound, maxSilence})
	a.endpoints("a", "b")
	s.down.Store(true)
	s.CloseClientConnections()
	require.NoError(t, s.Apply(largePod("large", bound)))
	s.compact(t, "pods")
	s.down.Store(false)
	const says = "list pods: the answer exceeds 102400 bytes, also with limit=1"
	await.True(t, func() bool { return a.state("pods", tables.SourceBroken).Error == says })
	a.awaitLevel("pods", "Degraded")
	a.endpoints("a", "b")
	require.NoError(t, s.Delete(largePod("large", 1)))
	a.state("pods", tables.SourceSynced)
}

// An answer that does not end is not read to its end, be it a listing or an event.
func TestServerEndlessAnswer(t *testing.T) {
	for _, c := range []struct{ name, beginning, says string }{
		{"list", `{"apiVersion":"v1","kind":"PodList","metadata":{"x":"`,
			"list pods: the answer exceeds 102400 bytes, also with limit=1"},
		{"event", `{"type":"ADDED","object":{"apiVersion":"v1","kind":"Pod","metadata":{"x":"`,
			"an event exceeds 16 MiB"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newTestServer(t, false)
			require.NoError(t, s.Apply(pods("a")))
			a := s.agentOf(t, objects.EndpointsKubernetes, bounds{bound, maxSilence})
			a.endpoints("a")
			var sent atomic.Int64
			s.instead.Store("pods", answerer(func(
				s *testServer, w http.ResponseWriter, req *http.Request,
			) {
				if (req.URL.Query().Get("watch") == "true") != (c.name == "event") {
					w.WriteHeader(http.StatusGone)
					return
				}
				answerText("application/json", c.beginning)(s, w, req)
				sent.Store(0)
				for piece := []byte(strings.Repeat("x", 64<<10)); ; {
					n, err := w.Write(piece)
					if sent.Add(int64(n)); err != nil {
						return // the agent has hung up
					}
				}
			}))
			s.breakWatches()
			if c.name == "list" {
				s.compact(t, "pods")
			}
			await.True(t, func() bool {
				return strings.Contains(a.state("pods", tables.SourceBroken).Error, c.says)
			})
			a.endpoints("a")
			require.Less(t, sent.Load(), int64(64<<20), "with what sockets hold")
			s.instead.Delete("pods")
			a.state("pods", tables.SourceSynced)
		})
	}
}

// A listing whose pages continue with themselves ends all the same.
func TestServerListingInACircle(t *testing.T) {
	s := newTestServer(t, false)
	s.instead.Store("pods", answerText("application/json", `{"apiVersion":"v1","kind":"PodList",`+
		`"metadata":{"resourceVersion":"1","continue":"next"},"items":[{"metadata":{"name":"a"}}]}`))
	a := s.agent(t, objects.EndpointsKubernetes)
	const says = "list pods: the listing does not end: a page continues with itself"
	await.True(t, func() bool { return a.state("pods", tables.SourceBroken).Error == says })
	s.instead.Delete("pods")
	a.state("pods", tables.SourceSynced)
}

// However long an error is, the row of the kind, health and the log have its beginning.
func TestServerLongError(t *testing.T) {
	s := newTestServer(t, false)
	s.instead.Store("pods", answerer(func(_ *testServer, w http.ResponseWriter, _ *http.Request) {
		fail(w, apierrors.NewInternalError(errors.New(strings.Repeat("x", 1<<20))))
	}))
	a := s.agent(t, objects.EndpointsKubernetes)
	row := a.state("pods", tables.SourceBroken)
	require.Regexp(t, `^list pods: Internal error occurred: x+\.\.\.$`, row.Error)
	require.Less(t, len(row.Error), 2000)
}

// While a listing waits, as for the CRD that cannot be read, no other one is held beside it.
func TestOneListingIsQueued(t *testing.T) {
	r := reflectorOf(params{}, nil, objects.Kinds(objects.EndpointsKubernetes)[0], nil)
	ctx, cancel := context.WithCancel(t.Context())
	store := eventStore{ctx, r}
	require.NoError(t, store.Replace(nil, ""))
	time.AfterFunc(time.Millisecond, cancel)
	require.NoError(t, store.Replace(nil, ""))
	require.Len(t, r.events, 1)
}

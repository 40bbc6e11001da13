// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	"github.com/sluice-net/sluice/sources/objects"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/testdata/await"
)

// answerer answers the requests for a resource instead of an API server.
type answerer func(s *testServer, w http.ResponseWriter, req *http.Request)

// answerText answers with the same text whatever is asked.
func answerText(contentType, text string) answerer {
	return func(_ *testServer, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		_, _ = io.WriteString(w, text)
	}
}

// answerObject answers with an object, in protobuf to those who want that.
func answerObject(object map[string]any) answerer {
	return func(s *testServer, w http.ResponseWriter, req *http.Request) {
		if s.wantsProtobuf(req) {
			w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
			_, _ = w.Write(s.encodeProtobuf(object))
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(object)
	}
}

func init() { utilruntime.Must(metav1.AddMetaToScheme(apiTypes)) }

var wrongAnswers = map[string]struct {
	answer answerer
	says   string // in the error
}{
	"no object":   {answerText("application/json", "{}"), "names no kind, want v1 PodList"},
	"null":        {answerText("application/json", "null"), "names no kind, want v1 PodList"},
	"nothing":     {answerText("application/json", ""), "decode list of pods: "},
	"HTML":        {answerText("text/html", "<html><body>Welcome</body></html>"), "list pods: "},
	"HTML's text": {answerText("application/json", "<html></html>"), "decode list of pods: "},
	"an empty list of no version": {
		answerObject(map[string]any{"apiVersion": "v1", "kind": "PodList", "items": []any{}}),
		"list of pods has no resourceVersion",
	},
	"a status": {
		answerObject(map[string]any{"apiVersion": "v1", "kind": "Status", "status": "Success"}),
		"the answer is a v1 Status, not a v1 PodList",
	},
	"an empty list of others": {
		answerObject(map[string]any{"apiVersion": "v1", "kind": "ConfigMapList", "items": []any{}}),
		"the answer is a v1 ConfigMapList, not a v1 PodList",
	},
	"a list of others": {
		answerObject(map[string]any{"apiVersion": "v1", "kind": "ConfigMapList", "items": []any{
			map[string]any{"metadata": map[string]any{"name": "x", "namespace": "default"}},
		}}),
		"the answer is a v1 ConfigMapList, not a v1 PodList",
	},
}

// An answer that is no listing of pods says nothing of pods, also with status 200: those
// that are known stay, health names the resource, and the agent tries again.
func TestServerWrongAnswer(t *testing.T) {
	for name, wrong := range wrongAnswers {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			eachServer(t, func(t *testing.T, s *testServer) {
				require.NoError(t, s.Apply(pods("a", "b")))
				a := s.agent(t, objects.EndpointsKubernetes)
				a.endpoints("a", "b")

				s.instead.Store("pods", wrong.answer)
				s.compact(t, "pods") // the watch is answered with 410
				s.CloseClientConnections()
				await.True(t, func() bool {
					return strings.Contains(a.state("pods", tables.SourceBroken).Error, wrong.says)
				}, "%v", a.state("pods", tables.SourceBroken))
				a.awaitLevel("pods", "Degraded")
				a.endpoints("a", "b")
				for n := s.lists("pods"); s.lists("pods") < n+3; {
					a.endpoints("a", "b") // and through more tries
				}

				require.NoError(t, s.Apply(pods("c")))
				s.instead.Delete("pods")
				a.endpoints("a", "b", "c")
				a.state("pods", tables.SourceSynced)
				a.awaitLevel("pods", "OK")
			})
		})
	}
}

// An object of another kind in a watch is none of this one.
func TestServerWatchOfAnotherKind(t *testing.T) {
	s := newTestServer(t, false)
	require.NoError(t, s.Apply(pods("a")))
	a := s.agent(t, objects.EndpointsKubernetes)
	a.endpoints("a")
	s.instead.Store("pods", answerer(func(s *testServer, w http.ResponseWriter, req *http.Request) {
		if req.URL.Query().Get("watch") == "" {
			s.serveList(w, req, s.find("pods"))
			return
		}
		answerText("application/json", `{"type":"DELETED","object":{"apiVersion":"v1",`+
			`"kind":"ConfigMap","metadata":{"name":"a","namespace":"default"}}}`)(s, w, req)
	}))
	s.breakWatches()
	require.Contains(t, a.state("pods", tables.SourceBroken).Error, `an object of kind \"ConfigMap\", not Pod`)
	a.endpoints("a")
	s.instead.Delete("pods")
	a.state("pods", tables.SourceSynced)
}

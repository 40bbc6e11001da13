// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// flushed ends a request when its answer is complete so far: one that streams
// would wait for what changes next.
type flushed struct {
	*httptest.ResponseRecorder
	end context.CancelFunc
}

func (w flushed) Flush() { w.end() }

// statuses are those that a request may be answered with. One of 500 is none: it
// would be the agent's fault.
var statuses = []int{
	http.StatusOK, http.StatusMovedPermanently, http.StatusTemporaryRedirect, http.StatusBadRequest, http.StatusForbidden, http.StatusNotFound,
	http.StatusMethodNotAllowed, http.StatusConflict, http.StatusRequestEntityTooLarge, http.StatusServiceUnavailable,
}

// Whatever is asked for is answered, as what it says it is, changes nothing, and
// leaves nothing behind.
func FuzzRequests(f *testing.F) {
	for _, seed := range []struct{ method, path, query, body, host string }{
		{"GET", "/", "", "", "localhost"},
		{"GET", "/tables/fruits", "format=json", "", "localhost:9880"},
		{"GET", "/tables/fruits", "watch=true&longest=3&color=true", "", "127.0.0.1"},
		{"GET", "/tables/fruits", "format=xml;watch=%zz", "", "[::1]:80"},
		{"GET", "/statedb/dump/health", "", "", ""},
		{"GET", "/statedb/changes/fruits", "", "", "attacker.example"},
		{"GET", "/statedb/query", "", `{"table": "fruits", "index": "name", "key": "cGVhcg=="}`, "localhost"},
		{"GET", "/statedb/query", "", `{"table": "fruits", "index": "prefix", "key": "AAAAAA==", "lowerbound": true}`, "localhost"},
		{"GET", "/statedb/query", "", `{"table": "fruits", "index": "__revision__", "lowerbound": true}`, "localhost"},
		{"GET", "/explain/policy", "from=shop/web&to=world&port=80/tcp", "", "localhost"},
		{"GET", "/explain/egress", "from=10.0.0.1&to=::1", "", "localhost"},
		{"GET", "/monitor", "kind=drop&reason=x&pod=10.0.0.0/8", "", "localhost"},
		{"GET", "/status", "", "", "localhost"},
		{"GET", "/rules", "", "", "localhost"},
		{"GET", "/graph", "", "", "localhost"},
		{"GET", "/trace", "policy=CiliumEgressGatewayPolicy/bank", "", "localhost"},
		{"GET", "/web/page.js", "", "", "localhost"},
		{"POST", "/gc", "", `{"match": {"ports": [80], "protocols": ["tcp"]}}`, "localhost"},
		{"POST", "/gc", "", `{"all": true} {}`, "localhost"},
		{"DELETE", "/tables/fruits", "", "", "localhost"},
		{"GET", "/tables/../healthz", "", "", "localhost"},
	} {
		f.Add(seed.method, seed.path, seed.query, seed.body, seed.host)
	}
	f.Fuzz(func(t *testing.T, method, path, query, body, host string) {
		if strings.HasPrefix(path, "/debug/pprof") { // those that take their time
			return
		}
		fx := newFixture(t)
		h := explainable(t, nil)
		fx.explain, fx.tables = h.explain, h.tables
		flow, err := newDataflow(params{})
		require.NoError(t, err)
		fx.flow = flow
		before := fx.fruits.Revision(fx.db.ReadTxn())

		ctx, end := context.WithCancel(t.Context())
		defer end()
		r, err := http.NewRequestWithContext(ctx, method, "http://sluice", io.NopCloser(strings.NewReader(body)))
		if err != nil {
			return // no method
		}
		r.URL = &url.URL{Path: path, RawQuery: query}
		r.Host = host
		w := flushed{httptest.NewRecorder(), end}
		done := false
		func() {
			defer func() {
				if cause := recover(); cause != nil {
					require.Equal(t, http.ErrAbortHandler, cause, "only a client that is gone is cut off")
				}
			}()
			fx.checkHost("127.0.0.1:9880", fx.mux(true)).ServeHTTP(w, r)
			done = true
		}()
		if !done {
			return
		}
		require.Contains(t, statuses, w.Code, w.Body)
		if kind := w.Header().Get("Content-Type"); kind == "application/json" {
			require.True(t, json.Valid(w.Body.Bytes()), w.Body)
		}
		if w.Code != http.StatusOK {
			require.NotContains(t, w.Body.String(), "panic")
		}
		require.Equal(t, before, fx.fruits.Revision(fx.db.ReadTxn()))
		for _, l := range []*limit{fx.limits.dumps, fx.limits.questions, fx.limits.scrapes, fx.limits.streams} {
			require.Empty(t, l.slots, l.kind)
		}
	})
}

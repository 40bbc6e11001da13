// SPDX-License-Identifier: Apache-2.0

package api

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
)

// A web page whose name resolves to a loopback address gets nothing.
func TestHosts(t *testing.T) {
	f := newFixture(t)
	ask := func(listen, host string) (*httptest.ResponseRecorder, int) {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodGet, "/version", nil)
		r.Host = host
		r.Header.Set("Origin", "http://"+host)
		f.checkHost(listen, f.mux(false)).ServeHTTP(w, r)
		return w, w.Code
	}
	for _, host := range []string{
		"localhost", "localhost:9880", "LOCALHOST.:1", "127.0.0.1:9880", "127.1.2.3", "[::1]", "[::1]:9880", "::1", "",
	} {
		w, code := ask("127.0.0.1:9880", host)
		require.Equal(t, http.StatusOK, code, host)
		require.Empty(t, w.Header().Get("Access-Control-Allow-Origin"))
		require.Equal(t, "same-origin", w.Header().Get("Cross-Origin-Resource-Policy"))
		require.Equal(t, "nosniff", w.Header().Get("X-Content-Type-Options"))
	}
	for i, host := range []string{
		"attacker.example", "attacker.example:9880", "localhost.attacker.example", "127.0.0.1.attacker.example:9880",
		"10.0.0.1", "0.0.0.0:9880", "[::]:9880", "[::ffff:10.0.0.1]", "local host", "[", "127.0.0.1:9880:1",
	} {
		w, code := ask("127.0.0.1:9880", host)
		require.Equal(t, http.StatusForbidden, code, host)
		require.NotContains(t, w.Body.String(), "node-1", host)
		require.Equal(t, i+1, f.refused(refusedHost))
	}
	_, code := ask("0.0.0.0:9880", "node-1.example:9880")
	require.Equal(t, http.StatusOK, code, "an agent that other machines reach may have any name")
	_, code = ask("localhost:9880", "localhost:1")
	require.Equal(t, http.StatusOK, code)
}

// A page of another origin gets no answer, not even one that it could not read; a
// link to the agent's page leads there.
func TestOtherPages(t *testing.T) {
	f := newFixture(t)
	ask := func(site, mode string) int {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodGet, "/version", nil)
		r.Host = "localhost"
		if site != "" {
			r.Header.Set("Sec-Fetch-Site", site)
			r.Header.Set("Sec-Fetch-Mode", mode)
		}
		f.checkHost("127.0.0.1:9880", f.mux(false)).ServeHTTP(w, r)
		return w.Code
	}
	for _, site := range []string{"cross-site", "same-site"} {
		require.Equal(t, http.StatusForbidden, ask(site, "no-cors"))
		require.Equal(t, http.StatusForbidden, ask(site, "cors"))
		require.Equal(t, http.StatusOK, ask(site, "navigate"))
	}
	require.Equal(t, http.StatusOK, ask("same-origin", "cors"))
	require.Equal(t, http.StatusOK, ask("none", "navigate"))
	require.Equal(t, http.StatusOK, ask("", ""))
}

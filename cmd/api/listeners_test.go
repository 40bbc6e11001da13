// SPDX-License-Identifier: Apache-2.0

package api

import (
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/hivetest"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/testdata/await"
)

// startSmallServer runs the API with few connections, which wait long for a request.
func startSmallServer(t *testing.T, most int, args ...string) *Server {
	h, server := newServerHive(t, args, cell.Invoke(func(s *Server) {
		s.headerTimeout, s.maxConnections = time.Hour, most
	}))
	log := hivetest.Logger(t, hivetest.LogLevel(slog.LevelWarn))
	require.NoError(t, h.Start(log, t.Context()))
	return *server
}

// probe asks whether the agent is healthy, as the kubelet does.
func probe(t *testing.T, url string) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{}, Timeout: await.Bound}
	defer client.CloseIdleConnections()
	resp, err := client.Get(url + "/healthz")
	require.NoError(t, err)
	resp.Body.Close()
	require.Equal(t, http.StatusOK, resp.StatusCode)
}

// Clients that connect and say nothing, or do not end what they say, hold up no probe.
func TestSilentConnections(t *testing.T) {
	const most = 16
	s := startSmallServer(t, most, "--api-listen=127.0.0.1:0", "--socket=")
	for _, says := range []string{"", "GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: "} {
		for range most + 10 {
			conn := dial(t, strings.TrimPrefix(s.URL(), "http://"))
			_, err := io.WriteString(conn, says)
			require.NoError(t, err)
		}
		probe(t, s.URL())
	}
}

// Clients that take no answer, or follow changes, hold up no probe either.
func TestConnectionsThatStay(t *testing.T) {
	const most = 16
	s := startSmallServer(t, most, "--api-listen=127.0.0.1:0", "--socket=")
	streams := s.handlers.limits.streams
	for n := range most + 10 {
		conn := dial(t, strings.TrimPrefix(s.URL(), "http://"))
		_, err := io.WriteString(conn, "GET /statedb/changes/health HTTP/1.1\r\nHost: localhost\r\n\r\n")
		require.NoError(t, err)
		await.True(t, func() bool { return len(streams.slots) == min(n+1, most) })
		_, err = conn.Read(make([]byte, 1))
		require.NoError(t, err, "the newest is answered")
	}
	probe(t, s.URL())
}

// Clients of TCP, who are any processes of the node, take no share of those of the socket,
// who only root can be.
func TestSharesOfListeners(t *testing.T) {
	socket := socketPath(t)
	s, err := startServer(t,
		"--api-listen=127.0.0.1:0", "--metrics-listen=127.0.0.1:0", "--socket="+socket)
	require.NoError(t, err)
	follow := func(client *http.Client, url string) int {
		resp, err := client.Get(url + "/statedb/changes/health")
		require.NoError(t, err)
		t.Cleanup(func() { resp.Body.Close() })
		return resp.StatusCode
	}
	local := overSocket(t, socket)
	for range maxStreams {
		require.Equal(t, http.StatusOK, follow(http.DefaultClient, s.URL()))
	}
	require.Equal(t, http.StatusServiceUnavailable, follow(http.DefaultClient, s.URL()))
	require.Equal(t, http.StatusOK, follow(local, "http://sluice"))

	for _, l := range s.handlers.limits.kinds() {
		l.wait = time.Millisecond
		for len(l.slots) < cap(l.slots) {
			l.slots <- struct{}{}
		}
	}
	for url, client := range map[string]*http.Client{
		s.MetricsURL(): http.DefaultClient, "http://sluice": local,
	} {
		resp, err := client.Get(url + "/metrics")
		require.NoError(t, err)
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, resp.StatusCode, url)
		require.Contains(t, string(body), `sluice_api_requests{kind="streams",listener="api"} 64`)
		require.Contains(t, string(body), `sluice_api_requests{kind="streams",listener="socket"} 1`)
	}
}

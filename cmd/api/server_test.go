// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/hivetest"
	"github.com/cilium/statedb"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/testdata/await"
)

// startServer runs the API in a hive with the given flags.
func startServer(t *testing.T, args ...string) (*Server, error) {
	h, server := newServerHive(t, args)
	return *server, h.Start(hivetest.Logger(t, hivetest.LogLevel(slog.LevelWarn)), t.Context())
}

// newServerHive returns a hive with the API, other cells whose start comes before the
// handlers', and where the server will be.
func newServerHive(t *testing.T, args []string, between ...cell.Cell) (*hive.Hive, **Server) {
	server := new(*Server)
	h := hive.New(
		statedb.Cell, cell.SimpleHealthCell,
		cell.Provide(
			tables.NewHealthTable,
			statedb.RWTable[*tables.Health].ToTable,
			func() (prometheus.Gatherer, prometheus.Registerer) {
				r := prometheus.NewRegistry()
				return r, r
			},
			func() tables.LocalNode { return tables.LocalNode{Name: "node-1"} },
		),
		ListenCell,
		cell.Invoke(func(s *Server) { *server = s }),
		cell.Group(between...),
		Cell,
	)
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	h.RegisterFlags(flags)
	require.NoError(t, flags.Parse(args))
	log := hivetest.Logger(t, hivetest.LogLevel(slog.LevelWarn))
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		require.NoError(t, h.Stop(log, context.Background()))
	})
	return h, server
}

// socketPath returns a path short enough for a socket.
func socketPath(t *testing.T) string {
	dir, err := os.MkdirTemp("", "sluice")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "run", "s.sock")
}

func overSocket(t *testing.T, path string) *http.Client {
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func TestServer(t *testing.T) {
	socket := socketPath(t)
	s, err := startServer(t, "--api-listen=127.0.0.1:0", "--socket="+socket)
	require.NoError(t, err)

	status := func(client *http.Client, url string) int {
		resp, err := client.Get(url)
		require.NoError(t, err)
		defer resp.Body.Close()
		io.Copy(io.Discard, resp.Body)
		return resp.StatusCode
	}
	local := overSocket(t, socket)
	require.Equal(t, http.StatusOK, status(http.DefaultClient, s.URL()+"/healthz"))
	require.Equal(t, http.StatusNotFound, status(http.DefaultClient, s.URL()+"/debug/pprof/cmdline"))
	rebound, err := http.NewRequest(http.MethodGet, s.URL()+"/healthz", nil)
	require.NoError(t, err)
	rebound.Host = "attacker.example"
	resp, err := http.DefaultClient.Do(rebound)
	require.NoError(t, err)
	resp.Body.Close()
	require.Equal(t, http.StatusForbidden, resp.StatusCode)
	require.Equal(t, http.StatusOK, status(local, "http://sluice/healthz"))
	require.Equal(t, http.StatusOK, status(local, "http://sluice/debug/pprof/cmdline"))

	info, err := os.Stat(socket)
	require.NoError(t, err)
	require.Equal(t, fs.ModeSocket|0o600, info.Mode())

	// A client that follows changes does not hold up the stop.
	resp, err = local.Get("http://sluice/statedb/changes/health")
	require.NoError(t, err)
	t.Cleanup(func() { resp.Body.Close() })
}

// While others start, as programs that are loaded for a while, the kubelet finds the
// agent healthy and not ready. The startup probe waits, and so does not fail; and so do
// other requests, for a while.
func TestStarting(t *testing.T) {
	loading, loaded := make(chan struct{}), make(chan struct{})
	socket := socketPath(t)
	h, server := newServerHive(t, []string{"--api-listen=127.0.0.1:0", "--metrics-listen=127.0.0.1:0", "--socket=" + socket},
		cell.Invoke(func(lc cell.Lifecycle, s *Server) {
			lc.Append(cell.Hook{OnStart: func(cell.HookContext) error {
				h := s.handlers
				for _, l := range []*limits{h.limits, h.metricsLimits, h.socketLimits} {
					l.startWait = time.Millisecond
				}
				close(loading)
				<-loaded
				return nil
			}})
		}))
	started := make(chan error)
	go func() {
		started <- h.Start(hivetest.Logger(t, hivetest.LogLevel(slog.LevelWarn)), context.Background())
	}()
	<-loading

	s := *server
	for _, at := range []struct {
		client *http.Client
		url    string
	}{{http.DefaultClient, s.URL()}, {http.DefaultClient, s.MetricsURL()}, {overSocket(t, socket), "http://sluice"}} {
		status, body := ask(t, at.client, at.url+"/healthz")
		require.Equal(t, http.StatusOK, status, body)
		status, body = ask(t, at.client, at.url+"/readyz")
		require.Equal(t, http.StatusServiceUnavailable, status)
		require.Contains(t, body, "the agent is starting")
		status, body = ask(t, at.client, at.url+"/metrics")
		require.Equal(t, http.StatusServiceUnavailable, status)
		require.Contains(t, body, "the agent is starting: try again")
	}
	status, _ := ask(t, overSocket(t, socket), "http://sluice/version")
	require.Equal(t, http.StatusOK, status, "by this commands find an agent")

	s.handlers.limits.startWait = startWait
	answers := make(chan int)
	for _, path := range []string{"/startupz", "/tables"} {
		go func() {
			resp, err := http.Get(s.URL() + path)
			if err != nil {
				answers <- 0
				return
			}
			resp.Body.Close()
			answers <- resp.StatusCode
		}()
	}
	select {
	case status := <-answers:
		t.Fatalf("it has not started, and a request is answered with %d", status)
	case <-time.After(3 * readyInterval):
	}
	close(loaded)
	require.NoError(t, <-started)
	require.Equal(t, []int{http.StatusOK, http.StatusOK}, []int{<-answers, <-answers})
	for _, path := range []string{"/healthz", "/readyz", "/startupz", "/metrics", "/tables"} {
		status, body := ask(t, http.DefaultClient, s.URL()+path)
		require.Equal(t, http.StatusOK, status, body)
	}
}

// ask returns the status and the body of an answer.
func ask(t *testing.T, client *http.Client, url string) (int, string) {
	t.Helper()
	resp, err := client.Get(url)
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(body)
}

// A start that fails after the server listens leaves nothing that listens.
func TestStartFails(t *testing.T) {
	socket := socketPath(t)
	h, server := newServerHive(t, []string{"--api-listen=127.0.0.1:0", "--socket=" + socket}, cell.Invoke(func(lc cell.Lifecycle) {
		lc.Append(cell.Hook{OnStart: func(cell.HookContext) error { return errors.New("no programs") }})
	}))
	log := slog.New(slog.DiscardHandler)
	require.ErrorContains(t, h.Start(log, t.Context()), "no programs")
	address := (*server).addr.String()
	require.NoError(t, h.Stop(log, t.Context()))
	_, err := net.Dial("tcp", address)
	require.ErrorIs(t, err, unix.ECONNREFUSED)
	require.NoFileExists(t, socket)
}

// Others than this machine may see the state of the agent, and none of its tables.
func TestMetricsListen(t *testing.T) {
	s, err := startServer(t, "--api-listen=", "--metrics-listen=127.0.0.1:0", "--socket="+socketPath(t))
	require.NoError(t, err)
	require.Empty(t, s.URL())
	for path, want := range map[string]int{
		"/metrics": http.StatusOK, "/healthz": http.StatusOK, "/readyz": http.StatusOK,
		"/": http.StatusNotFound, "/tables": http.StatusNotFound, "/tables/health": http.StatusNotFound,
		"/statedb/dump": http.StatusNotFound, "/version": http.StatusNotFound, "/debug/pprof/": http.StatusNotFound,
	} {
		resp, err := http.Get(s.MetricsURL() + path)
		require.NoError(t, err)
		resp.Body.Close()
		require.Equal(t, want, resp.StatusCode, path)
	}
}

func TestSocketInUse(t *testing.T) {
	socket := socketPath(t)
	_, err := startServer(t, "--api-listen=", "--socket="+socket)
	require.NoError(t, err)
	_, err = startServer(t, "--api-listen=", "--socket="+socket)
	require.ErrorIs(t, err, ErrSocketInUse)
	_, err = os.Stat(socket)
	require.NoError(t, err, "the socket of the other agent is left alone")
}

func TestStaleSocket(t *testing.T) {
	socket := socketPath(t)
	require.NoError(t, os.MkdirAll(filepath.Dir(socket), 0o755))
	l, err := net.Listen("unix", socket)
	require.NoError(t, err)
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	require.NoError(t, l.Close())
	_, err = startServer(t, "--api-listen=", "--socket="+socket)
	require.NoError(t, err)
}

func TestServerRefuses(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, []byte("precious"), 0o600))

	for _, tc := range []struct {
		name, message string
		args          []string
	}{
		{"no port", "is not address:port", []string{"--api-listen=127.0.0.1"}},
		{"bad port", "is not a port number", []string{"--api-listen=127.0.0.1:http"}},
		{"bad port of metrics", "--metrics-listen \"127.0.0.1:http\": \"http\" is not a port number", []string{"--metrics-listen=127.0.0.1:http"}},
		{"address of metrics in use", "--metrics-listen chooses another", []string{"--socket=", "--api-listen=127.0.0.1:0", "--metrics-listen=" + taken.Addr().String()}},
		{"nothing to listen on", "both empty", []string{"--api-listen=", "--socket="}},
		{"address in use", "--api-listen chooses another", []string{"--socket=", "--api-listen=" + taken.Addr().String()}},
		{"not a socket", "not a socket", []string{"--api-listen=127.0.0.1:0", "--socket=" + file}},
		{"long path", "longer than 107 bytes", []string{"--api-listen=127.0.0.1:0", "--socket=/" + strings.Repeat("x", 107)}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := startServer(t, tc.args...)
			require.ErrorContains(t, err, tc.message)
		})
	}
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "precious", string(data))
}

func TestLoopback(t *testing.T) {
	for address, want := range map[string]bool{
		"127.0.0.1:9880": true, "[::1]:9880": true, "localhost:9880": true,
		":9880": false, "0.0.0.0:9880": false, "10.0.0.1:9880": false, "[::]:9880": false,
	} {
		require.Equal(t, want, loopback(address), address)
	}
}

// Connections that are kept for a next request, and have none, make room for others.
func TestKeptConnections(t *testing.T) {
	s, err := startServer(t, "--api-listen=127.0.0.1:0", "--socket=")
	require.NoError(t, err)
	var kept []net.Conn
	t.Cleanup(func() {
		for _, conn := range kept {
			conn.Close()
		}
	})
	ask := func() error {
		conn, err := net.DialTimeout("tcp", strings.TrimPrefix(s.URL(), "http://"), await.Bound)
		if err != nil {
			return err
		}
		kept = append(kept, conn)
		conn.SetDeadline(time.Now().Add(await.Bound))
		if _, err := io.WriteString(conn, "GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
			return err
		}
		_, err = conn.Read(make([]byte, 1))
		return err
	}
	for range 2 * maxConnections {
		require.NoError(t, ask())
	}
}
